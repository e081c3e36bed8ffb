"""Groups: the members of a team, who alone may answer the questions to it.

Key, below the tenant: `("inbox", "group", name)` lists the members of a group; without members there is no record, and
anyone may answer. An answer checks, in its own commit, the groups that its question is asked of: a member who is removed
first can no longer answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tenuto.capabilities._core.base import scan_all
from tenuto.capabilities.people.escalation import people_of
from tenuto.errors import InvalidInput
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Backend, Check, Delete, Put, Write

_GROUP: Final = keys.pack("inbox", "group")


class Deciders(NamedTuple):
    """Who may answer now."""

    names: frozenset[str] | None
    """None: anyone."""
    checks: Sequence[Check]
    """They hold while the groups are the same."""

    def have(self, name: str) -> bool:
        """Return whether a person may answer."""
        return self.names is None or name in self.names


def members(kernel: Backend, name: str) -> Sequence[str]:
    """Return the members of a group, none if there is no such group."""
    record = kernel.read([_GROUP + keys.pack(name)])[0]
    return [] if record is None else codec.decode(record.value)


def all_groups(kernel: Backend) -> dict[str, Sequence[str]]:
    """Return the members of each group, by name."""
    return {str(keys.unpack(one.key)[-1]): codec.decode(one.value) for one in scan_all(kernel, _GROUP)}


def changed(name: str, people: Sequence[str]) -> Write:
    """Return the write that sets the members of a group."""
    where, names = _GROUP + keys.named(name, "group"), people_of(people, "member")
    if len(set(names)) < len(names):
        raise InvalidInput(f"The group {name!r} names a person twice.")
    return Put(where, codec.encode(names)) if names else Delete(where)


def deciders(kernel: Backend, asked: Sequence[str]) -> Deciders:
    """Return who may answer a question to these people and groups."""
    if not asked:
        return Deciders(None, [])
    where = [_GROUP + keys.pack(one) for one in asked]
    found = kernel.read(where)
    checks = [Check(key, 0 if one is None else one.version) for key, one in zip(where, found, strict=True)]
    if not any(found):
        return Deciders(None, checks)
    names = (
        [name] if record is None else codec.decode(record.value) for name, record in zip(asked, found, strict=True)
    )
    return Deciders(frozenset(one for some in names for one in some), checks)


def must_reach(kernel: Backend, asked: Sequence[str], quorum: int) -> None:
    """Raise `InvalidInput` if fewer people may answer than a quorum needs."""
    names = deciders(kernel, asked).names
    if names is not None and len(names) < quorum:
        raise InvalidInput(
            f"The quorum is {quorum}, but {len(names)} may answer: {', '.join(sorted(names))}. Nothing was asked."
        )

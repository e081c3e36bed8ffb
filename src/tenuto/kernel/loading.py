"""What `load` accepts, where it stores it, and how it recognises what is there already: the same on every backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tenuto.errors import Conflict, InvalidInput, TooLarge
from tenuto.kernel.contract import MAX_COMMIT, MAX_WRITES, ONE_TENANT, Entry, Record, validate_key
from tenuto.kernel.keys import scope_of, tenant_of

OTHER_CONTENT: Final = "The store has something else under a key that was to be loaded. Nothing was stored."
NOT_LINKED: Final = "Entries do not link to those that follow them: they were changed. Nothing was stored."


def validate_load(records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> None:
    """Raise `InvalidInput` unless what is loaded is within the limits of a commit and consecutive."""
    count, total, tenant = len(records), 0, b""
    for key in [*(record.key for record in records), *entries]:
        validate_key(key)
        if tenant and not key.startswith(tenant):
            raise InvalidInput(ONE_TENANT)
        tenant = tenant or tenant_of(key)
        scope_of(key)
    if len({*(record.key for record in records), *entries}) < count + len(entries):
        raise InvalidInput("One load may hold each key only once.")
    for record in records:
        total += len(record.value)
        if not 0 < record.version < 1 << 63:
            raise InvalidInput(f"A version must be a number from 1 to 2^63 - 1, not {record.version}.")
    for found in entries.values():
        count += len(found)
        total += sum(len(entry.value) for entry in found)
        numbers = [entry.number for entry in found]
        if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] < 1:
            raise InvalidInput("The entries of a stream must be consecutive, from number 1 on. Nothing was stored.")
        if (numbers[0] == 1) is not (found[0].previous == b"") or len(found[0].previous) not in (0, 16):
            raise InvalidInput("Only the first entry of a stream has no previous digest. Nothing was stored.")
    if count > MAX_WRITES or total > MAX_COMMIT:
        raise TooLarge(f"One load takes up to {MAX_WRITES:,} rows and {MAX_COMMIT:,} bytes. Split it.")


def is_same_entry(stored: Entry, given: Entry) -> bool:
    """Return whether two entries say the same; the digests belong to their stores."""
    return (
        stored.number == given.number
        and stored.value == given.value
        and stored.written_at == given.written_at
        and tuple(stored.versions) == tuple(given.versions)
        and stored.forgotten == given.forgotten
    )


def is_same_record(stored: Record, given: Record) -> bool:
    """Return whether a stored record is the given one, or the given one brought back after a deletion."""
    return (
        stored.value == given.value
        and stored.version >= given.version
        and stored.written_at == given.written_at
        and stored.expires_at == given.expires_at
    )


class Place(NamedTuple):
    """Where given entries belong in a stream: what is there already, what comes before it and what after."""

    before: Sequence[Entry]
    there: Sequence[Entry]
    after: Sequence[Entry]


def place_of(given: Sequence[Entry], first: int, last: int) -> Place:
    """Return where entries belong in a stream that holds `first` to `last`; (0, 0) is an empty one. Raise `Conflict` for a gap."""
    if not last:
        return Place((), (), given)
    if given[-1].number < first - 1 or given[0].number > last + 1:
        raise Conflict(
            f"Entries {given[0].number} to {given[-1].number} do not adjoin {first} to {last}. Nothing was stored."
        )
    return Place(
        [one for one in given if one.number < first],
        [one for one in given if first <= one.number <= last],
        [one for one in given if one.number > last],
    )

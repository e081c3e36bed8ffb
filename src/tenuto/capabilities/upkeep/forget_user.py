"""Forget a user: everything of one user removed from every capability, with a signed receipt.

Owned keys: `("upkeep", "key")`, which signs receipts, and `("upkeep", "forgetting", user)`: the names of what is being
removed, written before the first removal and deleted after the last one. First each capability deletes what it lists for the user, so that
reference counts, gates and indexes stay right. Then every row of the user's scopes that is left is removed: records are
deleted, the entries of streams erased and trimmed to one empty entry. Each commit is small. After a crash the next call
finds in that record what the listings no longer name, and removes the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Timed, scan_all
from tenuto.capabilities._core.blobs import Blobs
from tenuto.capabilities.archive import LOGS, Part
from tenuto.capabilities.people import forget_notices
from tenuto.capabilities.store import every_stream
from tenuto.capabilities.tasks import OVER, task_of
from tenuto.capabilities.threads import Thread
from tenuto.capabilities.upkeep.parts import Parts
from tenuto.errors import AccessDenied, Conflict, InvalidInput, MissingDriver, NotFound, StorageUnavailable
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Check, Delete, Forget, Put
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work, on_store, work_of

_KEY: Final = keys.pack("upkeep", "key")
_OWN: Final = keys.pack("archive")
_BATCH: Final = 500
_MENTIONS: Final = 100
_SHARED: Final = frozenset(
    {
        "alert", "archive", "audit", "blobs", "checkpoints", "claude", "handoffs", "inbox", "keys", "langgraph", "memories",
        "milestones", "notify", "playbooks", "progress", "routes", "runs", "tasks", "tenuto", "threads", "tokens", "upkeep",
        "workflows",
    }
)  # fmt: skip
"""Scopes of tenuto itself, which a user's id may equal: there only state, preferences and memories are the user's."""
_SHORTEST: Final = 3
"""Ids shorter than this are in too many other texts to look for."""


class Forgotten(NamedTuple):
    """What was removed of a user; with `dry_run` what would be."""

    user: str
    at: float
    by: str
    memories: int
    runs: int
    threads: int
    workflows: int
    tasks: int
    questions: int
    checkpoints: int
    records: int
    """Further records in the user's scopes: state, preferences, listings."""
    entries: int
    """Entries of journals and logs whose contents were erased."""
    erased: bool
    """Whether the store's files no longer hold the old bytes, as far as tenuto can see to it (SQLite)."""
    archived: int
    """Objects removed from the archive."""
    left_in_archive: list[str]
    """Objects that could not be removed, with the place and the reason: run it again when the archive answers."""
    key_destroyed: bool
    """Whether the user had an own encryption key, which is destroyed now."""
    mentions: list[str]
    """Rows of others that contain the user's id, at most 100. They were not changed."""
    signature: str

    @property
    def content(self) -> bytes:
        """Return what the signature covers."""
        return json.dumps(list(self[:-1]), sort_keys=True).encode()


class Owned(NamedTuple):
    """What belongs to a user, by name."""

    user: str
    runs: set[str]
    threads: set[str]
    workflows: set[str]
    tasks: set[str]
    questions: set[str]
    handoffs: set[str]
    checkpoints: set[str]
    """Ids of those created with `user=` outside of the user's threads and runs."""

    @property
    def scopes(self) -> set[str]:
        """Return the names of everything that may have a conversation and checkpoints."""
        return self.threads | self.runs | self.workflows

    def has_archived(self, part: Part) -> bool:
        """Return whether an archived part belongs to the user."""
        if part.kind == "snapshot":
            return part.user == self.user
        return part.user == self.user or part.name in (self.runs if part.kind == "run" else self.scopes)

    def has(self, parts: tuple[Any, ...]) -> bool:  # noqa: C901, PLR0911, PLR0912 - one rule for each kind of key
        """Return whether a key belongs to the user."""
        first, second, last = parts[0], parts[1] if len(parts) > 1 else None, parts[-1]
        if first in (self.user, f"memories:{self.user}"):
            return first not in _SHARED or second in ("state", "user", "memory")
        if first in self.runs and second in (
            "run",
            "state",
            "turn",
            "thread",
            "progress",
            "handoff",
            "snapshot",
            "checkpoint",
        ):
            return True
        if first in self.threads and second in ("thread", "checkpoint", "langgraph", "claude", "state", "turn"):
            return True
        if first in self.workflows and second in ("workflow", "run", "state", "turn", "thread", "progress"):
            return True
        if first in self.handoffs and second == "handoff":
            return True
        if first == "threads":
            return last in self.threads or parts[2:4] == ("user", self.user)
        if first == "runs":
            return last in self.runs or parts[2:4] == ("user", self.user)
        if first == "workflows":
            return last in self.workflows or parts[2:4] == ("user", self.user)
        if first in ("checkpoints", "progress"):
            return last in self.threads or last in self.runs or last == self.user
        if first == "tasks" or second == "tasks":
            return last in self.tasks
        if first == "inbox":
            return any(part in self.questions for part in parts[2:])
        if first == "langgraph":
            return self.user in parts[2:] or (second == "ns" and parts[2] in self.threads)
        if first == "notify":
            return second == "channel" and parts[2] == self.user
        if first == "handoffs":
            return last in self.handoffs
        return (second == "playbook" or first == "playbooks") and last in self.workflows


class Forgetter(Timed):
    """Forgets users of one client's tenant."""

    def __init__(self, client: Parts) -> None:
        self._client = client
        self._context = client._context
        self._kernel = client._context.kernel
        self._archive = client._archive

    @on_store
    def forget_user(self, user: str, *, dry_run: bool = False) -> Work[Forgotten]:
        """Remove everything of a user from every capability, durably; return the signed receipt.

        State, preferences, threads, checkpoints, blobs, memories, runs, tasks, questions, workflows, handoffs and their
        journals. Rows of others that contain the id are named in `mentions` and not changed. `dry_run` only counts.
        Raise `RunBusy` if a process still executes a run of the user. After a crash run it again.
        """
        keys.name(user, "user")
        dry = dry_run
        owned = self._owned(user)
        memories = [one.id for one in self._client.memory.list(user=user, limit=1 << 30)]
        plan = keys.pack("upkeep", "forgetting", user)
        owned = self._with_rest(plan, owned)
        parts = [part for part in self._archive.parts() if owned.has_archived(part)]
        checkpoints = sum(len(self._client.checkpoint.list(thread=name, limit=1 << 30)) for name in owned.scopes)
        checkpoints += len(owned.checkpoints) + sum(len(part.numbers) for part in parts if part.kind not in LOGS)
        left_there: list[str] = []
        if not dry:
            names = [user, *(sorted(one) for one in owned[1:])]
            yield from commit_once(self._kernel, [], [Put(plan, codec.encode(names))])
            for kind, name in sorted({(part.kind, part.name) for part in parts}):
                yield from self._archive.settle(kind, name)
                yield from self._archive.end(kind, name)
            yield from self._by_capability(owned)
            left_there = yield from self._remove_archived(owned)
        left = [record.key for record in scan_all(self._kernel, b"") if owned.has(keys.unpack(record.key))]
        streams = [stream for stream in every_stream(self._kernel) if owned.has(keys.unpack(stream))]
        entries = 0
        if not dry:
            for start in range(0, len(left), _BATCH):
                yield from commit_once(self._kernel, [], [Delete(key) for key in left[start : start + _BATCH]])
            yield from Blobs(self._context).sweep(limit=1 << 62, grace=-1)
        for stream in streams:
            entries += yield from self._erase(stream, dry=dry)
        if not dry and not left_there:
            yield from commit_once(self._kernel, [], [Delete(plan)])
        destroyed = not dry and self._destroyed_key(user)
        file = self._client.store._file
        erased = file is not None and not dry and file.scrub()
        made = Forgotten(
            user,
            self._kernel.now(),
            self._context.writer,
            len(memories),
            len(owned.runs),
            len(owned.threads),
            len(owned.workflows),
            len(owned.tasks),
            len(owned.questions),
            checkpoints,
            len(left),
            entries,
            erased,
            len(parts) - len(left_there),
            left_there,
            destroyed,
            list(self._mentions(user, owned)),
            "",
        )
        return made if dry else made._replace(signature=(yield from self._signed(made)))

    @on_store
    def verify_receipt(self, receipt: Forgotten) -> Work[bool]:
        """Return whether a receipt was signed by this tenant and is unchanged."""
        return hmac.compare_digest(receipt.signature, (yield from self._signed(receipt)))

    def _with_rest(self, plan: bytes, owned: Owned) -> Owned:
        """Return what a call that was interrupted still had to remove, with what the user owns now."""
        record = self._kernel.read([plan])[0]
        if record is None:
            return owned
        user, *rest = codec.decode(record.value)
        return Owned(user, *(now | set(names) for now, names in zip(owned[1:], [*rest, []], strict=False)))

    # -- what belongs to the user ------------------------------------------------------------------

    def _owned(self, user: str) -> Owned:
        client = self._client
        runs = {one.id for one in client.runs.list(user=user, limit=1 << 30)}
        waiting = list(runs)
        while waiting:
            run = waiting.pop()
            for record in scan_all(self._kernel, keys.pack(run, "run", "child")):
                child = str(keys.unpack(record.key)[-1])
                if child not in runs:
                    runs.add(child)
                    waiting.append(child)
        threads = {one.id for one in client.threads.list(user)}
        workflows = {one.name for one in client.workflows.list(user=user, limit=1 << 30)}
        tasks = {
            str(keys.unpack(record.key)[-1])
            for record in scan_all(self._kernel, keys.pack("tasks", "task"))
            if task_of(record).user == user
        }
        questions = {
            one.id
            for one in client.inbox.list(status=None, limit=1 << 30)
            if one.run in runs or user in (one.to, one.by, *one.about, *one.assignees)
        }
        handoffs = self._handoffs(threads, user)
        # A case of a playbook has the name of its workflow.
        owned = Owned(user, runs, threads, workflows, tasks, questions, handoffs, set())
        return owned._replace(checkpoints=set(client.checkpoint._ids_of(user, owned.scopes)))

    def _handoffs(self, threads: set[str], user: str) -> set[str]:
        wanted = [name.encode() for name in (*threads, user) if len(name) >= _SHORTEST]
        found = scan_all(self._kernel, keys.pack("handoffs", "record"))
        return {str(keys.unpack(one.key)[-1]) for one in found if any(name in one.value for name in wanted)}

    # -- removal -----------------------------------------------------------------------------------

    def _by_capability(self, owned: Owned) -> Work[None]:
        client = self._client
        yield from work_of(client.memory.forget)(user=owned.user, reason="the user was forgotten")
        for record in list(scan_all(self._kernel, keys.pack("tasks", "task"))):
            if str(keys.unpack(record.key)[-1]) in owned.tasks and task_of(record).status not in OVER:
                yield from work_of(client.tasks.cancel)(str(keys.unpack(record.key)[-1]))
        for run in sorted(owned.runs):
            try:
                yield from work_of(client.runs.cancel)(run)
            except NotFound:
                continue
        for question in sorted(owned.questions):
            try:
                yield from work_of(client.inbox.cancel)(question)
            except (Conflict, NotFound):
                continue  # it is over
        yield from forget_notices(self._context, owned.questions)
        for run in sorted(owned.runs):
            yield from work_of(client.runs.delete)(run)
        for name in sorted(owned.workflows):
            yield from work_of(client.workflows.delete)(name)
        for name in sorted(owned.scopes):
            yield from work_of(client.checkpoint.delete)(thread=name)
            yield from Thread(client.threads, name, user=None, ttl=None)._writer.end(expired=True)
        yield from client.checkpoint._remove_ids(owned.checkpoints)

    def _remove_archived(self, owned: Owned) -> Work[list[str]]:
        """Remove the user's objects from the archive; return those that could not be removed, with the reason."""
        left: list[str] = []
        for part in self._archive.parts():
            if owned.has_archived(part):
                try:
                    yield from self._archive.drop(part)
                except (StorageUnavailable, AccessDenied, InvalidInput, MissingDriver) as error:
                    left.append(f"{part.object} in {part.place}: {error}")
        return left

    def _destroyed_key(self, user: str) -> bool:
        """Destroy the user's encryption key if users have keys; return whether there was one."""
        store = self._client.store
        if store._sealing is None or not store._sealing.has_user_keys(store._tenant):
            return False
        return store._sealing.destroy_user_key(store._tenant, user)

    def _erase(self, stream: bytes, *, dry: bool) -> Work[int]:
        """Erase the entries of a stream and trim it to one; return how many still had a value."""
        total, after = 0, 0
        while page := self._kernel.entries(stream, after=after, limit=_BATCH):
            after = page[-1].number
            held = [entry.number for entry in page if not entry.forgotten]
            total += len(held)
            if held and not dry:
                yield from commit_once(self._kernel, [], [Forget(stream, held[0], held[-1])])
        while not dry and self._kernel.trim(stream, after):
            pass
        return total

    def _mentions(self, user: str, owned: Owned) -> Iterator[str]:
        """Yield rows of others that contain the user's id."""
        if len(user) < _SHORTEST:
            return
        wanted, count = user.encode(), 0
        for record in scan_all(self._kernel, b""):
            if record.key.startswith(_OWN):
                continue
            if wanted in record.key + record.value and not owned.has(keys.unpack(record.key)):
                yield repr(keys.unpack(record.key))
                count += 1
                if count >= _MENTIONS:
                    return
        for stream in every_stream(self._kernel):
            after = 0
            while page := self._kernel.entries(stream, after=after, limit=_BATCH):
                after = page[-1].number
                if not owned.has(keys.unpack(stream)) and any(wanted in entry.value for entry in page):
                    yield f"{keys.unpack(stream)!r} entries {page[0].number} to {after}"
                    count += 1
                    if count >= _MENTIONS:
                        return

    # -- the receipt -------------------------------------------------------------------------------

    def _signed(self, receipt: Forgotten) -> Work[str]:
        while (record := self._kernel.read([_KEY])[0]) is None:
            with contextlib.suppress(Conflict):
                yield from commit_once(self._kernel, [Check(_KEY, 0)], [Put(_KEY, secrets.token_bytes(32))])
        return hmac.new(record.value, receipt.content, hashlib.sha256).hexdigest()

"""The store as a client sees it: `agent.store`."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tenuto.capabilities._core.base import Context, Timed
from tenuto.capabilities._core.missing import missing_values
from tenuto.capabilities._core.retention import Retention
from tenuto.capabilities.store import compare, export, import_
from tenuto.capabilities.store.archiving import Archived, ArchiveReport, Archiving
from tenuto.capabilities.store.compare import Difference, Summary
from tenuto.capabilities.store.export import Exported
from tenuto.capabilities.store.import_ import Imported
from tenuto.capabilities.store.pruned import Pruned
from tenuto.capabilities.store.rows import Advance
from tenuto.errors import InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.contract import Backend, Copyable, Finding, Rotation, Sealing
from tenuto.kernel.durations import Duration
from tenuto.kernel.work import Work, on_store

_INSTEAD = {
    "postgres": "Use pg_dump with --schema for a consistent snapshot.",
    "redis": "Use redis-cli --rdb (valkey-cli --rdb) for a consistent snapshot.",
    "sqlite": "This client has it in a wrapper: back it up with a client opened by its path.",
    "volatile": "It exists in this process only.",
}
_COMPACTED = {
    "postgres": "Autovacuum reuses the space; VACUUM FULL returns it to the disk.",
    "redis": "It returns freed memory by itself.",
    "sqlite": "This client has it in a wrapper: use a client opened by its path.",
    "volatile": "It exists in this process only.",
}
_OTHERWISE = "Use the server's own backup tools."


class Report(NamedTuple):
    """The findings of an integrity check; true if there are none."""

    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Return whether the check found no damage."""
        return not self.findings

    def __bool__(self) -> bool:
        """Return whether the check found no damage."""
        return self.ok


class Prune(Protocol):
    """How a store is pruned; the client composes it of all capabilities."""

    def __call__(self, rule: Retention, scope: str | None = None, *, dry: bool = False) -> Work[Pruned]:
        """Remove what a rule no longer keeps."""
        ...


class Store(Timed):
    """Operations on the whole store. `stats`, `check` and `backup` cover all tenants, the others the client's own."""

    def __init__(
        self,
        context: Context,
        file: Copyable | None,
        sealing: Sealing | None,
        tenant: str,
        view: Callable[[str], Backend],
    ) -> None:
        self._context = context
        self._kernel = context.kernel
        self._file = file
        self._sealing = sealing
        self._tenant = tenant
        self._view = view
        self._prune: Prune
        self._archiving: Archiving
        self._archived: Callable[[str | None, str | None], list[Archived]]
        self._retention: Retention | None = None

    def stats(self) -> Mapping[str, Any]:
        """Return the store's backend, durability, size and other statistics."""
        return self._kernel.stats()

    def backup(self, path: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None) -> int:
        """Copy a consistent snapshot of a SQLite store into a new file, while in use; return its size in bytes.

        `progress(copied, total)` is called now and then with numbers of pages. Open the copy like any store.
        """
        if self._file is None:
            kind = self._kernel.stats()["backend"]
            raise InvalidInput(f"Tenuto cannot back up this {kind} store. {_INSTEAD.get(kind, _OTHERWISE)}")
        return self._file.backup(path, progress)

    def compact(self) -> int:
        """Rewrite a SQLite store without its free pages; return by how many bytes the file shrank.

        Atomic. Commits of all clients wait until it is done, reads do not. It needs free disk for the new file twice.
        """
        if self._file is None:
            kind = self._kernel.stats()["backend"]
            raise InvalidInput(f"Tenuto cannot compact this {kind} store; nothing was done. {_COMPACTED.get(kind, '')}")
        return self._file.compact()

    def check(self) -> Report:
        """Verify the whole store: its structure, every checksum, every digest chain of every journal.

        In an undamaged store it also finds values of this tenant's state that are in their journal but were removed.
        """
        return Report(self._kernel.check() or [*missing_values(self._context)])

    def export(
        self, path: str | os.PathLike[str], *, tenant: str | None = None, progress: Advance | None = None
    ) -> Exported:
        """Write everything of the tenant to a new JSONL file, durably; continue an export that was interrupted.

        Types, versions, numbers, times and digests are kept: see docs/export-format.md. `progress(done, total)` is
        called now and then. For a snapshot of a store in use, export a `backup`.
        """
        name = self._tenant if tenant is None else keys.name(tenant, "tenant")
        return export.export(self._of(tenant), name, path, progress)

    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        tenant: str | None = None,
        dry_run: bool = False,
        progress: Advance | None = None,
    ) -> Imported:
        """Store everything of an export in the tenant, whatever tenant and store it came from.

        The file is verified first, and with `dry_run` only verified. What is there already is skipped, so an
        interrupted import is run again; a key that holds something else raises `Conflict` and is not overwritten.
        """
        return import_.import_(self._of(tenant), path, progress, dry=dry_run)

    def copy_from(self, other: Store, *, progress: Advance | None = None) -> Imported:
        """Store everything of another store's tenant here, as `import_` does: `new.store.copy_from(old.store)`."""
        return import_.copy(other._kernel, self._kernel, progress)

    def compare(self, other: Store, *, limit: int = 100, progress: Advance | None = None) -> list[Difference]:
        """Return up to `limit` rows that differ between this store's tenant and another's; an empty list if they are equal."""
        found = compare.differences(self._kernel, other._kernel, progress)
        return list(itertools.islice(found, min(limit, sys.maxsize)))

    def summary(self, *, progress: Advance | None = None) -> Summary:
        """Return the number of records, streams and entries of the tenant, and a digest of their contents."""
        return compare.summary(self._kernel, progress)

    @on_store
    def prune(
        self,
        keep: Duration | None = None,
        *,
        retention: Retention | None = None,
        scope: str | None = None,
        dry_run: bool = False,
    ) -> Work[Pruned]:
        """Remove what is older than `keep` ("30d"), or what a `Retention` no longer keeps; return how many of each kind.

        Journals of state, finished runs, ended tasks, old checkpoints (the newest stays) and the contents of expired
        threads. Without both, the client's own retention applies. With `scope` only the journal of that scope is pruned.
        With `dry_run` it only counts. Small commits; what is kept verifies. Run it again after a crash.
        """
        if keep is not None:
            retention = Retention(1, keep, journals=keep, runs=keep, tasks=keep, threads=keep)
        rule = retention or self._retention
        if rule is None:
            raise InvalidInput('Say what to keep, for example prune("30d"); nothing was removed.')
        return (yield from self._prune(rule, scope, dry=dry_run))

    @on_store
    def archive(
        self,
        older_than: Duration,
        to: str | os.PathLike[str] | None = None,
        *,
        kinds: Sequence[str] = ("threads", "runs", "checkpoints"),
        dry_run: bool = False,
    ) -> Work[ArchiveReport]:
        """Move old threads, finished runs and checkpoints to a folder or `s3://bucket/prefix`; return how many.

        Encrypted if the store is. Reading one brings it back; listings and last lines stay. The copy is complete and verified
        before anything is removed. It also removes the objects of what was deleted. With `dry_run` it only counts. Small
        commits; run it again after a crash. Without `to` it uses `$TENUTO_ARCHIVE`.
        """
        return (yield from self._archiving(older_than, to, tuple(kinds), dry=dry_run))

    def archived(self, kind: str | None = None, name: str | None = None) -> list[Archived]:
        """Return the archived parts: all, of a kind ("thread", "run", "checkpoint", "snapshot"), or of one thing."""
        if name is not None and kind is None:
            raise InvalidInput("With a name, pass its kind too, for example archived('run', 'trip-42').")
        return self._archived(kind, name)

    def _of(self, tenant: str | None) -> Backend:
        return self._kernel if tenant is None else self._view(keys.name(tenant, "tenant"))

    def rotate(self) -> Rotation:
        """Rotate the encryption keys of this tenant, durably: the first key of `encryption_key` protects it from then on.

        Every data key is encrypted with the first key, and a new data key seals what is written from then on; older keys
        of the list then open nothing. Stored values are not rewritten. Killed at any point everything stays readable, and
        the next call completes it.
        """
        return self._encryption().rotate(self._tenant)

    def destroy_user_key(self, user: str) -> bool:
        """Forget a user at once by destroying the key of what is the user's; return False if the user has none.

        It needs `Encryption(…, user_keys=True)`. What the key sealed reads as absent, in copies of the store too unless
        they hold the key themselves. Other processes may read it for 30 seconds more. Then the unreadable bytes are removed
        here, page by page; killed in between, another call removes them.
        """
        return self._encryption().destroy_user_key(self._tenant, user)

    def _encryption(self) -> Sealing:
        if self._sealing is None:
            raise InvalidInput(
                "This client has no encryption key. Open the store with encryption_key=. Nothing was done."
            )
        return self._sealing

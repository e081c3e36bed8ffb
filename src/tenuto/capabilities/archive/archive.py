"""Move parts of threads, runs and lineages of checkpoints to an archive and back (`parts` has the states).

Out: record the part (copying) · write the object, read it back and verify it · record that (leaving) · remove the rows ·
uncount their blobs (away). Back: store the blobs and count them (here) · load the rows. A crash between any two leaves the
rows in the store, in a verified object, or in both; the next `archive`, or the next read of a missing row, completes it.

Each change of state checks the part's record. So a reader who brings a part back stops the process that moves it out, which
may at most remove lines once more: their object stays, and the next reader loads them again. Checkpoints are removed under
that check; once they are back, object and record are deleted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tenuto.capabilities._core.base import Context
from tenuto.capabilities._core.blobs import Blobs, held_in
from tenuto.capabilities.archive import objects, places
from tenuto.capabilities.archive.objects import Content, Seals
from tenuto.capabilities.archive.parts import AWAY, COPYING, GONE, HERE, LEAVING, LOGS, Part, all_parts, item_key
from tenuto.capabilities.store import Archived, Row, batches, load
from tenuto.errors import AccessDenied, Conflict, Damaged, InvalidInput, NotFound, StorageUnavailable
from tenuto.kernel import codec
from tenuto.kernel.contract import AnyCheck, Check, Delete, Record, Sealing, Write
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work, perform

_AT_ONCE: Final = 250
"""Rows removed in one commit: others wait for one such commit at most."""
_PAUSE: Final = 0.002
_TRIES: Final = 12
ENVIRONMENT: Final = "TENUTO_ARCHIVE"


class TenantArchive:
    """The archived parts of one tenant.

    `place` replaces every recorded place, by default with that of the environment; "" allows none.
    """

    def __init__(
        self, context: Context, sealing: Sealing | None, tenant: str, place: str | os.PathLike[str] | None
    ) -> None:
        self._context = context
        self._kernel = context.kernel
        self._blobs = Blobs(context)
        self._seals = Seals(sealing, tenant)
        self._given = os.environ.get(ENVIRONMENT) or None if place is None else os.fspath(place)

    def parts(self, kind: str | None = None, name: str | None = None) -> list[Part]:
        """Return the parts of the tenant, a kind or a thing, by first number."""
        return all_parts(self._kernel, kind, name)

    def shown(self, kind: str | None = None, name: str | None = None) -> list[Archived]:
        """Return the public view of the parts."""
        return [part.shown() for part in self.parts(kind, name)]

    # -- out -------------------------------------------------------------------------------------------

    def copy(self, part: Part) -> Work[Part | None]:
        """Copy a part into its place and verify the copy; return it as leaving, or None if it was deleted meanwhile.

        `part` is new, or one whose copy was interrupted.
        """
        part = part._replace(object=part.object or secrets.token_hex(16))
        try:
            done = yield from commit_once(self._kernel, [Check(part.key, part.version)], [part.put(COPYING)])
        except Conflict:
            return None  # another process archives it
        part = part._replace(state=COPYING, version=done.versions[0], digest="")
        rows = self._rows(part)
        if rows is None:
            return None
        blobs = _references(rows)
        place = self._open(part)
        import tempfile  # noqa: PLC0415 - takes a while, and most programs never archive

        with tempfile.TemporaryDirectory(prefix="tenuto-") as folder:
            file = Path(folder) / "object"
            size, digest = objects.write(file, part, self._with_blobs(blobs, rows), self._seals)
            part = part._replace(size=size, digest=digest, blobs=sorted(blobs.items()))
            place.put(part.object, file)
        try:
            with self._fetched(part):
                pass  # complete, and equal to what was written
        except (Damaged, NotFound) as error:
            raise StorageUnavailable(
                f"The archive {part.place} did not return what was written to it ({error}). Nothing was removed from "
                "the store; archive again."
            ) from error
        return (yield from self._changed(part, LEAVING))

    def depart(self, part: Part) -> Work[bool]:
        """Remove the rows of a part that is leaving; return False if it is read meanwhile and stays."""
        yield from self._remove(part)
        return (yield from self._counted(part, AWAY, -1)) is not None

    def leave(self, part: Part) -> Work[Part | None]:
        """Record that a part which is here is leaving again; its object is there already."""
        return (yield from self._changed(part, LEAVING))

    def _remove(self, part: Part) -> Work[None]:
        if part.kind in LOGS:
            while found := self._kernel.entries(part.stream, limit=1):
                first = min(part.last + 1, found[0].number + _AT_ONCE)
                if not self._kernel.trim(part.stream, first):
                    return
                yield Sleep(_PAUSE)
            return
        numbers = [*part.numbers][::-1]  # from the newest on: what is left remains restorable
        for start in range(0, len(numbers), _AT_ONCE):
            wanted = [item_key(part, number) for number in numbers[start : start + _AT_ONCE]]
            there = [one for one in self._kernel.read(wanted) if one is not None]
            if there:
                checks = [Check(one.key, one.version) for one in there]
                removed: list[Write] = [Delete(one.key) for one in there]
                with contextlib.suppress(Conflict):  # `_counted` finds out
                    yield from commit_once(self._kernel, [Check(part.key, part.version), *checks], removed)
                yield Sleep(_PAUSE)

    def _rows(self, part: Part) -> list[Row] | None:
        """Return the rows of a part in the store, or None if one is missing."""
        if part.kind in LOGS:
            found = self._kernel.entries(part.stream, after=part.first - 1, limit=len(part.numbers))
            rows = [Row(None, part.stream, entry) for entry in found if entry.number in part.numbers]
        else:
            wanted = self._kernel.read([item_key(part, number) for number in part.numbers])
            rows = [Row(record) for record in wanted if record is not None]
        return rows if len(rows) == len(part.numbers) else None

    def _with_blobs(self, blobs: Counter[bytes], rows: Sequence[Row]) -> Iterator[Row]:
        for digest in sorted(blobs):
            for record in self._blobs.records(digest):
                yield Row(record)
        yield from rows

    # -- back ------------------------------------------------------------------------------------------

    def bring_back(self, kind: str, name: str, number: int) -> bool:
        """Store again what was archived of a thing from `number` on; return whether it is there now.

        Raise `StorageUnavailable` if the archive does not answer, `Damaged` if the object was changed.
        """
        return perform(self._returning(kind, name, number), self._context.clock)

    def bring_back_all(self, kind: str, name: str) -> Work[None]:
        """Store again all that was archived of a thing."""
        for part in self.parts(kind, name)[::-1]:
            if part.state in (LEAVING, AWAY, HERE):
                yield from self._returning(kind, name, part.first)

    def _returning(self, kind: str, name: str, number: int) -> Work[bool]:
        delays = backoff(_TRIES, first=0.005)
        tried = False
        while True:
            parts = self._readable(kind, name, number)
            if not parts:
                return tried
            first = self._first(parts[0], number)
            if first <= number:
                return True  # another process was faster
            try:
                for part in reversed(parts):
                    if part.first < first and not (yield from self._return(part)):
                        return False
            except Conflict:  # it is just being moved out, or brought back by another process
                pause = next(delays, None)
                if pause is None:
                    raise
                tried = True
                yield Sleep(pause)
            else:
                return True

    def _readable(self, kind: str, name: str, number: int) -> list[Part]:
        """Return the parts of a thing from a number on whose objects are complete."""
        try:
            found = self.parts(kind, name)
        except AccessDenied:  # an API key that is confined to some scopes
            if kind in LOGS:
                raise
            return []
        return [one for one in found if one.state in (LEAVING, AWAY, HERE) and number <= one.last]

    def _first(self, part: Part, number: int) -> int:
        """Return the first line that the store has; of checkpoints the wanted one, or the one after it if it is missing."""
        if part.kind in LOGS:
            found = self._kernel.entries(part.stream, limit=1)
            return found[0].number if found else 1 << 62
        return number if self._kernel.read([item_key(part, number)])[0] is not None else number + 1

    def _return(self, part: Part) -> Work[bool]:
        with self._fetched(part) as content:
            if not content.readable:
                return False
            if part.state == AWAY:
                yield from self._blobs.ensure(content.blobs())
            back = yield from (self._counted(part, HERE, 1) if part.state == AWAY else self._changed(part, HERE))
            if back is None:
                raise Conflict("The archived part was changed by another process. Retry.", [part.key])
            rows = [Row(record) for record in content.records]
            rows += [Row(None, part.stream, entry) for entry in content.entries]
            for batch in [*batches(rows)][::-1]:  # lines are loaded from the newest on: each batch links to the next
                load(self._kernel, batch)
        if part.kind not in LOGS:
            gone = yield from self._changed(back, GONE)
            if gone is not None:
                yield from self.drop(gone)
        return True

    # -- the end ---------------------------------------------------------------------------------------

    def end(self, kind: str, name: str) -> Work[None]:
        """Make all that was archived of a thing absent for good; a later `archive` removes the objects."""
        for part in self.parts(kind, name):
            while part.state != GONE:
                if (yield from self._changed(part, GONE)) is not None:
                    break
                again = [one for one in self.parts(kind, name) if one.first == part.first]
                if not again:
                    break
                part = again[0]  # noqa: PLW2901 - the same part, in another state

    def settle(self, kind: str, name: str) -> Work[None]:
        """Complete each interrupted move of a thing, so that its rows are whole in the store, or all in the archive."""
        for part in self.parts(kind, name):
            if part.state == LEAVING or (part.state == HERE and self._rows(part) is None):
                moving = yield from self._changed(part, LEAVING)
                if moving is None or not (yield from self.depart(moving)):
                    raise Conflict(f"The {kind} {name!r} is just being read or archived. Run it again.", [part.key])

    def drop(self, part: Part) -> Work[None]:
        """Delete a part's object, then its record."""
        self._open(part).delete(part.object)
        with contextlib.suppress(Conflict):  # another process did
            yield from commit_once(self._kernel, [Check(part.key, part.version)], [Delete(part.key)])

    # -- shared ----------------------------------------------------------------------------------------

    def _changed(
        self, part: Part, state: str, more: Sequence[AnyCheck] = (), writes: Sequence[Write] = ()
    ) -> Work[Part | None]:
        """Record a part's state if its record is unchanged; return it, or None."""
        try:
            done = yield from commit_once(
                self._kernel, [Check(part.key, part.version), *more], [part.put(state), *writes]
            )
        except Conflict as error:
            if part.key not in error.keys:
                raise
            return None
        return part._replace(state=state, version=done.versions[0], at=done.at)

    def _counted(self, part: Part, state: str, by: int) -> Work[Part | None]:
        """Record a part's state and count its references to blobs, or uncount them, in one commit."""
        delays = backoff(_TRIES, first=0.005)
        while True:
            try:
                checks, writes = self._blobs.counted({digest: by * count for digest, count in part.blobs})
                return (yield from self._changed(part, state, checks, writes))
            except Conflict:  # another writer counts a reference to one of them
                pause = next(delays, None)
                if pause is None:
                    raise
                yield Sleep(pause)

    @contextlib.contextmanager
    def _fetched(self, part: Part) -> Iterator[Content]:
        """Fetch an object into a file without a name, and verify it."""
        import tempfile  # noqa: PLC0415 - takes a while, and most programs never archive

        with tempfile.TemporaryFile(prefix="tenuto-") as file:
            try:
                for chunk in self._open(part).get(part.object):
                    file.write(chunk)
            except NotFound as error:
                known = self._kernel.read([part.key])[0]
                if known is None or known.version != part.version:
                    raise Conflict("The archived part was just brought back. Retry.", [part.key]) from error
                raise Damaged(
                    f"The archive {part.place} has lost the object {part.object} of the {part.kind} {part.name!r}. Restore it "
                    "from a backup of the archive."
                ) from error
            file.seek(0)
            yield Content(file, part, self._seals)

    def _open(self, part: Part) -> places.Place:
        place = self._given if self._given is not None else part.place
        if not place:
            raise InvalidInput(
                f"The {part.kind} {part.name!r} is archived in {part.place}, and this process may not read archives. Set "
                f"${ENVIRONMENT} for it, or read it with a client that opens the store itself."
            )
        return places.opened(places.normal(place))

    def target(self, to: str | os.PathLike[str] | None) -> str:
        """Return the recorded form of the place for new objects; raise `InvalidInput` without one, or without a key."""
        place = self._given if to is None else os.fspath(to)
        if not place:
            raise InvalidInput(f"Say where to archive: to=FOLDER or to='s3://bucket/prefix', or set ${ENVIRONMENT}.")
        figures = self._kernel.stats()
        inner = figures.get("store")
        encrypted = figures.get("encrypted") or (isinstance(inner, dict) and inner.get("encrypted"))
        if self._seals.sealing is None and encrypted:
            raise InvalidInput(
                "This store is encrypted, and this client does not have the key. Archive it where the key is; nothing was done."
            )
        normal = places.normal(place)
        if self._given and normal != places.normal(self._given):
            raise InvalidInput(
                f"${ENVIRONMENT}, or archive= of the client, is {self._given} and replaces every place, so nothing was written "
                f"to {normal}. Leave out one of the two."
            )
        places.opened(normal)  # an unknown option or a missing driver is an error before anything is done
        return normal


def _references(rows: Sequence[Row]) -> Counter[bytes]:
    """Return how often the rows refer to each blob."""
    found: Counter[bytes] = Counter()
    for row in rows:
        if row.entry is not None:
            if not row.entry.forgotten:
                found.update(held_in(codec.decode(row.entry.value)[4]))
        elif row.record is not None:
            found.update(part_references(row.record))
    return found


def part_references(record: Record) -> list[bytes]:
    """Return the blobs to which a checkpoint's record refers."""
    *_, held, _, blob = codec.decode(record.value)
    return [*held] if blob is None else [*held, blob]

"""A session: begin with what the last one reached, end with a progress document for the next one.

It has no keys of its own: it reads and writes a progress document, and a file of it if one is given. The end is one
commit, then the file. After a crash in the middle of a session the document has every change made until then.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final, Self

from tenuto.capabilities._core.base import Timed
from tenuto.capabilities.sessions import files
from tenuto.capabilities.sessions.digest import must_have_room
from tenuto.capabilities.sessions.handoffs import HandoffInfo, Handoffs
from tenuto.capabilities.sessions.markdown import Entry, Markdown, one_line
from tenuto.capabilities.sessions.progress import Progress, ProgressInfo
from tenuto.errors import TenutoError
from tenuto.kernel.work import Work, on_store

log = logging.getLogger("tenuto.sessions")
_ENDED: Final = "The last session ended by "
_ROOM: Final = 400
"""Bytes of the digest for pending handoffs."""


class Session(Timed):
    """A session on a task: `with agent.session("book-flight") as session: …`."""

    def __init__(
        self,
        progress: Progress,
        handoffs: Handoffs,
        *,
        file: str | os.PathLike[str] | None,
        commit: bool,
        limit: int,
    ) -> None:
        self._context = progress._context
        self._handoffs = handoffs
        self._file = file
        self._commit = commit
        self._limit = limit
        self.name = progress.name
        self.progress = progress
        """The progress document of the task."""
        self.digest = ""
        """What this session needs to know, from its beginning."""
        self.info: ProgressInfo | None = None
        """The progress document as data, from its beginning."""
        self.handoffs: list[HandoffInfo] = []
        """The handoffs that waited for this agent when it began."""

    @on_store
    def open(self) -> Work[None]:
        """Begin the session: take in the file, commit what a killed session left uncommitted, and make the digest."""
        must_have_room(self._limit)
        if self._file is not None and Path(self._file).exists():
            if self._commit:  # before the next change, so that each change has its own commit
                yield from files.write_file(self.progress, self._file, commit=True)
            else:
                yield from files.read_file(self.progress, self._file)
        self.info = self.progress.get()
        self.handoffs = self._handoffs.list(self._context.writer, status="pending")
        room = _ROOM if self.handoffs and self._limit > 2 * _ROOM else 0
        self.digest = self.progress.digest(self._limit - room)
        if room:
            shown = [f"- {one.id} from {one.sender}: {one_line(one.summary or '')[:60]}" for one in self.handoffs[:3]]
            more = f"Handoffs that wait ({len(self.handoffs)}):\n" + "\n".join(shown) + "\n"
            self.digest += more.encode()[:room].decode(errors="ignore")

    @on_store
    def close(self, error: BaseException | None = None) -> Work[None]:
        """End the session durably: record an error that ended it as the blocker, and write the file."""
        try:
            yield from self.progress._change(lambda doc: _ended(doc, error))
            if self._file is not None:
                yield from files.write_file(self.progress, self._file, commit=self._commit)
        except TenutoError as problem:
            if error is None:
                raise
            log.warning("the progress of %r was not written at the end of its session: %s", self.name, problem)

    def __enter__(self) -> Self:
        """Begin the session."""
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """End the session, also after an exception, which is raised again."""
        self.close(error)

    def __repr__(self) -> str:
        """Name the session."""
        return f"<session {self.name!r}>"


def _ended(doc: Markdown, error: BaseException | None) -> list[Entry]:
    """Note how a session ended; the note of an earlier one is replaced."""
    before = doc.paragraph("blocker")
    own = [] if before is None else [line for line in before.split("\n") if not line.startswith(_ENDED)]
    if error is None or (isinstance(error, SystemExit) and not error.code):
        if before is not None and len(own) != len(before.split("\n")):
            doc.write("blocker", "\n".join(own).strip() or None)
        return [Entry("ended", "the session")]
    said = f"{_ENDED}{type(error).__name__}: {one_line(error)[:300]}".rstrip(": ")
    doc.write("blocker", "\n".join([*own, said]).strip())
    return [Entry("ended", said.removeprefix("The last "), said)]

"""Progress: what a task has reached and what comes next, for the next session, other agents and people.

The document is Markdown text (`markdown.py` reads and changes it), so that people and agents can edit it in a file
(`files.py`) and nothing that they wrote is lost.

Keys, below the tenant: `(name, "progress", "document")` is the document; the stream `(name, "progress")` its history;
`("progress", "index", name)` lists documents; the keys of its files are those of `files.py`. Each change is one commit
that checks the document's version and writes document and history line. After a conflict the change is applied again to
the new document.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, Timed, stamp
from tenuto.capabilities._core.renewal import Renewer
from tenuto.capabilities.people import Inbox
from tenuto.capabilities.runs import RunRecord, to_stored
from tenuto.capabilities.sessions import digest, files, markdown, report
from tenuto.capabilities.sessions.markdown import Entry, Markdown, NewItem, Part, ProgressItem, Reasoned
from tenuto.capabilities.workflows import Workflow
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Append, Check, Put, Write
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work, on_store

_INDEX: Final = keys.pack("progress", "index")
_PAGE: Final = 500
_AT_ONCE: Final = 500
_ALONE: Final = 50
"""Above so many entries of the history, those of a kind with more than `_ALONE` become one: a commit takes 1,000 writes."""
Recall = Callable[[str], Sequence[str]]
"""Return the best memories for a question, as texts."""


class ProgressInfo(NamedTuple):
    """A progress document as data."""

    name: str
    goal: str | None
    items: list[ProgressItem]
    blocker: str | None
    next_action: str | None
    context: dict[str, str]
    ruled_out: list[Reasoned]
    decisions: list[Reasoned]
    questions: list[str]
    version: int
    """0 while nothing is stored."""
    changed_at: datetime | None
    writer: str | None
    markdown: str
    """The whole document."""

    @property
    def open(self) -> list[ProgressItem]:
        """Return the items that are not done."""
        return [one for one in self.items if not one.done]


class ProgressEvent(NamedTuple):
    """A change in the history of a progress document."""

    number: int
    at: datetime
    what: str
    """added, completed, goal, blocked, unblocked, next, noted, ruled out, decided, question, edited, started, ended."""
    text: str
    detail: Any
    """The evidence, the reason or the value, whole."""
    writer: str
    correlation_id: str | None


class Document(NamedTuple):
    """The stored document: its text, its version, and the last change."""

    text: str | None
    version: int
    writer: str | None = None
    changed: float | None = None


Change = Callable[[Markdown], Sequence[Entry]]
"""Change a document in place; return what was changed, empty for nothing."""


class Progress(Timed):
    """The progress document of a task. Every method is atomic, and durable when it returns."""

    def __init__(
        self,
        context: Context,
        renewer: Renewer,
        name: str,
        goal: str | None,
        inbox: Inbox,
        recall: Recall | None,
    ) -> None:
        self._context = context
        self._renewer = renewer
        self._inbox = inbox
        self._recall = recall
        self.name = keys.name(name, "progress")
        self._goal = None if goal is None else markdown.paragraph(goal, "A goal")
        self._stream = keys.named(name, "progress") + keys.pack("progress")
        self._key = self._stream + keys.pack("document")

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self) -> ProgressInfo:
        """Return the document as data."""
        return self._info(*self._current())

    def markdown(self) -> str:
        """Return the document as Markdown, with every line that people and agents wrote."""
        return self._current()[1].text

    def digest(self, limit: int = 2000) -> str:
        """Return what the next session needs, in at most `limit` bytes.

        It holds the goal, the blocker, the next action, what is done and open, decisions, open questions, and the
        best memories about the goal.
        """
        info = self.get()
        asked = [one.text for run in (self.name, f"workflow:{self.name}") for one in self._inbox.list(run=run)]
        query = " ".join(filter(None, (info.goal, info.next_action)))
        memories = self._recall(query) if self._recall is not None and query else ()
        return digest.digest(info, [*info.questions, *asked], memories, limit)

    def history(self, after: int = 0) -> list[ProgressEvent]:
        """Return the changes after a number, oldest first."""
        found: list[ProgressEvent] = []
        while page := self._context.kernel.entries(self._stream, after=after, limit=_PAGE):
            for entry in page:
                writer, correlation, what, text, detail = codec.decode(entry.value)
                at = moment(entry.written_at)
                found.append(ProgressEvent(entry.number, at, what, text, detail, writer, correlation))
            after = page[-1].number
        return found

    def _current(self) -> tuple[Document, Markdown]:
        """Return the stored document and its text; of a new one, the text with the goal of this handle."""
        record = self._context.kernel.read([self._key])[0]
        if record is None:
            stored = Document(None, 0)
            doc = Markdown.new(self.name)
            if self._goal is not None:
                doc.write("goal", self._goal)
        else:
            text, writer, changed = codec.decode(record.value)
            stored = Document(text, record.version, writer, changed)
            doc = Markdown(text)
        return stored, doc

    def _info(self, stored: Document, doc: Markdown) -> ProgressInfo:
        return ProgressInfo(
            self.name,
            doc.paragraph("goal"),
            doc.items(),
            doc.paragraph("blocker"),
            doc.paragraph("next"),
            doc.context(),
            doc.reasoned("ruled out"),
            doc.reasoned("decisions"),
            doc.bullets("questions"),
            stored.version,
            None if stored.changed is None else moment(stored.changed),
            stored.writer,
            doc.text,
        )

    # -- changing --------------------------------------------------------------------------------------------------

    @on_store
    def plan(self, items: Iterable[str | tuple[str, str]]) -> Work[list[ProgressItem]]:
        """Add items that are not in the document yet, in one commit; return all items.

        An item is a text, or a text with its acceptance test. Repeating the call adds nothing.
        """
        wanted = _planned(items)

        def planned(doc: Markdown) -> list[Entry]:
            known = doc.index()
            new = [one for key, one in wanted.items() if key not in known]
            if new:
                doc.add_all(new)
            return [Entry("added", one.text, one.test) for one in new]

        doc = yield from self._change(planned)
        return doc.items()

    @on_store
    def complete(self, item: str | int, *, evidence: Any) -> Work[ProgressItem]:
        """Mark an item as done, with the evidence that it is; return it.

        `item` is its text or its number; a text that is no item yet is added. An item that is done stays unchanged, so
        a repeated call changes nothing. `evidence` is text or data: a test's output, a link, a commit.
        """
        proof = to_stored(evidence)[0]
        if proof is None or proof is False or (isinstance(proof, str) and not proof.strip()):
            raise InvalidInput(
                "An item is done only with evidence; nothing was written. Pass what showed it, such as a test's output."
            )
        if isinstance(item, bool) or not isinstance(item, str | int):
            raise InvalidInput(f"An item is named by its text or its number, not {item!r:.80}.")
        done: list[ProgressItem] = []

        def ticked(doc: Markdown) -> list[Entry]:
            found = doc.find(item)
            if found is None and isinstance(item, int):
                raise NotFound(f"The progress {self.name!r} has no item {item}. Read its items with p.get().")
            if found is not None and found.done:
                done[:] = [found]
                return []
            found = found or doc.add(str(item), done=True)
            done[:] = [doc.tick(found, markdown.shown(proof))]
            return [Entry("completed", found.text, proof)]

        yield from self._change(ticked)
        return done[0]

    @on_store
    def goal(self, text: str) -> Work[None]:
        """Set the goal."""
        yield from self._write("goal", markdown.paragraph(text, "A goal"), "goal")

    @on_store
    def block(self, reason: str) -> Work[None]:
        """Set the blocker: why the task cannot go further now."""
        yield from self._write("blocker", markdown.paragraph(reason, "A blocker"), "blocked")

    @on_store
    def unblock(self) -> Work[None]:
        """Remove the blocker."""
        yield from self._write("blocker", None, "unblocked")

    @on_store
    def next(self, action: str) -> Work[None]:
        """Set the next action."""
        yield from self._write("next", markdown.paragraph(action, "A next action"), "next")

    @on_store
    def note(self, key: str, value: Any) -> Work[None]:
        """Set an entry of the context that the next session needs; the same key replaces it."""
        name = markdown.must_have(key, "A key")
        if ":" in name:
            raise InvalidInput(f"A key of the context must not contain a colon, as {key!r} does. Choose another key.")
        stored = to_stored(value)[0]

        def noted(doc: Markdown) -> list[Entry]:
            doc.bullet("context", f"{name}: {markdown.shown(stored)}", name)
            return [Entry("noted", name, stored)]

        yield from self._change(noted)

    @on_store
    def rule_out(self, option: str, *, why: str | None = None) -> Work[None]:
        """Record an option that does not work, so that no later session tries it again."""
        yield from self._list("ruled out", markdown.must_have(option, "An option"), why, "ruled out")

    @on_store
    def decide(self, decision: str, *, why: str | None = None) -> Work[None]:
        """Record a decision and its reason."""
        yield from self._list("decisions", markdown.must_have(decision, "A decision"), why, "decided")

    @on_store
    def question(self, text: str) -> Work[None]:
        """Record an open question for the next session. To ask a person, use the inbox."""
        yield from self._list("questions", markdown.must_have(text, "A question"), None, "question")

    @on_store
    def follow(self, source: RunRecord | Workflow) -> Work[ProgressInfo]:
        """Bring the document up to date with a run's record or a workflow, in one commit; return it.

        Steps become items, and their results the evidence. What people or agents wrote stays.
        """
        doc = yield from self._change(lambda doc: report.follow(doc, source))
        return self._info(self._current()[0], doc)

    # -- files -----------------------------------------------------------------------------------------------------

    @on_store
    def write(self, path: str | os.PathLike[str], *, commit: bool = False) -> Work[bool]:
        """Write the document to a file and take in what was edited there; return whether the file changed.

        A path that ends in `.json` gets a feature list: items as `description`, with `steps` and `passes`. With
        `commit` the file is also committed to git, with a message that names the change ("Completed: …"). Raise
        `Conflict` if the same lines were changed both in the file and in the store.
        """
        return (yield from files.write_file(self, path, commit=commit))

    # -- commits ---------------------------------------------------------------------------------------------------

    def _write(self, part: Part, text: str | None, what: str) -> Work[None]:
        def written(doc: Markdown) -> list[Entry]:
            if doc.paragraph(part) == text:
                return []
            doc.write(part, text)
            return [Entry(what, markdown.shown(text or ""), text)]

        yield from self._change(written)

    def _list(self, part: Part, text: str, why: str | None, what: str) -> Work[None]:
        def listed(doc: Markdown) -> list[Entry]:
            doc.bullet(part, markdown.with_reason(text, why))
            return [Entry(what, text, why)]

        yield from self._change(listed)

    def _change(self, change: Change) -> Work[Markdown]:
        """Change the document in one commit; return it. A change that leaves the text equal is not stored."""
        delays = backoff()
        while True:
            stored, doc = self._current()
            entries = change(doc)
            if doc.text == stored.text or not entries:
                return doc
            try:
                yield from commit_once(
                    self._context.kernel, [Check(self._key, stored.version)], self._writes(stored, doc.text, entries)
                )
            except Conflict:
                yield Sleep(next(delays))
            else:
                return doc

    def _writes(self, stored: Document, text: str, entries: Sequence[Entry]) -> list[Write]:
        value = codec.encode([text, self._context.writer, self._context.kernel.now()])
        index = _INDEX + keys.named(self.name, "progress")
        first: list[Write] = [Put(index, codec.encode(None))] if stored.version == 0 else []
        lines = [Append(self._stream, codec.encode([*stamp(self._context), *entry])) for entry in _few(entries)]
        return [Put(self._key, value), *first, *lines]

    def __repr__(self) -> str:
        """Name the document."""
        return f"<progress {self.name!r}>"


def _planned(items: Iterable[str | tuple[str, str]]) -> dict[str, NewItem]:
    """Return the items to plan, validated, by `key_of` their text."""
    found: dict[str, NewItem] = {}
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise InvalidInput(f"items must be a list of texts, not {items!r:.80}; nothing was written.")
    for one in items:
        pair = isinstance(one, tuple | list) and len(one) == 2
        text, test = (one[0], one[1]) if pair else (one, None)
        if test is not None:
            test = markdown.must_have(test, "An acceptance test")
        new = NewItem(markdown.must_have(text, "An item"), test)
        found.setdefault(markdown.key_of(new.text), new)
    return found


def _few(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries; if there are too many for a commit, those of a frequent kind as one."""
    if len(entries) <= _AT_ONCE:
        return entries
    found: list[Entry] = []
    for what in dict.fromkeys(one.what for one in entries):
        some = [one for one in entries if one.what == what]
        texts = [one.text for one in some]
        found += some if len(some) <= _ALONE else [Entry(what, f"{len(some)} items", texts)]
    return found


def names(context: Context) -> list[str]:
    """Return the names of all progress documents, sorted."""
    found: list[str] = []
    after: bytes | None = None
    while page := context.kernel.scan(_INDEX, after=after, limit=_PAGE):
        found += [str(keys.unpack(one.key)[-1]) for one in page]
        after = page[-1].key
    return found

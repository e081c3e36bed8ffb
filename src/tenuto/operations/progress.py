"""Operations on progress documents."""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

from tenuto.capabilities._core.base import page_after
from tenuto.capabilities.sessions import ProgressInfo, ProgressItem
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, NotFound
from tenuto.operations.table import Done, operation

Name = Annotated[str, "Name of the progress document"]
_DIGITS: Final = 10
"""A number with more digits is a text: no document has so many items."""


class ProgressLine(NamedTuple):
    """A progress document in a list."""

    name: str
    done: int
    items: int
    blocker: str | None
    next_action: str | None


class NextAction(NamedTuple):
    """The next action of a task."""

    next_action: str | None


@operation("progress list", "name", "done", "items", "blocker", "next_action")
def progress_list(
    agent: Tenuto,
    *,
    limit: Annotated[int, "Maximum number of rows"] = 100,
    after: Annotated[str | None, "Start after the one with this name"] = None,
) -> list[ProgressLine]:
    """List the progress documents."""
    names = page_after(agent._progress_names(), lambda name: name, after, limit)
    found = [agent.progress(name).get() for name in names]
    return [_line(one) for one in found]


@operation("progress show")
def progress_show(agent: Tenuto, name: Name) -> ProgressInfo:
    """Show a progress document as Markdown; with --json as data."""
    return _stored(agent, name)


@operation("progress next")
def progress_next(agent: Tenuto, name: Name) -> NextAction:
    """Show the next action, or the first open item if none is set."""
    info = _stored(agent, name)
    first = info.open[0].text if info.open else None
    return NextAction(info.next_action or first)


@operation("progress add", writes=True)
def progress_add(
    agent: Tenuto,
    name: Name,
    item: Annotated[str, "Text of the item"],
    *,
    test: Annotated[str | None, "What must hold before it is done"] = None,
) -> list[ProgressItem]:
    """Add an item, unless there is one of this text."""
    return agent.progress(name).plan([item if test is None else (item, test)])


@operation("progress set", writes=True)
def progress_set(
    agent: Tenuto,
    name: Name,
    *,
    goal: Annotated[str | None, "The goal"] = None,
    next: Annotated[str | None, "The next action"] = None,  # noqa: A002 - the option's name
    blocker: Annotated[str | None, 'Why it cannot go further; "none" removes it'] = None,
) -> ProgressInfo:
    """Set the goal, the next action or the blocker."""
    document = agent.progress(name)
    if goal is not None:
        document.goal(goal)
    if next is not None:
        document.next(next)
    if blocker is not None:
        document.unblock() if blocker.strip().lower() == "none" else document.block(blocker)
    return document.get()


def _place(item: str) -> int | str:
    """Return the number of an item, or its text."""
    return int(item) if item.isdecimal() and len(item) < _DIGITS else item


@operation("progress done", writes=True)
def progress_done(
    agent: Tenuto,
    name: Name,
    item: Annotated[str, "Text or number of the item"],
    *,
    evidence: Annotated[Any, "What showed that it is done, JSON or text"],
) -> ProgressItem:
    """Mark an item as done, with evidence."""
    return agent.progress(name).complete(_place(item), evidence=evidence)


@operation("progress write", writes=True)
def progress_write(
    agent: Tenuto,
    name: Name,
    path: Annotated[str, "File to write: Markdown, or a feature list if it ends in .json"] = "PROGRESS.md",
    *,
    commit: Annotated[bool, "Commit the file to git"] = False,
) -> Done:
    """Write a progress document to a file, and take in what was edited there."""
    _stored(agent, name)
    return Done(agent.progress(name).write(path, commit=commit))


@operation("progress read", writes=True)
def progress_read(
    agent: Tenuto,
    path: Annotated[str, "File to read"],
    *,
    name: Annotated[str | None, "Name of the document; default: the title"] = None,
) -> ProgressInfo:
    """Read a progress file into the store, also one that was edited by hand."""
    return agent.read_progress(path, name).get()


@operation("progress update", writes=True)
def progress_update(  # noqa: C901, PLR0913 - the parts of a document
    agent: Tenuto,
    name: Name,
    *,
    goal: Annotated[str | None, "The goal of the task"] = None,
    add: Annotated[list[str] | None, "Items to add, as a JSON list of texts"] = None,
    done: Annotated[str | None, "Text or number of an item that is done; needs evidence"] = None,
    evidence: Annotated[str | None, "What showed that it is done, such as a test's output"] = None,
    next: Annotated[str | None, "The next action"] = None,  # noqa: A002 - the option's name
    blocker: Annotated[str | None, 'Why it cannot go further; "none" removes it'] = None,
    decided: Annotated[str | None, "A decision, with its reason"] = None,
    ruled_out: Annotated[str | None, "What was tried and does not work, with its reason"] = None,
) -> ProgressLine:
    """Update a progress document: items, evidence, next action, blocker, decisions. Repeating it changes nothing.

    Each part is a commit of its own: after a crash between them, repeat the call.
    """
    document = agent.progress(name)
    if done is not None and not (evidence or "").strip():
        raise InvalidInput("An item is done only with evidence; nothing was written. Pass what showed it.")
    if evidence is not None and done is None:
        raise InvalidInput("evidence belongs to an item that is done; nothing was written. Pass done= too.")
    if add is not None and (not isinstance(add, list) or not all(isinstance(one, str) and one.strip() for one in add)):
        raise InvalidInput('add must be a list of texts, such as ["write the test"]; nothing was written.')
    if goal is not None:
        document.goal(goal)
    if add:
        document.plan(add)
    if done is not None:
        document.complete(_place(done), evidence=evidence)
    if blocker is not None:
        document.unblock() if blocker.strip().lower() == "none" else document.block(blocker)
    if decided is not None:
        document.decide(decided)
    if ruled_out is not None:
        document.rule_out(ruled_out)
    if next is not None:
        document.next(next)
    return _line(document.get())


def _stored(agent: Tenuto, name: str) -> ProgressInfo:
    info = agent.progress(name).get()
    if not info.version:
        raise NotFound(f"There is no progress document {name!r}. List them with: tenuto progress list")
    return info


def _line(one: ProgressInfo) -> ProgressLine:
    return ProgressLine(one.name, len(one.items) - len(one.open), len(one.items), one.blocker, one.next_action)

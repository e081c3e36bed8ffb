"""The digest for a new session: progress, open work, pending questions, the last session, the best memories."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Final, NamedTuple

from tenuto.capabilities.runs import RunInfo
from tenuto.capabilities.sessions import Progress, ProgressInfo
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput
from tenuto.kernel.durations import moment
from tenuto.operations.last_session import WORKING, noted
from tenuto.operations.progress import _stored
from tenuto.operations.table import operation

_LEAST: Final = 200
_EXAMINED: Final = 2_000
"""The runs that are looked at: the digest is for the start of a session, and must not take seconds."""
_RECENT: Final = timedelta(days=7)
_OPEN: Final = ("in_doubt", "interrupted", "failed", "waiting")


class Digest(NamedTuple):
    """What a new session needs to know."""

    text: str


@operation("resume")
def resume(
    agent: Tenuto,
    name: Annotated[str | None, "Name of a progress document; default: everything that is open"] = None,
    *,
    limit: Annotated[int, "Most bytes to print"] = 2000,
    brief: Annotated[bool, "Without memories: faster if there are many"] = False,
) -> Digest:
    """Print what a new session needs: progress, next actions, open runs, pending questions, memories.

    Prints nothing if there is nothing, so that it can be used in a hook.
    """
    if name is not None:
        _stored(agent, name)
        said = last_said(agent, name)
        return Digest(_document(agent, name, brief=brief).digest(max(limit - _size(said), limit // 2)) + said)
    if limit < _LEAST:
        raise InvalidInput(f"limit must be at least {_LEAST} bytes, not {limit}.")
    documents = _active(agent, brief=brief)
    names = {info.name for _, info in documents}
    parts = [
        *_questions(agent, names),
        *_runs(agent, names),
        *_workflows(agent, names),
        *filter(None, [last_said(agent)]),
    ]
    reserved = min(sum(map(_size, parts)), limit // 2 if documents else limit)
    text = ""
    for document, _ in documents:
        room = limit - reserved - _size(text) - 1
        if room < _LEAST:
            break
        text += ("\n" if text else "") + document.digest(room)
    if not brief and "\nMemories:\n" not in text:  # none is about the goals
        parts += _memories(agent)
    text += "\n" if text and parts else ""
    for part in parts:
        text += _cut(part, limit - _size(text))
    return Digest(text.rstrip("\n") + "\n" if text else "")


def _document(agent: Tenuto, name: str, *, brief: bool) -> Progress:
    found = agent.progress(name)
    if brief:
        found._recall = None
    return found


def _active(agent: Tenuto, *, brief: bool) -> list[tuple[Progress, ProgressInfo]]:
    """Return the documents with open work, the last changed first."""
    documents = [_document(agent, one, brief=brief) for one in agent._progress_names()]
    infos = [(one, one.get()) for one in documents]
    active = [(one, info) for one, info in infos if info.open or info.blocker or info.next_action]
    return sorted(active, key=lambda both: str(both[1].changed_at), reverse=True)


def _questions(agent: Tenuto, names: set[str]) -> Iterator[str]:
    asked = [one for one in agent.inbox.list() if one.run is None or _task(one.run) not in names]
    if asked:
        lines = [f"- {one.text} (id {one.id}{f', to {one.to}' if one.to else ''})" for one in asked]
        yield _listed(f"Waiting for an answer ({len(asked)})", lines)


def _runs(agent: Tenuto, names: set[str]) -> Iterator[str]:
    found = agent.runs.list(limit=_EXAMINED)
    since = moment(agent.kernel.now()) - _RECENT
    for status in _OPEN:
        some = [one for one in found if one.status == status and _task(one.id) not in names and _counts(one, since)]
        if some:
            some.sort(key=lambda one: one.updated_at, reverse=True)
            shown = ", ".join(one.id for one in some[:5]) + (f", … {len(some) - 5} more" if len(some) > 5 else "")
            yield f"Runs {status.replace('_', ' ')} ({len(some)}): {shown}\n"


def _counts(run: RunInfo, since: object) -> bool:
    """Return whether a run is open work: a failed one only for a week, one of a workflow not apart from it."""
    old = run.status == "failed" and run.updated_at < since  # type: ignore[operator]
    return not old and not run.id.startswith("workflow:")


def _workflows(agent: Tenuto, names: set[str]) -> Iterator[str]:
    active = [info for one in agent.workflows.list("active", limit=20) if (info := one.info()).name not in names]
    if active:
        lines = [f"- {one.name}: {one.status}, {one.progress:.0%}, next {one.next_step}" for one in active]
        yield _listed(f"Workflows ({len(active)})", lines)


def last_said(agent: Tenuto, name: str | None = None) -> str:
    """Return what the last session said, of a progress document or of all, as a line; empty if there is nothing."""
    entry = noted(agent, name)
    if entry is None:
        return ""
    said = " ".join(str(entry.value["said"]).split())
    how = ", not ended) was at" if entry.value.get("moment") == WORKING else ") said"
    return f"The last session ({entry.updated_at:%Y-%m-%d %H:%M} UTC{how}: {_cut(said, 500)}\n"


def _memories(agent: Tenuto) -> Iterator[str]:
    newest = agent.memory._newest(5)
    if newest:
        yield _listed("Newest memories", [f"- {one.text}" for one in newest])


def _task(run: str) -> str:
    return run.removeprefix("workflow:")


def _listed(heading: str, lines: list[str]) -> str:
    more = [f"- … {len(lines) - 5} more"] if len(lines) > 5 else []
    return "\n".join([f"{heading}:", *(_cut(" ".join(one.split()), 240) for one in lines[:5]), *more]) + "\n"


def _cut(text: str, size: int) -> str:
    """Return a text of at most `size` bytes, cut between characters."""
    raw = text.encode()
    if len(raw) <= size:
        return text
    return raw[: size - 3].decode(errors="ignore") + "…" if size > 20 else ""


def _size(text: str) -> int:
    return len(text.encode())

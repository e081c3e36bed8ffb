"""The progress of a run or a workflow, made from its record: its steps become items, with results as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tenuto.capabilities.runs import RunRecord, StepInfo
from tenuto.capabilities.sessions import markdown
from tenuto.capabilities.sessions.markdown import Entry, Markdown, NewItem
from tenuto.capabilities.workflows import Workflow
from tenuto.errors import InvalidInput

_OURS: Final = ("Run ", "Workflow ")
"""How a blocker begins that was written here, and is removed here."""


class _Line(NamedTuple):
    text: str
    done: bool
    evidence: Any


def follow(doc: Markdown, source: RunRecord | Workflow) -> list[Entry]:
    """Bring a document up to date with a run or workflow: new items, items that are done, blocker, next action."""
    if not isinstance(source, Workflow | RunRecord):
        raise InvalidInput(
            f"A document follows a run's record or a workflow, not {source!r:.80}. Pass agent.runs.get(id)."
        )
    if isinstance(source, Workflow):
        lines, blocker, name = _of_workflow(source), _workflow_blocker(source), f"Workflow {source.name!r}"
    else:
        lines, blocker, name = _of_run(source), _run_blocker(source), f"Run {source.id!r}"
    entries: list[Entry] = []
    known = doc.index()
    new: dict[str, NewItem] = {}
    done: dict[int, str] = {}
    for line in lines:
        key, text = markdown.key_of(line.text), markdown.must_have(line.text, "An item")
        proof = markdown.shown(line.evidence) if line.done else None
        item = known.get(key)
        if item is None and key not in new:
            new[key] = NewItem(text, None, line.done, proof)
            entries.append(Entry("added", text))
            entries += [Entry("completed", text, line.evidence)] if line.done else []
        elif item is not None and proof is not None and not item.done and item.number not in done:
            done[item.number] = proof
            entries.append(Entry("completed", item.text, line.evidence))
    doc.tick_all(done)
    if new:
        doc.add_all([*new.values()])
    if doc.paragraph("goal") is None:
        doc.write("goal", f"{name} completes")
        entries.append(Entry("goal", f"{name} completes"))
    return [*entries, *_state(doc, blocker, next((line.text for line in lines if not line.done), None), name)]


def _state(doc: Markdown, blocker: str | None, left: str | None, name: str) -> list[Entry]:
    """Set the blocker and the next action, unless people or agents wrote their own."""
    entries: list[Entry] = []
    before = doc.paragraph("blocker")
    if blocker != before and (before is None or before.startswith(_OURS)):
        doc.write("blocker", blocker)
        entries.append(Entry("unblocked" if blocker is None else "blocked", blocker or ""))
    action = None if left is None else f"{name}: {left}"
    planned = doc.paragraph("next")
    if action != planned and (planned is None or planned.startswith(_OURS)):
        doc.write("next", action)
        entries.append(Entry("next", action or "nothing is left"))
    return entries


def _of_run(run: RunRecord) -> list[_Line]:
    """Return a line for each step, and one for all items of a map."""
    lines: dict[str, _Line] = {}
    counts: dict[str, int] = {}
    for step in run.steps:
        if step.kind == "map":
            same = [one for one in run.steps if one.kind == "map" and one.name == step.name]
            over = all(one.status == "completed" for one in same)
            done = over and (run.status == "completed" or run.steps[-1] not in same)
            lines[step.name] = _Line(step.name, done, f"{len(same)} items")
            continue
        counts[step.name] = counts.get(step.name, 0) + 1
        text = _named(step, counts[step.name])
        lines[text] = _Line(text, step.status == "completed", "completed" if step.result is None else step.result)
    return list(lines.values())


def _named(step: StepInfo, number: int) -> str:
    if step.key is not None:
        return f"{step.name} [{step.key}]"
    return step.name if number == 1 else f"{step.name} number {number}"


def _run_blocker(run: RunRecord) -> str | None:
    if run.status == "failed":
        return f"Run {run.id!r} failed: {run.error}"
    if run.status in ("waiting", "in_doubt"):
        waits: Sequence[str] = [f"{step.name} {step.status.replace('_', ' ')}" for step in run.steps if _is_open(step)]
        return f"Run {run.id!r} waits: {', '.join(waits) or run.status}"
    return None


def _is_open(step: StepInfo) -> bool:
    return step.status in ("waiting", "in_doubt")


def _of_workflow(workflow: Workflow) -> list[_Line]:
    done = ("completed", "skipped")
    return [
        _Line(f"{one.step}. {one.action}" if one.step is not None else one.action, one.status in done, _proof(one))
        for one in workflow.steps
    ]


def _proof(step: Any) -> Any:
    return step.status if step.result is None else step.result


def _workflow_blocker(workflow: Workflow) -> str | None:
    for one in workflow.steps:
        if one.status in ("failed", "blocked"):
            return f"Workflow {workflow.name!r}: {one.action} {one.status}: {one.error or one.reason}"
    return None

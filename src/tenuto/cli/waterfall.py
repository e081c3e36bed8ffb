"""Draw a run as a waterfall: one line per step, with a bar from its start to its end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from tenuto.capabilities.runs import RunRecord, StepInfo, dollars
from tenuto.cli.render import styled, text, width

_MARKS = {"completed": ("✓", "green"), "failed": ("✗", "red"), "running": ("▸", "cyan"), "in_doubt": ("?", "magenta"), "waiting": ("…", "yellow")}  # fmt: skip


def waterfall(run: RunRecord) -> list[str]:
    """Return the lines of the waterfall."""
    lines = [
        f"{click.style(run.id, bold=True)}  {styled('status', run.status, run.status)}"
        + (f"  {run.function}" if run.function else "")
        + (f"  of {run.user}" if run.user else "")
        + (f"  forked from {run.forked_from}" if run.forked_from else "")
    ]
    if not run.steps:
        return [*lines, "  no steps yet", *_end(run)]
    first = min(step.started for step in run.steps)
    last = max((step.ended or step.started) for step in run.steps)
    whole = max((last - first).total_seconds(), 0.001)
    names = [_name(step) for step in run.steps]
    wide = min(max(map(len, names)), 40)
    room = max(width() - wide - 46, 10)
    for step, name in zip(run.steps, names, strict=True):
        mark, colour = _MARKS[step.status]
        bar = _bar(step, (step.started - first).total_seconds() / whole * room, room / whole, room)
        took = f"{step.seconds:9.2f} s" if step.ended and step.kind in ("step", "map") else " " * 11
        shown = name if len(name) <= wide else name[: wide - 1] + "…"
        lines.append(
            f"  {click.style(mark, fg=colour)} {shown.ljust(wide)} {took}  {click.style(bar.ljust(room), fg=colour)}  {_notes(step)}".rstrip()
        )
    return [*lines, *_end(run)]


def _bar(step: StepInfo, begin: float, scale: float, room: int) -> str:
    """Return a step's bar. The last attempt is solid; earlier attempts, and the time in between, are faint."""
    at = min(int(begin), room - 1)
    length = min(max(1, int(((step.ended or step.started) - step.started).total_seconds() * scale)), room - at)
    solid = max(1, min(length, int(step.seconds * scale))) if step.attempts > 1 and step.ended else length
    return " " * at + "░" * (length - solid) + "█" * solid


def _name(step: StepInfo) -> str:
    which = f" [{step.key}]" if step.key is not None else f" #{step.occurrence}" if step.occurrence > 1 else ""
    own = step.kind in ("step", "map") or step.kind == step.name
    return f"{step.name if own else f'{step.kind} {step.name}'}{which}"


def _notes(step: StepInfo) -> str:
    notes = []
    if step.attempts > 1:
        notes.append(f"{step.attempts} attempts")
    if step.repeated_in_doubt:
        notes.append(click.style(f"{step.repeated_in_doubt} in doubt", fg="magenta"))
    said = next((one for one in reversed(step.repeats) if one.said_by is not None), None)
    if said is not None:
        notes.append(click.style(f"{said.said_by} said at {text(said.said_at)}: not happened", fg="magenta"))
    if step.reused:
        notes.append(click.style(f"reused {step.reused}x", fg="blue"))
    if step.verified:
        notes.append("verified" if step.verified_by == "verify" else f"verified by {step.verified_by}")
    if step.status == "in_doubt" and step.question:
        notes.append(f"answer {step.question}")
    elif step.status == "waiting":
        notes.append(f"until {text(step.until)}" if step.until else "waits")
    if step.cost:
        notes.append(dollars(step.cost))
    if step.error is not None:
        notes.append(click.style(text(str(step.error))[:60], fg="red"))
    return ", ".join(notes)


def _running(run: RunRecord) -> list[StepInfo]:
    return [step for step in run.steps if step.status == "running"]


def _in_step(step: StepInfo) -> str:
    since = f"{_name(step)} since {text(step.started)}"
    if step.heartbeat is None:
        return since
    ago = max((datetime.now(UTC) - step.heartbeat).total_seconds(), 0.0)
    return f"{since}, last heartbeat {ago:.0f} s ago" + ("" if step.detail is None else f": {text(step.detail)}")


def _end(run: RunRecord) -> list[str]:
    said: list[tuple[str, Any]] = [
        ("held by", None if run.holder is None else f"{run.holder} since {text(run.holder.since)}"),
        ("in the step", ", ".join(map(_in_step, _running(run))) or None),
        ("resumed", f"{len(run.resumes)} times" if len(run.resumes) > 1 else "once" if run.resumes else None),
        ("waits for", ", ".join(f"{kind} {ref}" for kind, ref in run.waits_for) or None),
        ("due", None if run.due is None else f"{run.due}; no worker has taken it yet"),
        ("failures", f"{run.failures}; retried" if run.failures else None),
        ("wakes", run.wakes if run.status == "waiting" else None),
        ("cost", dollars(run.cost) if run.cost else None),
        ("result", run.result),
        ("error", None if run.error is None else str(run.error)),
    ]
    lines = [f"  {click.style(name, dim=True)} {text(value)[:500]}" for name, value in said if value is not None]
    trace = run.error.traceback if run.error is not None else None
    return [*lines, *(f"    {click.style(text(line), dim=True)}" for line in (trace or "").splitlines())]

"""The checklist: run every check on a target, and collect the findings into a report."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tenuto.audit import checkpointing, concurrency, data, performance
from tenuto.audit.bench import CHECKS, Bench
from tenuto.audit.content import content_findings
from tenuto.audit.findings import Finding, Report, not_tested
from tenuto.audit.replicas import Gone, Refused, Target
from tenuto.audit.report.plain import summary
from tenuto.audit.rules import RULES
from tenuto.audit.scratch import kind_of, scratch
from tenuto.backends import default_path
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, TenutoError

__all__ = ["audit_store", "audit_target", "checkpointing", "concurrency", "data", "performance", "selection"]
_AREAS = ("data", "performance", "concurrency", "checkpointing", "content")
Step = Callable[[int, int, str], None]
_HEAVY = (
    "langgraph.checkpoint.memory",
    "langgraph.checkpoint.sqlite",
    "langgraph.checkpoint.postgres",
    "agents.memory",
    "redis",
)


def selection(only: Collection[str], skip: Collection[str]) -> Callable[[str], bool]:
    """Return whether a code is chosen; a prefix such as T02 chooses all codes that begin with it."""
    for one in (*only, *skip):
        if not any(code.startswith(one.upper()) for code in RULES):
            raise InvalidInput(f"There is no rule {one!r}. tenuto explain lists all rules.")
    chosen, left_out = tuple(one.upper() for one in only), tuple(one.upper() for one in skip)
    return lambda code: (not chosen or code.startswith(chosen)) and not (left_out and code.startswith(left_out))


def run_checklist(
    target: Target, wanted: Callable[[str], bool], seconds: float, step: Step
) -> tuple[str, list[Finding]]:
    """Return the kind of a target and the findings of the checklist."""
    bench = Bench(target, seconds=seconds, wanted=wanted)
    try:
        bench.run(step)
    except Refused as error:
        if error.kind == "InvalidInput":
            raise InvalidInput(error.text) from error
        raise InvalidInput(f"The target could not be opened: {error}. Nothing was tested.") from error
    except Gone as error:
        raise TenutoError(f"A process with the target did not start: {error}. Nothing was tested.") from error
    return bench.kind, sorted(bench.found.values(), key=lambda one: one.code)


def audit_target(
    factory: str,
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    seconds: float = 1.0,
    step: Step = lambda _at, _total, _code: None,
) -> Report:
    """Run the checklist on what MODULE:FACTORY returns, in child processes; return the report.

    The factory is called once in each process. It returns an object with get(key) and set(key, value), a LangGraph
    checkpointer or store, an OpenAI session, or a tenuto client. `seconds` is the time of each level of load.
    """
    wanted, began = selection(only, skip), time.monotonic()
    target = Target(factory=factory, preload=_libraries(factory))
    kind, findings = run_checklist(target, wanted, seconds, step)
    return reported(target.name, kind, findings, began)


def audit_store(
    url: str | None = None,
    *,
    tenant: str = "default",
    only: Collection[str] = (),
    skip: Collection[str] = (),
    seconds: float = 1.0,
    step: Step = lambda _at, _total, _code: None,
) -> Report:
    """Audit a tenuto store: the checklist on a scratch store next to it, and its content; return the report.

    Nothing of the store is changed but the summary of its last audit. `seconds` is the time of each level of load.
    """
    wanted, began = selection(only, skip), time.monotonic()
    text = os.fspath(url or os.environ.get("TENUTO_URL") or default_path())
    kind, findings = "tenuto store", []
    if kind_of(text) == "http":
        refused = (
            "It needs processes of its own on a scratch store: run tenuto audit where the server runs, with its URL."
        )
        findings = [not_tested(code, refused) for code in sorted(_codes()) if wanted(code)]
    elif any(map(wanted, _codes())):
        with scratch(text, tenant) as target:
            kind, findings = run_checklist(target, wanted, seconds, step)
    with Tenuto("audit", text, tenant=tenant) as agent:
        content = content_findings(agent, wanted, lambda at, total: step(at, total, "T101"))
        both = sorted([*findings, *content], key=lambda one: (_AREAS.index(one.rule.area), one.code))
        report = reported(Target(text).name, kind, both, began)
        agent.audits.record(summary(report))
    return report


def _codes() -> list[str]:
    return [code for codes, _ in CHECKS for code in codes]


def reported(name: str, kind: str, findings: Iterable[Finding], began: float) -> Report:
    """Return a report of now."""
    took = round(time.monotonic() - began, 1)
    return Report(name, kind, datetime.now(UTC), took, version("tenuto"), tuple(findings))


def _libraries(factory: str) -> tuple[str, ...]:
    """Return modules of known libraries that a factory's module names: replicas then share the time of their import."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        spec = importlib.util.find_spec(factory.partition(":")[0])
    except (ImportError, ValueError):
        return ()
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ()
    text = Path(spec.origin).read_text(errors="replace")
    return tuple(name for name in _HEAVY if name in text and importlib.util.find_spec(name.partition(".")[0]))

"""Operations on alerts and figures."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from tenuto.capabilities.alerts import FIGURES, Alert, Growth
from tenuto.client import Tenuto
from tenuto.operations.table import Done, Number, operation


class Figure(NamedTuple):
    """A figure of the store."""

    figure: str
    value: float
    about: str


@operation("alerts list", "name", "to", "since", "question")
def alerts_list(agent: Tenuto) -> list[Alert]:
    """List the alerts, and which conditions hold."""
    return agent.alerts.list()


@operation("alerts add", writes=True)
def alerts_add(
    agent: Tenuto,
    when: Annotated[str, 'Condition, e.g. "lookup.p95 > 100ms for 5m"'],
    to: Annotated[str, "Person or group"],
    *,
    name: Annotated[str | None, "Name of the alert; default: the condition"] = None,
) -> Alert:
    """Notify a person or group when a condition has held for a time."""
    return agent.alerts.add(when, to, name=name)


@operation("alerts remove", writes=True)
def alerts_remove(agent: Tenuto, name: Annotated[str, "Name of the alert"]) -> Done:
    """Remove an alert."""
    return Done(agent.alerts.remove(name))


@operation("alerts check", writes=True)
def alerts_check(agent: Tenuto) -> Number:
    """Look at all conditions now; a worker does this every ten seconds."""
    return Number(agent.alerts.check())


@operation("growth", writes=True)
def growth(agent: Tenuto, *, limit: Annotated[int, "Size in GB that must not be reached"] = 50) -> Growth:
    """Show how the store grows by its samples, and when it reaches a size; also take a sample."""
    agent.alerts.sample()
    return agent.alerts.growth(limit * 1024**3)


@operation("alerts growth")
def alerts_growth(agent: Tenuto, *, limit: Annotated[int, "Size in GB that must not be reached"] = 50) -> Growth:
    """Show how the store grows by the samples of the workers, and when it reaches a size; take no sample."""
    return agent.alerts.growth(limit * 1024**3)


@operation("alerts figures", "figure", "value", "about")
def alerts_figures(agent: Tenuto) -> list[Figure]:
    """Show all figures as of now."""
    return [Figure(name, value, FIGURES[name]) for name, value in agent.alerts.figures.now().items()]

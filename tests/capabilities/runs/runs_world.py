"""What the tests of runs share: a process that ends at a line, and a world in which effects are counted."""

from collections.abc import Callable
from typing import Any

import pytest

from tenuto import Tenuto


class Killed(BaseException):
    """The process ends here."""


class World:
    """What happened outside, counted; a name that is to die does so after its effect."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.dies: dict[str, int] = {}

    def do(self, name: str, *rest: Any) -> str:
        self.calls.append((name, *rest))
        if self.dies.get(name, 0):
            self.dies[name] -= 1
            raise Killed
        return f"{name} done"

    def count(self, name: str) -> int:
        return sum(call[0] == name for call in self.calls)

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


def killed(agent: Tenuto, body: Callable[[Any], Any], run_id: str = "r") -> None:
    with pytest.raises(Killed):
        with agent.run(run_id) as run:
            body(run)
            raise Killed


def resumed(agent: Tenuto, body: Callable[[Any], Any], run_id: str = "r", **options: Any) -> Any:
    with agent.run(run_id, **options) as run:
        run.result = body(run)
        return run.result

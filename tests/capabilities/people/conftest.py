"""A race with a certain outcome: something happens between what a client reads and what it commits."""

from collections.abc import Callable
from typing import Any

import pytest

from tenuto import Tenuto

Between = Callable[[Tenuto, Callable[[], Any]], None]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    """Let `action` happen right before the next commit of a client."""

    def prepare(agent: Tenuto, action: Callable[[], Any]) -> None:
        commit = agent.kernel.commit

        def late(*given: Any, **options: Any) -> Any:
            monkeypatch.setattr(agent.kernel, "commit", commit)
            action()
            return commit(*given, **options)

        monkeypatch.setattr(agent.kernel, "commit", late)

    return prepare

"""Actions: the functions that the steps of workflows call, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenuto.capabilities.runs import Step
from tenuto.capabilities.workflows.workflows import Action, Actions
from tenuto.errors import InvalidInput
from tenuto.kernel import keys


def register_action(actions: Actions, name: str, action: Action) -> None:
    """Register an action that workflow steps call; `InvalidInput` if another function has the name."""
    keys.name(name, "action")
    Step(name, action.fn, (), None, action.effect, action.verify, action.retry, action.timeout)  # validates
    known = actions.get(name)
    if known is not None and _place(known.fn) != _place(action.fn):
        raise InvalidInput(
            f"The action {name!r} is already {'.'.join(_place(known.fn))}. Register this function under another name."
        )
    actions[name] = action


def _place(fn: Callable[..., Any]) -> tuple[str, str]:
    return getattr(fn, "__module__", ""), getattr(fn, "__qualname__", repr(fn))

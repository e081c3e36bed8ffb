"""Operations on state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from tenuto.capabilities._core.journal import Change
from tenuto.capabilities.state import Entry
from tenuto.client import Tenuto
from tenuto.errors import NotFound
from tenuto.operations.table import Done, Stored, Value, operation, page

Scope = Annotated[str, "Scope of the value"]
Key = Annotated[str, "Key of the value"]


@operation("state get", "key", "value", "version", "updated_at")
def state_get(agent: Tenuto, scope: Scope, key: Key) -> Entry:
    """Show a value with its version, its writer and the time of the write."""
    entry = agent.state.entry(scope, key)
    if entry is None:
        raise NotFound(f"There is no value {key!r} in {scope!r}. List the scope with: tenuto state list {scope}")
    return entry


@operation("state set", writes=True)
def state_set(
    agent: Tenuto,
    scope: Scope,
    key: Key,
    value: Value,
    *,
    expect: Annotated[int | None, "Write only if the current version is this; 0: only if absent"] = None,
    ttl: Annotated[str | None, 'Time to live, e.g. "24h"'] = None,
) -> Stored:
    """Set a value durably."""
    return Stored(agent.state.set(scope, key, value, expect=expect, ttl=ttl))


@operation("state list", "key", "value")
def state_list(
    agent: Tenuto,
    scope: Scope,
    *,
    limit: Annotated[int, "Maximum number of values"] = 100,
    after: Annotated[str | None, "Start after this key"] = None,
) -> list[dict[str, Any]]:
    """List the values of a scope, by key."""
    found = [{"key": key, "value": value} for key, value in agent.state.items(scope).items()]
    return page(found, lambda one: str(one["key"]), after, limit)


@operation("state history", "version", "value", "updated_at", "writer")
def state_history(
    agent: Tenuto, scope: Scope, key: Key, *, limit: Annotated[int, "Maximum number of versions"] = 20
) -> list[Entry]:
    """Show the earlier versions of a value, newest first."""
    return agent.state.history(scope, key, limit=limit)


@operation("state delete", asks="Delete the value {key!r} of {scope!r}? Its history stays.")
def state_delete(agent: Tenuto, scope: Scope, key: Key) -> Done:
    """Delete a value. Its history stays."""
    return Done(agent.state.delete(scope, key))


@operation("state watch", "number", "key", "value", "at")
def state_watch(
    agent: Tenuto,
    scope: Scope,
    *,
    after: Annotated[int | None, "Start after this number"] = None,
    timeout: Annotated[str | None, "Stop after this long without a change"] = None,
) -> Iterator[Change]:
    """Print the changes of a scope as they arrive."""
    return agent.state.watch(scope, after=after, timeout=timeout)

"""Operations on checkpoints."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from tenuto.capabilities.checkpoints import Checkpoint, Difference
from tenuto.client import Tenuto
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.operations.table import Done, Number, operation

CheckpointId = Annotated[str, "Checkpoint id or name"]


@operation("checkpoint list", "id", "name", "thread", "created_at", "size", "stored_bytes")
def checkpoint_list(
    agent: Tenuto,
    *,
    thread: Annotated[str | None, "Only checkpoints of this thread"] = None,
    name: Annotated[str | None, "Only checkpoints with this name"] = None,
    limit: Annotated[int, "Maximum number of checkpoints"] = 100,
    after: Annotated[str | None, "Start after the checkpoint with this id"] = None,
) -> list[Checkpoint]:
    """List checkpoints, newest first, without reading their states."""
    return agent.checkpoint.list(thread, name=name, limit=limit, after=after)


@operation("checkpoint show")
def checkpoint_show(
    agent: Tenuto, checkpoint: CheckpointId, *, thread: Annotated[str | None, "Thread of the name"] = None
) -> dict[str, Any]:
    """Show the state of a checkpoint."""
    return dict(agent.checkpoint._given(checkpoint, thread))


@operation("checkpoint create", writes=True)
def checkpoint_create(
    agent: Tenuto,
    scope: Annotated[str, "State scope whose values are saved; also the checkpoint's name"],
    *,
    label: Annotated[str | None, "A few words to find it by"] = None,
    note: Annotated[str | None, "Why it was made, what comes next"] = None,
) -> Checkpoint:
    """Save the values of a state scope as a checkpoint: `checkpoint apply` writes them back."""
    given = {"scope": scope, "label": label, "note": note}
    meta = {name: value for name, value in given.items() if value is not None}
    return agent.checkpoint.create(scope, dict(agent.state.items(scope)), meta=meta)


class Applied(NamedTuple):
    """Where the values of a checkpoint were written."""

    scope: str
    written: int
    deleted: int


@operation("checkpoint apply", writes=True)
def checkpoint_apply(
    agent: Tenuto,
    checkpoint: CheckpointId,
    *,
    scope: Annotated[str | None, "Scope to write; default: a new one, named by the checkpoint's id"] = None,
    replace: Annotated[bool, "Replace the values of that scope; their history stays"] = False,
) -> Applied:
    """Write the values of a checkpoint to a state scope, in one commit: a new scope unless told otherwise."""
    found = agent.checkpoint.get(checkpoint)
    if found is None:
        with contextlib.suppress(InvalidInput):  # a name, and no id
            found = agent.checkpoint.get(id=checkpoint)
    if found is None:
        raise NotFound(f"There is no checkpoint {checkpoint!r}. List checkpoints with: tenuto checkpoint list")
    state = agent.checkpoint.restore(id=found.id)
    target = scope or (found.name if replace else found.id)
    there = agent.state.items(target)
    if there and not replace and there != state:
        raise Conflict(
            f"The scope {target!r} has other values; nothing was written. Choose a new scope, or overwrite its "
            "values on purpose with replace."
        )
    gone = [key for key in there if key not in state]
    with agent.state.transaction(target) as change:
        for key, value in state.items():
            if key not in there or there[key] != value:
                change[key] = value
        for key in gone:
            del change[key]
    return Applied(target, len(state), len(gone))


@operation("checkpoint diff", "path", "kind", "old", "new")
def checkpoint_diff(
    agent: Tenuto,
    before: CheckpointId,
    after: CheckpointId,
    *,
    thread: Annotated[str | None, "Thread of the names"] = None,
) -> list[Difference]:
    """Show what changed from one checkpoint to another."""
    return agent.checkpoint.diff(before, after, thread=thread)


class KeyVersion(NamedTuple):
    """A value that one key of a state had, from a checkpoint on."""

    checkpoint: str
    name: str
    created_at: datetime
    present: bool
    value: Any


@operation("checkpoint history", "checkpoint", "created_at", "present", "value")
def checkpoint_history(
    agent: Tenuto,
    key: Annotated[str, 'Key of the state; "plan/0/city" for an inner one'],
    *,
    thread: Annotated[str | None, "Checkpoints of this thread"] = None,
    name: Annotated[str | None, "Checkpoints with this name"] = None,
    limit: Annotated[int, "How many checkpoints to look at"] = 100,
) -> list[KeyVersion]:
    """Show the values that one key had, newest first: the checkpoints at which it changed. It restores each."""
    if thread is None and name is None:
        raise InvalidInput("Pass --thread or --name: a history is that of one thread or name.")
    found: list[KeyVersion] = []
    parts = key.strip("/").split("/")
    for one in reversed(agent.checkpoint.list(thread, name=name, limit=limit)):
        present, value = _inside(agent.checkpoint.restore(id=one.id), parts)
        if not found or (present, value) != (found[-1].present, found[-1].value):
            found.append(KeyVersion(one.id, one.name, one.created_at, present, value))
    return found[::-1]


def _inside(value: Any, parts: list[str]) -> tuple[bool, Any]:
    """Return whether a state has this key, and its value."""
    for part in parts:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return False, None
    return True, value


@operation("checkpoint fork", writes=True)
def checkpoint_fork(
    agent: Tenuto, checkpoint: CheckpointId, *, thread: Annotated[str, "Id of the new thread"]
) -> Checkpoint:
    """Start another thread from a checkpoint (time travel). The original is unchanged."""
    return agent.checkpoint.fork(checkpoint, thread=thread)


@operation("checkpoint restore", writes=True)
def checkpoint_restore(
    agent: Tenuto, checkpoint: CheckpointId, *, thread: Annotated[str | None, "Thread of the name"] = None
) -> Checkpoint:
    """Save the state of an earlier checkpoint as the newest one of its name. Checkpoints in between stay."""
    found = agent.checkpoint.get(checkpoint, thread=thread) or agent.checkpoint.get(id=checkpoint)
    if found is None:
        raise NotFound(f"There is no checkpoint {checkpoint!r}. List checkpoints with: tenuto checkpoint list")
    state = agent.checkpoint.restore(id=found.id)
    return agent.checkpoint.create(found.name, dict(state), thread=found.thread, meta={"restored": found.id})


@operation("checkpoint prune", asks="Delete older checkpoints permanently?")
def checkpoint_prune(
    agent: Tenuto,
    *,
    thread: Annotated[str | None, "Only checkpoints of this thread"] = None,
    keep_last: Annotated[int | None, "Number of newest checkpoints to keep"] = None,
    older_than: Annotated[str | None, 'Only checkpoints older than this, e.g. "30d"'] = None,
) -> Number:
    """Delete older checkpoints. The remaining ones stay complete."""
    return Number(agent.checkpoint.prune(thread, keep_last=keep_last, older_than=older_than))


@operation("checkpoint delete", asks="Delete the checkpoint {checkpoint!r} permanently?")
def checkpoint_delete(
    agent: Tenuto, checkpoint: CheckpointId, *, thread: Annotated[str | None, "Thread of the name"] = None
) -> Done:
    """Delete a checkpoint permanently."""
    return Done(bool(agent.checkpoint.delete(checkpoint, thread=thread)))

"""Operations on checkpoints."""

from __future__ import annotations

from typing import Annotated, Any

from tenuto.capabilities.checkpoints import Checkpoint, Difference
from tenuto.client import Tenuto
from tenuto.errors import NotFound
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

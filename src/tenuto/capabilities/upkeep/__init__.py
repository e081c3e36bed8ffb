"""What keeps a store small and clean: pruning by age, forgetting a user, and the chores of workers."""

from __future__ import annotations

import functools

from tenuto.capabilities.people import fire_due
from tenuto.capabilities.upkeep.archive import Archiver
from tenuto.capabilities.upkeep.chores import Chores
from tenuto.capabilities.upkeep.forget_user import Forgetter, Forgotten
from tenuto.capabilities.upkeep.parts import Parts
from tenuto.capabilities.upkeep.prune import Pruner

__all__ = ["Forgetter", "Forgotten", "attach"]


def attach(client: Parts) -> Forgetter:
    """Give a client's store its pruning, and its workers their chores; return what forgets users."""
    pruner = Pruner(client._context, client.runs, client.tasks, client.checkpoint, client.threads)
    client.store._prune, client.store._retention = pruner.prune, client._retention
    parts = (client._context, client._archive, client.runs, client.checkpoint, client.threads)
    client.store._archiving, client.store._archived = Archiver(*parts).archive, client._archive.shown
    fire = functools.partial(fire_due, client.inbox, client.milestones, client.notify, client.alerts._due)
    client.runs._chores = client.tasks._chores = Chores(fire, pruner, client._retention)
    return Forgetter(client)

"""Checkpoints: snapshots of a state, stored as keyframes and deltas."""

from tenuto.capabilities._core.retention import Retention
from tenuto.capabilities.checkpoints.checkpoints import Checkpoints, Restored, Saver
from tenuto.capabilities.checkpoints.create import CachedHead, CheckpointWriter, Draft
from tenuto.capabilities.checkpoints.diff import Changes, Difference, compare
from tenuto.capabilities.checkpoints.retention import remove
from tenuto.capabilities.checkpoints.storage import THREAD, Checkpoint, Item, Lineage, Placed, expanded, squeezed

__all__ = [
    "THREAD", "CachedHead", "Changes", "Checkpoint", "CheckpointWriter", "Checkpoints", "Difference", "Draft",
    "Item", "Lineage", "Placed", "Restored", "Retention", "Saver", "compare", "expanded", "remove", "squeezed",
]  # fmt: skip

"""What stands in for Anthropic's memory tool when its own tests run on ours.

No assertion is touched. The store is a file in the folder in which theirs keeps the files of /memories, so a test that
looks at the rights of these folders looks at those that tenuto has made, and a link that a test puts there lies beside
our store. What is in a memory is read from the store, where theirs is read from the disk.
"""

from pathlib import Path
from typing import Any

from tenuto import Tenuto
from tenuto.adapters.anthropic_memory import AsyncTenutoMemoryTool, TenutoMemoryTool

__all__ = ["BetaAsyncLocalFilesystemMemoryTool", "BetaLocalFilesystemMemoryTool", "get_directory_snapshot"]

_agents: dict[str, Tenuto] = {}


def _in(base_path: str) -> Tenuto:
    _agents[base_path] = Tenuto("suite", Path(base_path) / "memories" / "tenuto.db").open()
    return _agents[base_path]


class BetaLocalFilesystemMemoryTool(TenutoMemoryTool):
    def __init__(self, base_path: str) -> None:
        super().__init__(_in(base_path))
        self.base_path = Path(base_path)
        self.memory_root = self.base_path / "memories"


class BetaAsyncLocalFilesystemMemoryTool(AsyncTenutoMemoryTool):
    def __init__(self, base_path: str) -> None:
        super().__init__(_in(base_path))
        self.base_path = Path(base_path)
        self.memory_root = self.base_path / "memories"

    async def _ensure_memory_root(self) -> None:
        """Do nothing: the folders are made when the store is opened."""


def get_directory_snapshot(base_path: str) -> dict[str, Any]:
    found = _agents[base_path].state.items("memories")
    return {f"memories/{name}": text for name, text in found.items() if text is not None}

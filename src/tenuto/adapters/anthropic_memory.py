"""Anthropic's memory tool on tenuto: `TenutoMemoryTool` and `AsyncTenutoMemoryTool` store the files of /memories.

    tool = TenutoMemoryTool(agent, user="u-123")
    client.beta.messages.run_tools(model=…, messages=[…], tools=[tool])

It owns the state scope `memories` or `memories:<user>`. A file is the value under its path; a folder is None under its
path with a trailing slash. A path is only a key of that scope, so it cannot escape to other files. Every command is
one commit, also for whole folders: a crash leaves it done or not done. All versions are stored: `history(path)` lists
them, and `undo(path)` restores the previous one, also after a deletion. Answers and errors have the wording of
Anthropic's own implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from tenuto.adapters.conversation import bridged
from tenuto.aio import AsyncTenuto
from tenuto.aio.bridge import awaitable
from tenuto.capabilities.state import Entry, State, Transaction
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, MissingDriver, NotFound, StateConflict
from tenuto.kernel import keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.transact import backoff
from tenuto.kernel.work import Sleep, Work, on_store, work_of

try:
    from anthropic.lib.tools import ToolError
    from anthropic.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool
    from anthropic.types.beta import (
        BetaCacheControlEphemeralParam,
        BetaMemoryTool20250818CreateCommand,
        BetaMemoryTool20250818DeleteCommand,
        BetaMemoryTool20250818InsertCommand,
        BetaMemoryTool20250818RenameCommand,
        BetaMemoryTool20250818StrReplaceCommand,
        BetaMemoryTool20250818ViewCommand,
    )
except ImportError as error:
    raise MissingDriver('The Anthropic SDK is not installed. Run: pip install "tenuto[anthropic]".') from error

__all__ = ["AsyncTenutoMemoryTool", "TenutoMemoryTool"]

R = TypeVar("R")
_ROOT: Final = "/memories"
_STAYS: Final = f"Cannot delete the {_ROOT} directory itself"
_MOST_LINES: Final = 999_999
_WIDTH: Final = 6
_LEVELS: Final = 2
_FOLDER: Final = "4K"
"""The reported size of a folder, as on most file systems."""


class Files:
    """The files of one memory, for both tools."""

    def __init__(self, agent: Tenuto, user: str | None) -> None:
        self.scope = "memories" if user is None else f"memories:{keys.name(user, 'user')}"
        self.state: State = agent.state

    @property
    def _clock(self) -> Clock:
        return self.state._clock

    # -- the commands ----------------------------------------------------------------------------------------

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Return a file with numbered lines, or the listing of a folder."""
        path = _inside(command.path)
        content = self.state.get(self.scope, path) if path else None
        if content is not None:
            return _numbered(command, content)
        listed = self.state.items(self.scope)
        if path and f"{path}/" not in listed:
            raise ToolError(f"The path {command.path} does not exist. Please provide a valid path.")
        return _listing(command.path, path, listed)

    @on_store
    def create(self, command: BetaMemoryTool20250818CreateCommand) -> Work[str]:
        """Create a file; raise `ToolError` if it exists."""
        path = _inside(command.path)

        def change(t: Transaction) -> str:
            if not path or path in t or f"{path}/" in t:
                raise ToolError(f"File {command.path} already exists")
            self._make_folders(t, path)
            t[path] = command.file_text
            return f"File created successfully at: {command.path}"

        return (yield from self._changed(change))

    @on_store
    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> Work[str]:
        """Replace a text that occurs once in a file."""

        def change(t: Transaction) -> str:
            path, content = self._content(t, command.path)
            old = command.old_str
            count = content.count(old)
            if count == 0:
                raise ToolError(
                    f"No replacement was performed, old_str `{old}` did not appear verbatim in {command.path}."
                )
            if count > 1:
                lines = ", ".join(str(content.count("\n", 0, at) + 1) for at in _occurrences(content, old))
                raise ToolError(
                    f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {lines}. "
                    "Please ensure it is unique"
                )
            changed = content.count("\n", 0, content.find(old))
            t[path] = new = content.replace(old, command.new_str)
            lines_now = new.split("\n")
            first = max(0, changed - 2)
            return (
                "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
                + _with_numbers(lines_now[first : changed + 3], first + 1)
            )

        return (yield from self._changed(change))

    @on_store
    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> Work[str]:
        """Insert a text after a line; 0 is the beginning."""

        def change(t: Transaction) -> str:
            path, content = self._content(t, command.path)
            lines = content.split("\n")
            if not lines[-1]:
                lines.pop()
            if not 0 <= command.insert_line <= len(lines):
                raise ToolError(
                    f"Invalid `insert_line` parameter: {command.insert_line}. "
                    f"It should be within the range [0, {len(lines)}]."
                )
            lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
            new = "\n".join(lines)
            t[path] = new if new.endswith("\n") else new + "\n"
            return f"The file {command.path} has been edited."

        return (yield from self._changed(change))

    @on_store
    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> Work[str]:
        """Delete a file, or a folder with its contents. Earlier versions stay."""
        path = _inside(command.path)
        if not path:
            raise ToolError(_STAYS)

        def change(t: Transaction) -> str:
            found = self._below(t, path)
            if not found:
                raise ToolError(f"The path {command.path} does not exist")
            for name in found:
                del t[name]
            return f"Successfully deleted {command.path}"

        return (yield from self._changed(change))

    @on_store
    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> Work[str]:
        """Rename or move a file, or a folder with its contents."""
        old, new = _inside(command.old_path), _inside(command.new_path)
        if not old:
            raise ToolError(f"Cannot rename the {_ROOT} directory itself")

        def change(t: Transaction) -> str:
            if not new or new in t or f"{new}/" in t:
                raise ToolError(f"The destination {command.new_path} already exists")
            found = self._below(t, old)
            if not found:
                raise ToolError(f"The path {command.old_path} does not exist")
            if f"{new}/".startswith(f"{old}/"):
                raise ToolError(f"The path {command.old_path} cannot be moved into itself")
            self._make_folders(t, new)
            for name in found:
                t[new + name[len(old) :]] = t.get(name)
                del t[name]
            return f"Successfully renamed {command.old_path} to {command.new_path}"

        return (yield from self._changed(change))

    @on_store
    def clear_all_memory(self) -> Work[str]:
        """Delete every file and folder. Earlier versions stay."""

        def change(t: Transaction) -> str:
            for name in self.state.keys(self.scope):
                if name in t:
                    del t[name]
            return "All memory cleared"

        return (yield from self._changed(change))

    # -- versions ----------------------------------------------------------------------------------------------

    def history(self, path: str, *, limit: int = 100) -> list[Entry]:
        """Return the versions of a file, newest first, with writer and time; deletions included."""
        return self.state.history(self.scope, _file(path), limit=limit)

    @on_store
    def undo(self, path: str) -> Work[str | None]:
        """Undo the last change of a file; return the restored content, or None if the file did not exist before.

        Undo is itself a change: undoing twice restores the original.
        """
        name = _file(path)

        def change(t: Transaction) -> str | None:
            now = t.get(name)
            versions = self.state.history(self.scope, name, limit=2)
            if not versions:
                raise NotFound(f"The file {path} never existed, so there is nothing to undo. Check the path.")
            if versions[0].value != now:
                raise StateConflict("The file was changed concurrently.")
            before: str | None = versions[1].value if len(versions) > 1 else None
            if before is None:
                if now is not None:
                    del t[name]
                return None
            self._make_folders(t, name)
            t[name] = before
            return before

        return (yield from self._changed(change))

    # -- internals ---------------------------------------------------------------------------------------------

    def _changed(self, change: Callable[[Transaction], R]) -> Work[R]:
        """Make a change in one commit; retry from the beginning if another process changed what it read."""
        delays = backoff(most=0.02)
        while True:
            t = self.state.transaction(self.scope)
            try:
                answer = change(t)
                yield from work_of(t.commit)()
            except StateConflict:
                yield Sleep(next(delays))
            except InvalidInput as error:  # name or text too long
                raise ToolError(str(error)) from error
            else:
                return answer

    def _content(self, t: Transaction, given: str) -> tuple[str, str]:
        path = _inside(given)
        content = t.get(path) if path else None
        if content is None:
            if not path or f"{path}/" in t:
                raise ToolError(f"The path {given} is not a file.")
            raise ToolError(f"The path {given} does not exist. Please provide a valid path.")
        return path, content

    def _make_folders(self, t: Transaction, path: str) -> None:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            if folder in t:
                raise ToolError(f"The path {_ROOT}/{folder} is a file, not a directory.")
            # Rewrite the folder, so that deleting or moving it concurrently conflicts with this new file.
            if depth == len(parts) or f"{folder}/" not in t:
                t[f"{folder}/"] = None

    def _below(self, t: Transaction, path: str) -> list[str]:
        """Return the keys of a file, or of a folder and its contents, as this transaction sees them."""
        if path in t:
            return [path]
        if f"{path}/" not in t:
            return []
        return [name for name in self.state.keys(self.scope) if name.startswith(f"{path}/") and name in t]


def _inside(path: str) -> str:
    """Return the key of a path, "" for the root; raise `ToolError` if it leads outside."""
    if not path.startswith(_ROOT):
        raise ToolError(f"Path must start with {_ROOT}, got: {path}")
    found = [_ROOT[1:]]
    for part in path[len(_ROOT) :].split("/"):
        if part == ".." and found:
            found.pop()
        elif part == ".." or "\x00" in part:
            raise ToolError(f"Path {path} would escape {_ROOT} directory")
        elif part not in ("", "."):
            found.append(part)
    if found[:1] != [_ROOT[1:]]:
        raise ToolError(f"Path {path} would escape {_ROOT} directory")
    return "/".join(found[1:])


def _file(path: str) -> str:
    name = _inside(path)
    if not name:
        raise InvalidInput(f"{path} is the root of the memory. Give the path of a file.")
    return name


def _numbered(command: BetaMemoryTool20250818ViewCommand, content: str) -> str:
    lines = content.split("\n")
    if len(lines) > _MOST_LINES:
        raise ToolError(f"File {command.path} exceeds maximum line limit of {_MOST_LINES:,} lines.")
    first = 0
    if command.view_range and len(command.view_range) == 2:
        first = max(1, command.view_range[0]) - 1
        lines = lines[first : len(lines) if command.view_range[1] == -1 else command.view_range[1]]
    return f"Here's the content of {command.path} with line numbers:\n" + _with_numbers(lines, first + 1)


def _with_numbers(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:>{_WIDTH}}\t{line}" for number, line in enumerate(lines, first))


def _occurrences(content: str, text: str) -> list[int]:
    found, at = [], content.find(text)
    while at >= 0:
        found.append(at)
        at = content.find(text, at + 1)
    return found


def _listing(given: str, path: str, items: dict[str, Any]) -> str:
    """Return the listing of a folder, two levels deep, without hidden items."""
    begins = f"{path}/" if path else ""
    found: list[tuple[list[str], str]] = []
    for name, content in items.items():
        below = name[len(begins) :].rstrip("/")
        parts = below.split("/")
        if not name.startswith(begins) or not below or len(parts) > _LEVELS or any(p.startswith(".") for p in parts):
            continue
        size = _FOLDER if content is None else _measured(len(content.encode()))
        found.append((parts, f"{size}\t{given}/{below}{'/' if content is None else ''}"))
    head = f"Here're the files and directories up to 2 levels deep in {given}, excluding hidden items:"
    return "\n".join([head, f"{_FOLDER}\t{given}", *(line for _, line in sorted(found))])


def _measured(size: int) -> str:
    unit = 0
    while size >= 1024 ** (unit + 1) and unit < 3:
        unit += 1
    number = size / 1024**unit
    return f"{int(number)}{'BKMG'[unit]}" if number == int(number) else f"{number:.1f}{'BKMG'[unit]}"


# -- the tools -------------------------------------------------------------------------------------------------


class TenutoMemoryTool(BetaAbstractMemoryTool):
    """The memory tool for a blocking client. Each `user` has a separate memory; without one it is the tenant's."""

    def __init__(
        self,
        agent: Tenuto,
        *,
        user: str | None = None,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        self._files = files = Files(bridged(agent)[0], user)
        self.history = files.history
        self.undo = files.undo

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Return a file with numbered lines, or the listing of a folder."""
        return self._files.view(command)

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Create a file."""
        return self._files.create(command)

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace a text that occurs once in a file."""
        return self._files.str_replace(command)

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert a text after a line."""
        return self._files.insert(command)

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file or a folder."""
        return self._files.delete(command)

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Rename or move a file or a folder."""
        return self._files.rename(command)

    def clear_all_memory(self) -> str:
        """Delete every file and folder. Earlier versions stay."""
        return self._files.clear_all_memory()


class _AsyncFiles:
    def __init__(self, sync: Files, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    view = awaitable(Files.view)
    create = awaitable(Files.create)
    str_replace = awaitable(Files.str_replace)
    insert = awaitable(Files.insert)
    delete = awaitable(Files.delete)
    rename = awaitable(Files.rename)
    clear_all_memory = awaitable(Files.clear_all_memory)
    history = awaitable(Files.history)
    undo = awaitable(Files.undo)


class AsyncTenutoMemoryTool(BetaAsyncAbstractMemoryTool):
    """The memory tool for an async client: the same memory, awaited."""

    def __init__(
        self,
        agent: Tenuto | AsyncTenuto,
        *,
        user: str | None = None,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        super().__init__(cache_control=cache_control)
        sync, pool = bridged(agent)
        self._files = files = _AsyncFiles(Files(sync, user), pool)
        self.history = files.history
        self.undo = files.undo

    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Return a file with numbered lines, or the listing of a folder."""
        return await self._files.view(command)

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Create a file."""
        return await self._files.create(command)

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace a text that occurs once in a file."""
        return await self._files.str_replace(command)

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert a text after a line."""
        return await self._files.insert(command)

    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Delete a file or a folder."""
        return await self._files.delete(command)

    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Rename or move a file or a folder."""
        return await self._files.rename(command)

    async def clear_all_memory(self) -> str:
        """Delete every file and folder. Earlier versions stay."""
        return await self._files.clear_all_memory()

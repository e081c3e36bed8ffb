"""Commit a progress file to git, with a message that names the change.

The trailer `Progress-Change` of each commit holds the number of the last change in it. A commit that was made before a
crash is therefore recognised, and no change is named twice.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenuto.errors import InvalidInput, MissingDriver, StorageUnavailable
from tenuto.kernel.transact import backoff
from tenuto.kernel.work import Sleep, Work

if TYPE_CHECKING:
    from tenuto.capabilities.sessions.progress import ProgressEvent

_WORDS: Final = {
    "completed": "Completed",
    "blocked": "Blocked",
    "unblocked": "Unblocked",
    "next": "Next",
    "added": "Added",
    "decided": "Decided",
    "ruled out": "Ruled out",
    "noted": "Noted",
    "question": "Question",
    "goal": "Goal",
    "edited": "Edited",
    "started": "Started",
    "ended": "Ended",
}
"""The words of a message; the subject names the first kind of change in this order."""
_TRAILER: Final = re.compile(r"^Progress-Change: (.*) (\d+)$", re.MULTILINE)
_SUBJECT: Final = 72


def commit_change(place: Path, name: str, history: Callable[[int], Sequence[ProgressEvent]]) -> Work[bool]:
    """Commit a file if it differs from git's; return whether there is a new commit."""
    folder, file = str(place.resolve().parent), place.resolve().name
    yield from _git(folder, "add", "--", file)
    if not (yield from _git(folder, "status", "--porcelain", "--", file)).strip():
        return False
    try:
        last = yield from _git(folder, "log", "-20", "--grep=^Progress-Change: ", "--format=%B", "--", file)
    except InvalidInput:
        last = ""  # there is no commit yet
    numbers = [int(number) for one, number in _TRAILER.findall(last) if one == name]
    events = [one for one in history(max(numbers, default=0)) if one.what in _WORDS]
    yield from _git(folder, "commit", "-q", "-m", _message(name, events, file), "--", file)
    return True


def _message(name: str, events: Sequence[ProgressEvent], file: str) -> str:
    lines = [f"{_WORDS[one.what]}: {one.text}".rstrip(": ") for one in events]
    if not lines:
        return f"Update {file}"
    order = list(_WORDS)
    subject = lines[min(range(len(events)), key=lambda at: (order.index(events[at].what), -at))]
    if len(subject) > _SUBJECT:
        subject = subject[: _SUBJECT - 1] + "…"
    body = "\n".join(f"- {line}" for line in lines) + "\n\n" if len(lines) > 1 else ""
    return f"{subject}\n\n{body}Progress-Change: {name} {events[-1].number}\n"


def _git(folder: str, *words: str) -> Work[str]:
    """Run git and return its output, waiting while another git holds the index."""
    for delay in [*backoff(8, first=0.05, most=1.0), None]:
        try:
            done = subprocess.run(  # noqa: S603 - no shell, and the words are ours
                ["git", "--literal-pathspecs", "-C", folder, *words],  # noqa: S607 - the git of the user's PATH
                capture_output=True, text=True, encoding="utf-8", errors="replace", check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise MissingDriver("git is not installed; the file was written, not committed. Install git.") from error
        if done.returncode == 0:
            return done.stdout
        said = " ".join(done.stderr.split())
        if "index.lock" not in said:
            raise InvalidInput(
                f"The file was written, but git did not commit it: {said:.500}. Correct this and repeat."
            )
        if delay is not None:
            yield Sleep(delay)
    raise StorageUnavailable(
        f"The file was written, but another git process holds the index of {folder}. When it has ended, repeat the call."
    )

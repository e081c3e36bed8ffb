"""The agents of a load test in one process: threads that take turns, and what each operation took, reported every second."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tenuto.audit.subjects import Subject, is_conflict
from tenuto.client import Tenuto
from tenuto.errors import Conflict

_SHARED = 5
"""Every so many turns an agent changes a value that all agents share."""
_TRIES = 20


def drive(subject: Subject, pipe: Connection, number: int, agents: int, seconds: float, pause: float) -> None:
    """Let agents take turns; report every second what each operation took."""
    driver = _Driver(subject.target, f"load-{number}", time.monotonic() + seconds, pause)
    threads = [threading.Thread(target=driver.take_turns, args=(one, agents), daemon=True) for one in range(agents)]
    for one in threads:
        one.start()
    began, second = time.monotonic(), 0
    while any(one.is_alive() for one in threads):
        time.sleep(max(0.0, min(began + second + 1 - time.monotonic(), 1.0)))
        pipe.send((True, {"second": second, **driver.news()}))
        second += 1


class _Driver:
    def __init__(self, agent: Tenuto, name: str, until: float, pause: float) -> None:
        self._agent, self._name, self._until, self._pause = agent, name, until, pause
        self._lock = threading.Lock()
        self._took: dict[str, list[float]] = {}
        self._errors: list[str] = []
        self._conflicts = 0

    def news(self) -> dict[str, Any]:
        """Return what happened since the last call."""
        with self._lock:
            found = {"took": self._took, "errors": self._errors, "conflicts": self._conflicts}
            self._took, self._errors, self._conflicts = {}, [], 0
        return found

    def take_turns(self, mine: int, agents: int) -> None:
        """Take turns until the time is over."""
        name = f"{self._name}-{mine}"
        agent, thread = self._agent, self._agent.thread(name)
        message = {"role": "assistant", "content": "x" * 500}
        time.sleep(self._pause * mine / agents)
        turn = 0
        while time.monotonic() < self._until:
            turn += 1
            self._timed("state lookup", functools.partial(agent.state.get, name, "turn"))
            self._timed("conversation lookup", functools.partial(thread.messages, 20))
            self._timed("append", functools.partial(thread.append, message))
            self._timed("state write", functools.partial(agent.state.set, name, "turn", turn))
            if turn % _SHARED == 0:
                self._timed("shared update", self._change_shared)
            time.sleep(self._pause)

    def _timed(self, operation: str, call: Callable[[], Any]) -> None:
        at = time.perf_counter()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - reported
            with self._lock:
                if is_conflict(error):
                    self._conflicts += 1
                else:
                    self._errors.append(f"{operation}: {type(error).__name__}: {error}"[:160])
            return
        with self._lock:
            self._took.setdefault(operation, []).append(time.perf_counter() - at)

    def _change_shared(self) -> None:
        """Change the value that all agents change; count the conflicts that are retried."""
        state = self._agent.state
        for _round in range(_TRIES):
            entry = state.entry("load-shared", "turns")
            value, version = (entry.value, entry.version) if entry is not None else (0, 0)
            try:
                state.set("load-shared", "turns", value + 1, expect=version)
            except Conflict:
                with self._lock:
                    self._conflicts += 1
                time.sleep(0.002)
            else:
                return

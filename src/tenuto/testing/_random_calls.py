"""Random concurrent calls of several clients on four records and a stream, recorded.

Three of the records are read, scanned and committed together, some of the commits also append to the stream; the fourth
record stands alone. Every value is unique, so that it identifies its
writer. Checks name the version that a client saw last, which may be outdated. Some calls are delayed, so that others
overtake them. For a few commits the reply is lost, for a few others the commit itself; the client cannot tell which,
and repeats every other one with its request id.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Sequence
from typing import Final

from tenuto.errors import Conflict, StorageUnavailable
from tenuto.hooks.events import Verb
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Append, Backend, Check, CheckEnd, Delete, Put, Write
from tenuto.kernel.transact import new_request
from tenuto.testing._recorded import Call, Recorded
from tenuto.wrappers.faults import Faults

_CHOICES: Final = (("left",), ("right",), ("left", "right"), ("left", "middle", "right"), ("alone",))
_VERBS: Final[tuple[Verb, ...]] = ("commit", "read", "scan", "entries", "streams")
_WEIGHTS: Final = (55, 20, 12, 10, 3)


def random_calls(backends: Sequence[Backend], seed: str, count: int = 50, *, who: str = "client") -> list[Call]:
    """Make `count` random calls in a thread for each backend, concurrently; return all calls with their answers.

    The seed decides the calls and names the scope: use it only once on a store. The interleaving depends on the
    machine, so a history may not be reproducible.
    """
    clients = [_Client(backend, seed, f"{who} {n}") for n, backend in enumerate(backends, 1)]
    ready = threading.Barrier(len(clients))
    failed: list[Exception] = []

    def work(client: _Client) -> None:
        ready.wait()
        try:
            client.run(count)
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # switch threads inside calls, not only between them
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if failed:
        raise failed[0]
    return [call for client in clients for call in client.recorded.calls]


class _Client:
    def __init__(self, backend: Backend, seed: str, name: str) -> None:
        self._dice = random.Random(f"{seed} {name}")  # noqa: S311 - not for security
        self._faults = Faults(backend)
        self.recorded = Recorded(self._faults, name)
        self._name = name
        self._below = keys.pack("default", seed, "pair")
        self._places = {
            choice: [keys.pack("default", seed, *(() if part == "alone" else ("pair",)), part) for part in choice]
            for choice in _CHOICES
        }
        self._log = keys.pack("default", seed, "pair", "log")
        self._known: dict[bytes, int] = {}

    def run(self, count: int) -> None:
        for number in range(count):
            chosen = self._places[self._dice.choice(_CHOICES)]
            verb: Verb = self._dice.choices(_VERBS, _WEIGHTS)[0]
            if self._dice.random() < 0.3:
                self._faults.delay(0.0002 * self._dice.random(), verb)
            if verb == "read":
                found = self.recorded.read(chosen)
                self._known |= {key: record.version if record else 0 for key, record in zip(chosen, found, strict=True)}
            elif verb != "commit":
                self._look(verb)
            else:
                self._commit(chosen, f"{self._name}, {number}".encode())

    def _look(self, verb: Verb) -> None:
        """List records, entries or streams: all, or a page after what was seen before."""
        dice = self._dice
        limit, reverse = dice.choice([1, 2, 100]), dice.random() < 0.3
        if verb == "scan":
            after = dice.choice([None, None, *self._places["left", "middle", "right"]])
            for record in self.recorded.scan(self._below, after=after, limit=limit, reverse=reverse):
                self._known[record.key] = record.version
        elif verb == "entries":
            end = self._known.get(self._log, 0)
            after_number = dice.choice([None, None, end, max(0, end - 2)])
            found = self.recorded.entries(self._log, after=after_number, limit=limit, reverse=reverse)
            self._known[self._log] = max([end, *(entry.number for entry in found)])
        else:
            self.recorded.streams(self._below)

    def _asked(self, chosen: list[bytes], value: bytes) -> tuple[list[AnyCheck], list[Write]]:
        """Return the checks and writes of a commit, as far as this client knows what is stored."""
        dice, known = self._dice, self._known
        writes: list[Write] = [Delete(key) if dice.random() < 0.2 else Put(key, value) for key in chosen]
        checked = dice.choice([[], chosen, chosen, self._places[dice.choice(_CHOICES[:3])]])
        if len(chosen) == 1 and chosen == self._places["alone",]:
            checked = chosen if checked else []  # no call mixes it with the others
        checks: list[AnyCheck] = [Check(key, known.get(key, 0)) for key in checked]
        if checks and dice.random() < 0.1:
            writes = []
        if chosen != self._places["alone",] and dice.random() < 0.4:
            writes.append(Append(self._log, value))
            if dice.random() < 0.4:
                checks.append(CheckEnd(self._log, known.get(self._log, 0)))
        return checks, writes

    def _commit(self, chosen: list[bytes], value: bytes) -> None:
        dice = self._dice
        checks, writes = self._asked(chosen, value)
        request = new_request(self._faults.now())
        chance = dice.random()
        if chance < 0.04:
            self._faults.lose_reply()
        elif chance < 0.08:
            self._faults.fail_before(error=StorageUnavailable("The commit was lost.", outcome="unknown"))
        for _ in range(1 + (dice.random() < 0.5)):
            try:
                done = self.recorded.commit(checks, writes, request=request)
            except Conflict:
                return
            except StorageUnavailable:
                continue
            for write, version in zip(writes, done.versions, strict=True):
                self._known[write[0]] = 0 if type(write) is Delete else version
            return

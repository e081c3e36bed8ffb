"""Many calls through a proxy that loses, delays and resets, and a judge who knows what each of them must have done.

Each worker is alone with its keys and asks, as capabilities do, by request id for whatever became of a lost reply. So it
knows at any time what is stored: a read that differs is wrong, a version that is too high was applied twice, and what was
said to be not applied must never appear, also not when everything that was on its way has arrived.
"""

import collections
import random
import threading
import time

from support.long import size
from support.proxy import Fate

from tenuto.errors import Conflict, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.clock import SystemClock
from tenuto.kernel.contract import Append, Check, Delete, Put
from tenuto.kernel.transact import commit_once, own_request
from tenuto.kernel.work import perform

CALLS = size(400, 40_000)
WORKERS = size(4, 8)
_FATES = {Fate.CUT_REPLY: 3, Fate.HALF_REPLY: 1, Fate.LATE: 3, Fate.RESET: 2}
_STALLS = size(0.002, 0.0005)
"""How often a request is held back until its client gives up: each takes a whole timeout."""


def storm(seed, marks):
    """Return a `fate` that falls on one of ten requests which contain one of `marks`."""
    chance = random.Random(seed)
    fates, weights = list(_FATES), list(_FATES.values())

    def fate(request):
        if not any(mark in request for mark in marks):
            return Fate.PASS
        drawn = chance.random()
        if drawn < _STALLS:
            return Fate.STALL
        return chance.choices(fates, weights)[0] if drawn < 0.1 else Fate.PASS

    return fate


class Worker:
    """Commits and reads, alone with its keys."""

    def __init__(self, store, name, calls, *, same_id=True):
        self._store, self._calls, self._same_id = store, calls, same_id
        self._chance = random.Random(name)
        self.record, self.guard, self.stream = (keys.pack("t", "s", what, name) for what in ("r", "g", "log"))
        self.values = []  # of the entries that must be there
        self.refused = set()  # what was said to be not applied
        self.guarded = False
        self.value, self.version = None, 0
        self.told = collections.Counter()
        self.wrong = []
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            for n in range(self._calls):
                kind = self._chance.random()
                if kind < 0.7:
                    self.write(b"%d" % n, checked=kind < 0.3)
                elif kind < 0.8:
                    self.late_refusal(b"%d" % n)
                else:
                    self.look()
        except BaseException as error:
            self.wrong.append(f"a call raised {error!r}")

    def commit(self, checks, writes):
        """Return a commit's versions, None if it was surely not applied; ask until it is known."""
        request = own_request(self._store.now())
        doubtful = False
        while True:
            try:
                return perform(commit_once(self._store, checks, writes, request), SystemClock()).versions
            except StorageUnavailable as error:
                self.told[error.outcome] += 1
                if error.outcome == "unknown":
                    doubtful, request = True, error.request if self._same_id else own_request(self._store.now())
                if not doubtful:
                    return None

    def write(self, value, *, checked):
        checks = [Check(self.record, self.version)] if checked else []
        versions = self.commit(checks, [Put(self.record, value), Append(self.stream, value)])
        if versions is None:
            self.refused.add(value)
            return
        self.told["applied"] += 1
        self.values.append(value)
        self.value, self.version = value, self.version + 1
        if versions != (self.version, len(self.values)):
            self.wrong.append(f"the call {value} gave {versions}, not {(self.version, len(self.values))}")

    def late_refusal(self, value):
        """Have a commit refused by its checks, then make them hold: what comes late must not be applied any more."""
        if not self.guarded:
            self.guarded = self.commit([], [Put(self.guard, b"")]) is not None
        if not self.guarded:
            return
        try:
            if self.commit([Check(self.guard, 0)], [Put(self.guard, value), Append(self.stream, value)]) is not None:
                self.wrong.append("a commit passed although its check does not hold")
        except Conflict:
            self.told["conflict"] += 1
        self.refused.add(value)
        self.guarded = self.commit([], [Delete(self.guard)]) is None

    def look(self):
        try:
            record, guard = self._store.read([self.record, self.guard])
        except StorageUnavailable as error:
            self.told[error.outcome] += 1
            if error.outcome != "not applied":
                self.wrong.append("a read may have written")
            return
        self.told["read"] += 1
        found = (record and record.value, record.version if record else 0, guard is not None)
        if found != (self.value, self.version, self.guarded):
            self.wrong.append(f"read {found}, stored is {(self.value, self.version, self.guarded)}")

    def judge(self, store):
        """Compare what is stored at the end with what must be."""
        stored, after = [], 0
        while page := store.entries(self.stream, after=after, limit=1000):
            stored += [entry.value for entry in page]
            after = page[-1].number
        if stored != self.values:
            twice = len(stored) - len(set(stored))
            untrue = len(self.refused.intersection(stored))
            self.wrong.append(f"{twice} applied twice, {untrue} untrue refusals, {len(stored)} of {len(self.values)}")
        record, guard = store.read([self.record, self.guard])
        found = (record and record.value, record.version if record else 0, guard is not None)
        if found != (self.value, self.version, self.guarded):
            self.wrong.append(f"at the end there is {found}, not {(self.value, self.version, self.guarded)}")


def run(store, direct, proxy, marks, *, seed="storm", same_id=True):
    """Make `CALLS` calls on `store`, which goes through the proxy, and judge by `direct`; return what was told.

    Without `same_id` the workers have a bug: they repeat an unknown commit with another request id.
    """
    store.open()
    calls = CALLS if same_id else 4 * CALLS  # on a fast machine few replies are lost: the bug must have its chance
    workers = [Worker(store, n, calls // WORKERS, same_id=same_id) for n in range(WORKERS)]
    chance = random.Random(seed)
    proxy.delay = lambda: chance.uniform(0.0, 0.1)
    proxy.fate = storm(seed, marks)
    began = time.monotonic()
    stop = threading.Event()
    refuser = threading.Thread(target=_refuse_now_and_then, args=(proxy, stop))
    for thread in (refuser, *(worker.thread for worker in workers)):
        thread.start()
    for worker in workers:
        worker.thread.join()
    stop.set()
    refuser.join()
    proxy.fate = lambda request: Fate.PASS
    while not proxy.settled():
        time.sleep(0.01)
    for worker in workers:
        worker.judge(direct)
    told = sum((worker.told for worker in workers), collections.Counter())
    seconds = time.monotonic() - began
    print(f"{CALLS} calls in {seconds:.0f} s; {dict(told)}; { ({f.name: n for f, n in proxy.happened.items()}) }")
    wrong = [f"worker {n}: {what}" for n, worker in enumerate(workers) for what in worker.wrong]
    assert wrong == [], "\n".join(wrong[:20])
    assert direct.check() == []
    return told


def _refuse_now_and_then(proxy, stop):
    """Let nobody connect for a moment, again and again: then a retry fails after its first attempt was sent."""
    while not stop.wait(0.4):
        proxy.refusing = True
        stop.wait(0.15)
        proxy.refusing = False

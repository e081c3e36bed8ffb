"""Writers during a failover: what was acknowledged, what of it is stored afterwards, and how long nothing succeeded."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from tenuto.errors import ReadOnly, StorageUnavailable, TenutoError
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Backend
from tenuto.kernel.transact import new_request


class Writers:
    """Threads that append numbers to a stream each, and retry by request id until each is acknowledged."""

    def __init__(self, store: Backend, tenants: Sequence[str]) -> None:
        self._store = store
        self.streams = [keys.pack(tenant, "log", at) for at, tenant in enumerate(tenants)]
        self.acknowledged: list[list[tuple[float, bytes]]] = [[] for _ in tenants]
        self.doubtful = self.refused = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(at,)) for at in range(len(tenants))]

    def _write(self, at: int) -> None:
        n = 0
        while not self._stop.is_set():
            n += 1
            value, request = b"%d" % n, None
            while not self._stop.is_set():
                try:
                    request = request or new_request(self._store.now())
                    self._store.commit([], [Append(self.streams[at], value)], request=request)
                except (StorageUnavailable, ReadOnly) as error:
                    self.doubtful += getattr(error, "outcome", "") == "unknown"
                    self.refused += 1
                    time.sleep(0.01)
                else:
                    self.acknowledged[at].append((time.monotonic(), value))
                    break

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def go_on(self, more: int = 30, seconds: float = 60.0) -> None:
        """Wait until every writer has had this many more successes."""
        before = list(map(len, self.acknowledged))
        deadline = time.monotonic() + seconds
        while not all(len(now) >= was + more for now, was in zip(self.acknowledged, before, strict=True)):
            assert time.monotonic() < deadline, f"no success within {seconds:g} s: {list(map(len, self.acknowledged))}"
            time.sleep(0.01)

    def outcome(self, killed: float) -> dict[str, Any]:
        """Compare with what is stored; what is lost must be one gap for each writer, that ends at the failover."""
        lost, waits = 0, []
        for stream, told in zip(self.streams, self.acknowledged, strict=True):
            found = [entry.value for entry in self._store.entries(stream, limit=10_000)]
            missing = sorted(int(value) for _, value in told if value not in set(found))
            assert found == sorted(found, key=int), "entries are in order, none twice"
            assert missing == list(range(missing[0], missing[-1] + 1) if missing else []), "a hole"
            late = [at for at, value in told if int(value) in missing and at > killed + 1]
            assert not late, "lost although it was acknowledged after the failover"
            lost += len(missing)
            waits.append(min(at for at, _ in told if at > killed + 0.05) - killed)
        return {
            "acknowledged": sum(map(len, self.acknowledged)),
            "lost": lost,
            "replies_lost": self.doubtful,
            "seconds_until_the_next_success": round(max(waits), 2),
        }


def tried(call: Callable[[], Any]) -> bool:
    """Return whether a call succeeds."""
    try:
        call()
    except TenutoError:
        return False
    return True

"""A rate limit for each API key, in each server process: a bucket that fills steadily and holds one second's worth."""

from __future__ import annotations

import threading
import time
from typing import Final

from tenuto.servers.http.problems import Refused

_MOST: Final = 10_000


class Rates:
    """Count the requests of each key. A rate of 0 sets no limit."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key_id: str) -> None:
        """Count one request; refuse it with 429 if the key has used up its rate."""
        if not self._rate:
            return
        now = time.monotonic()
        with self._lock:
            if len(self._buckets) > _MOST:
                self._buckets.clear()
            level, at = self._buckets.get(key_id, (max(1.0, self._rate), now))
            level = min(max(1.0, self._rate), level + (now - at) * self._rate)
            self._buckets[key_id] = (level - 1.0 if level >= 1.0 else level, now)
        if level < 1.0:
            wait = str(max(1, round((1.0 - level) / self._rate)))
            raise Refused(
                429, f"This API key exceeds {self._rate:g} requests a second. Nothing was done.", Retry_After=wait
            )

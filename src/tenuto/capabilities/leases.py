"""Leases: exclusive ownership, made safe by fencing tokens rather than clocks.

Keys, below the tenant: `(name, kind, "token")` is written at each acquisition and never expires; its version is the
fencing token. `(name, kind, "beat")` names the holder, and expires unless renewed. A fenced commit checks the token
atomically, so a process that lost the lease (a pause, a partition, a clock jump) can no longer write.

Acquiring checks and writes both keys in one commit; renewing checks the token and writes the beat; releasing checks
the token and deletes the beat. After a crash the beat expires. A holder that died on this machine is replaced at once.
"""

from __future__ import annotations

import math
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, Self

from tenuto import _machine
from tenuto.capabilities._core.base import Context, Timed
from tenuto.capabilities._core.renewal import Renewer
from tenuto.errors import Conflict, InvalidInput, LeaseHeld, StaleLease, StorageUnavailable
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Check, Commit, Delete, Put, Record, Write
from tenuto.kernel.durations import Duration, moment, patience, seconds
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work, on_store

Kind = Literal["lease", "leader", "run", "handoff", "file"]


class Lease(Timed):
    """A lease on a name, renewed in the background until it is released or lost.

    Use it as a context manager, or call `acquire` and `release`. Pass it as `fence` to writes.
    """

    def __init__(
        self, context: Context, renewer: Renewer, name: str, *, kind: Kind, ttl: Duration, wait: Duration | None
    ) -> None:
        self._context = context
        self._renewer = renewer
        self.name = keys.name(name, "lease")
        self._ttl = seconds(ttl, "ttl")
        if self._ttl < 0.1:
            raise InvalidInput(f"The ttl of a lease must be at least 0.1 s, not {ttl!r}.")
        # None tries once; a leader waits for ever.
        self._wait = math.inf if kind == "leader" else patience(wait)
        # A run keeps trying: every write of it checks the token, which tells whether another process took it over.
        self._expires = kind != "run"
        self._when_lost: dict[int, Callable[[], None]] = {}
        """Called by the renewing thread when it finds the lease lost."""
        self._token_key = keys.pack(self.name, kind, "token")
        self._beat_key = keys.pack(self.name, kind, "beat")
        self._token = 0
        self._lost = False
        self._renewed = 0.0
        self._pid = 0
        self._seen: Sequence[Record | None] = (None, None)
        self._ended = False
        self._renewing = threading.Lock()

    @property
    def token(self) -> int:
        """Return the fencing token, which grows with every acquisition by any holder; 0 before the first."""
        return self._token

    @property
    def held(self) -> bool:
        """Return whether this handle holds the lease, as far as this process knows."""
        return self._token > 0 and not self.lost

    @property
    def lost(self) -> bool:
        """Return whether the lease is lost, or must be assumed to be."""
        if self._token and not self._lost:
            forked = self._pid != os.getpid()
            # Not renewed for a whole ttl: another holder may have it. Monotonic, so that a clock jump has no effect.
            self._lost = forked or (self._expires and time.monotonic() - self._renewed > self._ttl)
        return self._lost

    @property
    def check(self) -> Check:
        """Return the check of a fenced commit; raise `StaleLease` if the lease is known to be lost."""
        if not self._token:
            raise InvalidInput(f"The lease {self.name!r} is not held. Acquire it before you use it as a fence.")
        if self._lost or self._pid != os.getpid():
            raise StaleLease(
                f"The lease {self.name!r} was lost; nothing was written. "
                "Stop this work, or acquire the lease again and read the current state."
            )
        return Check(self._token_key, self._token)

    @on_store
    def acquire(self) -> Work[Lease]:
        """Acquire the lease durably, waiting up to `wait`; raise `LeaseHeld` if another holder has it."""
        if self.held:
            raise InvalidInput(f"This handle already holds the lease {self.name!r}. Release it first.")
        left = self._wait  # counts the time slept: a clock set back would never end the wait
        delays = backoff(first=0.01, most=0.5)
        while True:
            holder = yield from self._try()
            if holder is None:
                self._start_renewing()
                return self
            if left <= 0:
                raise LeaseHeld(
                    f"The lease {self.name!r} is held by {holder}. Pass wait= to wait for it, or try again later.",
                    [self._beat_key],
                )
            pause = min(next(delays), left)
            left -= pause
            yield Sleep(pause)

    def _try(self) -> Work[str | None]:
        """Acquire the lease if it is free; else return the holder."""
        holder = self._holder()
        if holder is None and (yield from self._attempt()) is None:
            holder = "another process, which acquired it first"
        return holder

    def _holder(self) -> str | None:
        """Return the current holder, or None if there is none or it died on this machine."""
        self._seen = self._context.kernel.read([self._token_key, self._beat_key])
        beat = self._seen[1]
        if beat is None or _is_dead(beat):
            return None
        owner = codec.decode(beat.value)
        return f"{owner['writer']} (process {owner['pid']})"

    def _attempt(self, checks: Sequence[AnyCheck] = (), writes: Sequence[Write] = ()) -> Work[Commit | None]:
        """Acquire the lease as `_holder` just read it, with more writes in the same commit; None on a conflict."""
        token, beat = self._seen
        mine = [
            Check(self._token_key, token.version if token else 0),
            Check(self._beat_key, beat.version if beat else 0),
        ]
        owner = codec.encode(self._owner())
        began = time.monotonic()
        taken = [Put(self._token_key, owner), Put(self._beat_key, owner, self._ttl)]
        try:
            done = yield from commit_once(self._context.kernel, [*mine, *checks], [*taken, *writes])
        except Conflict:
            return None
        self._token, self._lost, self._renewed, self._pid = done.versions[0], False, began, os.getpid()
        return done

    def _start_renewing(self) -> None:
        self._ended = False
        self._renewer.add(self)

    def _release_with(
        self, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None = None
    ) -> Work[Commit]:
        """Release the lease, with more writes in the same commit; `Conflict` if it was lost."""
        self._stop_renewing()
        fence = [Check(self._token_key, self._token), *checks]
        done = yield from commit_once(self._context.kernel, fence, [Delete(self._beat_key), *writes], request)
        self._token = 0
        return done

    def _stop_renewing(self) -> None:
        """Stop renewing, after any renewal in progress: it would otherwise commit after the release."""
        self._renewer.remove(self)
        with self._renewing:
            self._ended = True

    def _owner(self) -> dict[str, Any]:
        pid = os.getpid()
        return {
            "writer": self._context.writer,
            "host": _machine.host(),
            "machine": platform.node(),
            "pid": pid,
            "started": _machine.started(pid),
            "hold": secrets.token_hex(8),
        }

    def renew(self) -> bool:
        """Extend the lease by its ttl; return whether it is still held. The background thread does this too."""
        with self._renewing:
            return not self._ended and self._renew()

    def _renew(self) -> bool:
        if not self._token or self._lost:
            return False
        began = time.monotonic()
        try:
            self._context.kernel.commit(
                [Check(self._token_key, self._token)], [Put(self._beat_key, codec.encode(self._owner()), self._ttl)]
            )
        except Conflict:
            self._lost = True
            for call in list(self._when_lost.values()):
                call()
            return False
        except StorageUnavailable:
            return not self.lost  # unreachable or full: retry; a lease that is no run until its ttl has passed
        self._renewed = began
        return True

    @on_store
    def release(self) -> Work[None]:
        """Release the lease durably, so that another can acquire it at once. Idempotent."""
        token = self._token
        if not token or self._lost or self._pid != os.getpid():
            self._renewer.remove(self)
            self._token = 0
            return
        self._stop_renewing()
        self._token = 0
        try:
            yield from commit_once(self._context.kernel, [Check(self._token_key, token)], [Delete(self._beat_key)])
        except Conflict:
            self._lost = True  # lost already: there is nothing to release

    @property
    def _interval(self) -> float:
        """Return the seconds between two renewals: a quarter of the ttl."""
        return self._ttl / 4

    def __enter__(self) -> Self:
        """Acquire the lease."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lease."""
        self.release()

    def __repr__(self) -> str:
        """Describe the lease without reading the store."""
        state = "lost" if self._token and self.lost else f"held, token {self._token}" if self._token else "not held"
        return f"<lease {self.name!r}: {state}>"


def _is_dead(beat: Record) -> bool:
    owner = codec.decode(beat.value)
    return bool(owner["host"] == _machine.host() and _machine.is_gone(owner["pid"], owner["started"]))


class Holder(NamedTuple):
    """The process that holds a lease."""

    writer: str
    """The name of its client."""
    machine: str
    """The host name of its machine."""
    pid: int
    since: datetime

    def __str__(self) -> str:
        """Name the holder in a few words."""
        return f"{self.writer} (process {self.pid} on {self.machine})"


def holder_of(token: Record | None, beat: Record | None) -> Holder | None:
    """Return who holds the lease of this token and beat, or None if it is free."""
    if token is None or beat is None or _is_dead(beat):
        return None
    owner = codec.decode(beat.value)
    return Holder(owner["writer"], owner["machine"], owner["pid"], moment(token.written_at))


def is_free(beat: Record | None) -> bool:
    """Return whether the lease of this beat is free: expired, released, or its holder died on this machine."""
    return beat is None or _is_dead(beat)

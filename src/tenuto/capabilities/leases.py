"""Leases: who may act. Safe through fencing tokens, not through clocks.

Keys, below the tenant: `(name, kind, "token")` is written at each acquisition and never expires; its
version is the fencing token. `(name, kind, "beat")` says who holds it, and expires unless renewed. A
fenced commit checks the token only, in the commit itself: whoever lost the lease, to a pause, a
partition or a clock that jumped, cannot write any more, whatever it believes.

Taking a lease is one commit that checks both keys and writes both; renewing checks the token and writes
the beat; releasing checks the token and ends the beat. A crash between any two leaves a beat that
expires. A holder that died on this machine is replaced at once.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal, Self

from tenuto import _machine
from tenuto.capabilities.context import Context
from tenuto.capabilities.keeper import Keeper
from tenuto.errors import Conflict, InvalidInput, LeaseHeld, StaleLease, StorageUnavailable
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import AnyCheck, Check, Commit, Delete, Put, Record, Write
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.transact import Steps, backoff, paced, settle

Kind = Literal["lease", "leader", "run"]


class Lease:
    """A hold on a name, renewed in the background until it is released or lost.

    Use it as a context manager, or with `acquire` and `release`. Give it as `fence` to writes.
    """

    def __init__(
        self, context: Context, keeper: Keeper, name: str, *, kind: Kind, ttl: Duration, wait: Duration | None
    ) -> None:
        self._context = context
        self._keeper = keeper
        self.name = keys.name(name, "lease")
        self._ttl = seconds(ttl, "ttl")
        if self._ttl < 0.1:
            raise InvalidInput(f"A lease's ttl is 0.1 s or more, not {ttl!r}.")
        # None asks once; a leader waits for ever.
        self._wait = math.inf if kind == "leader" else 0.0 if wait is None else seconds(wait, "wait")
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
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._context.clock

    @property
    def token(self) -> int:
        """Return the fencing token: it grows with every acquisition, by whomever. 0 before the first."""
        return self._token

    @property
    def held(self) -> bool:
        """Tell whether this is held, as far as this process knows."""
        return self._token > 0 and not self.lost

    @property
    def lost(self) -> bool:
        """Tell whether the hold is known, or must be assumed, to have passed on."""
        if self._token and not self._lost:
            forked = self._pid != os.getpid()
            # Not renewed for its whole life: somebody else may have it by now. Monotonic, so that a clock
            # that jumps neither loses nor keeps a lease.
            self._lost = forked or time.monotonic() - self._renewed > self._ttl
        return self._lost

    @property
    def token_key(self) -> bytes:
        """Return the key whose version is the token: writing it takes the lease from whoever has it."""
        return self._token_key

    @property
    def check(self) -> Check:
        """Return the check that a fenced commit makes."""
        if not self._token:
            raise InvalidInput(f"The lease {self.name!r} is not held; acquire it before it can guard a write.")
        if self._lost or self._pid != os.getpid():
            raise StaleLease(
                f"The lease {self.name!r} has passed on; nothing was written. "
                "Stop this work, or take the lease again and read what has changed."
            )
        return Check(self._token_key, self._token)

    @paced
    def acquire(self) -> Steps[Lease]:
        """Take the lease, waiting if that was asked for; `LeaseHeld` if somebody else has it."""
        if self.held:
            raise InvalidInput(f"The lease {self.name!r} is held already by this handle.")
        left = self._wait  # counted by what was slept: a clock set back would never end it
        for delay in backoff(None, first=0.01, most=0.5):
            holder = yield from self._try()
            if holder is None:
                self.kept()
                return self
            if left <= 0:
                raise LeaseHeld(
                    f"The lease {self.name!r} is held by {holder}. Wait for it with wait=, or do something else.",
                    [self._beat_key],
                )
            pause = min(delay, left)
            left -= pause
            yield pause
        raise AssertionError("the back-off never ends")

    def _try(self) -> Steps[str | None]:
        """Take the lease if it is free; else return who has it."""
        holder = self.holder()
        if holder is None and (yield from self.attempt()) is None:
            holder = "somebody who was faster"
        return holder

    def holder(self) -> str | None:
        """Return who has the lease now, or None if it is free; a holder that died on this machine has it no more."""
        self._seen = self._context.kernel.read([self._token_key, self._beat_key])
        beat = self._seen[1]
        if beat is None or _is_dead(beat):
            return None
        owner = codec.decode(beat.value)
        return f"{owner['writer']} (process {owner['pid']})"

    def attempt(self, checks: Sequence[AnyCheck] = (), writes: Sequence[Write] = ()) -> Steps[Commit | None]:
        """Take the lease as `holder` has just seen it, and write something in the same commit; None on a conflict."""
        token, beat = self._seen
        mine = [
            Check(self._token_key, token.version if token else 0),
            Check(self._beat_key, beat.version if beat else 0),
        ]
        owner = codec.encode(self._owner())
        began = time.monotonic()
        taken = [Put(self._token_key, owner), Put(self._beat_key, owner, self._ttl)]
        try:
            done = yield from settle(self._context.kernel, [*mine, *checks], [*taken, *writes])
        except Conflict:
            return None
        self._token, self._lost, self._renewed, self._pid = done.versions[0], False, began, os.getpid()
        return done

    def kept(self) -> None:
        """Begin renewing it in the background."""
        self._ended = False
        self._keeper.keep(self)

    def left(self, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None = None) -> Steps[Commit]:
        """Give the lease up and write something in the same commit; `Conflict` if it has passed on."""
        self._no_more()
        fence = [Check(self._token_key, self._token), *checks]
        done = yield from settle(self._context.kernel, fence, [Delete(self._beat_key), *writes], request)
        self._token = 0
        return done

    def _no_more(self) -> None:
        """End renewing: a renewal that has begun comes to its end first, else it would land after the release."""
        self._keeper.drop(self)
        with self._renewing:
            self._ended = True

    def _owner(self) -> dict[str, Any]:
        pid = os.getpid()
        return {
            "writer": self._context.writer,
            "host": _machine.host(),
            "pid": pid,
            "started": _machine.started(pid),
            "hold": secrets.token_hex(8),
        }

    def renew(self) -> bool:
        """Extend the hold by its ttl, now; tell whether it is still held. The background does it by itself."""
        with self._renewing:
            return not self._ended and self._renew()

    def _renew(self) -> bool:
        if not self._token or self._lost:
            return False
        began = time.monotonic()
        try:
            self._context.kernel.commit(
                [Check(self._token_key, self._token)],
                [Put(self._beat_key, codec.encode(self._owner()), self._ttl)],
            )
        except Conflict:
            self._lost = True
            return False
        except StorageUnavailable:
            return not self.lost  # unreachable: it is kept trying until the ttl has passed
        self._renewed = began
        return True

    @paced
    def release(self) -> Steps[None]:
        """Give the lease up, so that the next one has it at once. Doing it again does nothing."""
        token = self._token
        if not token or self._lost or self._pid != os.getpid():
            self._keeper.drop(self)
            self._token = 0
            return
        self._no_more()
        self._token = 0
        try:
            yield from settle(self._context.kernel, [Check(self._token_key, token)], [Delete(self._beat_key)])
        except Conflict:
            self._lost = True  # it had passed on: there is nothing to give up

    @property
    def interval(self) -> float:
        """Return how often the hold is renewed, in seconds: four times in its life."""
        return self._ttl / 4

    def __enter__(self) -> Self:
        """Take the lease."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Give it up."""
        self.release()

    def __repr__(self) -> str:
        """Say what is known without asking the store."""
        state = "lost" if self._token and self.lost else f"held, token {self._token}" if self._token else "not held"
        return f"<lease {self.name!r}: {state}>"


def _is_dead(beat: Record) -> bool:
    owner = codec.decode(beat.value)
    return bool(owner["host"] == _machine.host() and _machine.is_gone(owner["pid"], owner["started"]))


def is_free(beat: Record | None) -> bool:
    """Tell whether nobody holds the lease whose beat this is: it ran out, was given up, or its holder died here."""
    return beat is None or _is_dead(beat)

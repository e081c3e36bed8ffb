"""The log of a run: one line for each event, in order.

Keys, below the tenant: the stream `(id, "run")` is the log; `(id, "run", "token")` and `(id, "run", "beat")` are its
lease; `(id, "run", "live")` is described in `live`, `(id, "run", "heartbeat")` in `heartbeat`; `(id, "run", "signal", event)` holds a signal until the run consumes it; `(id, "run", "child", other)` lists runs
started by it. `("runs", "index", "every", id)` is the run's head: its status and what a worker needs to know;
`("runs", "index", "user", user, id)` lists a user's runs. The index for workers is described in `due`.

The log is the source of truth. The head changes only when the run starts, is taken over, pauses or ends, in the commit
of that line. Lines are fenced by the lease's token, so a process that lost the run can add none; others write only
`SIGNALLED` and `CANCELLED`. A step gets its number, 1, 2, 3, …, when it begins; its first line identifies it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, stamp
from tenuto.capabilities._core.blobs import Blobs, changes, digest_of, held_in, lifted
from tenuto.capabilities.runs.arguments import Described
from tenuto.capabilities.runs.due import moved
from tenuto.errors import Conflict, Damaged, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.codec import Held
from tenuto.kernel.contract import AnyCheck, Append, Entry, Put, Record, Write
from tenuto.kernel.transact import backoff
from tenuto.kernel.tree import LARGE
from tenuto.kernel.work import Sleep, Work

STARTED, RESUMED, INTENT, AGAIN, RESULT, ERROR, DOUBT, HALTED, WAITS, EMITTED, SIGNALLED = range(1, 12)
COMPLETED, FAILED, CANCELLED, QUEUED = range(20, 24)

PLAIN, LOWERED, TEXT, PACKED = 0, 1, 2, 4
"""The form of a stored result: as it is; with dicts in place of objects; as its repr; as one blob."""

OVER: Final = frozenset({"completed", "failed", "cancelled"})
_EVERY: Final = keys.pack("runs", "index", "every")
_OF_USER: Final = keys.pack("runs", "index", "user")
_PAGE: Final = 5_000
_GETS_ON: Final = frozenset({RESULT, ERROR, DOUBT, HALTED, WAITS, EMITTED, COMPLETED, FAILED, QUEUED})
_WORTH: Final = 0.05
"""Shorter times, in seconds, are not reported."""
_TOO_LARGE: Final = 4 * 1024 * 1024


class Head(NamedTuple):
    """The status of a run, readable without its log."""

    status: str
    """As stored: a `running` run whose lease is free is interrupted."""
    fn: str | None
    user: str | None
    parent: str | None
    created: float
    changed: float
    first: int
    """Its first line; those before it belong to a deleted run of the same id."""
    wake: float | None = None
    waits: tuple[tuple[str, str], ...] = ()
    """What it waits for besides `wake`: ("signal", event), ("question", id) or ("run", id)."""
    deadline: float | None = None
    takeovers: int = 0
    """How often in a row it was taken over without progress."""
    upto: int = 0
    """The last line when it was last taken over."""
    priority: int = 0
    """Among queued runs the highest is executed first."""
    failures: int = 0
    """How often it failed and is retried."""


class Identity(NamedTuple):
    """What identifies a step: name and key, or name and arguments."""

    kind: str
    """A step, or another recorded operation: map, sleep, wait, ask, now, state, …"""
    name: str
    key: str | None
    described: Described
    effect: str = "pure"
    together: bool = False
    """Begun concurrently with others, or in another task or thread than the run: then order has no meaning."""

    def stored(self) -> list[Any]:
        """Return the stored form."""
        return [self.kind, self.name, self.key, list(self.described), self.effect, self.together]


class Op:
    """A numbered operation of a run, as recorded in its log."""

    state = "begun"
    """begun, done, error, or halted (its function paused)."""
    attempts = 1
    doubts = 0
    ended: float | None = None
    form = PLAIN
    value: Any = None
    raw = b""
    apart = False
    error: dict[str, Any] | None = None
    following = 0
    seconds = 0.0
    usage: Sequence[Any] = ()
    inherited = 0
    """How many of them a fork inherited."""
    resumes = 0
    """How often the run had been resumed when this ended."""
    question: str | None = None
    until: float | None = None
    ref: str | None = None
    verified: list[Any] | None = None
    """Who said that it happened, and when; None if its function returned."""
    repeats: Sequence[list[Any]] = ()
    """The repeats: attempt, when, reason, who said that it had not happened, and when."""
    left = False
    """Whether its error made the run fail."""

    def __init__(self, n: int, identity: Identity, at: float) -> None:
        self.n = n
        self.identity = identity
        self.at = at


class History:
    """The content of a run's log."""

    def __init__(self) -> None:
        self.started: dict[str, Any] = {}
        self.at = 0.0
        self.ops: dict[int, Op] = {}
        self.resumes: list[float] = []
        self.error: dict[str, Any] | None = None
        self.form, self.value, self.raw = PLAIN, None, b""
        self.last = 0
        self.inherits = False
        """Whether the lines being read are those that a fork inherited."""
        self.got_on = 0
        """The last line that shows progress."""

    @property
    def next(self) -> int:
        """Return the number of the next operation."""
        return max(self.ops, default=0) + 1


class RunLog:
    """The log of one run, and its head."""

    def __init__(self, context: Context, run_id: str) -> None:
        self.id = keys.name(run_id, "run id")
        self.context = context
        self.blobs = Blobs(context)
        named = keys.named(run_id, "run id")
        self.own = named + keys.pack("run")
        self.head_key = _EVERY + named
        self.live_key = self.own + keys.pack("live")
        self.heartbeat_key = self.own + keys.pack("heartbeat")
        self.trace_key = self.own + keys.pack("trace")

    def head(self) -> tuple[Head | None, int]:
        """Return the stored head and its version."""
        record = self.context.kernel.read([self.head_key])[0]
        return (None, 0) if record is None else (head_of(record), record.version)

    def must(self) -> tuple[Head, int]:
        """Return the head and its version; `NotFound` if there is no such run."""
        head, version = self.head()
        if head is None or head.status == "deleting":
            raise NotFound(f"There is no run {self.id!r}. List the runs with agent.runs.list().")
        return head, version

    def entries(self, first: int) -> Iterator[Entry]:
        """Yield the lines from number `first`; those that were archived are brought back."""
        after = first - 1
        while page := self.context.kernel.entries(self.own, after=after, limit=_PAGE):
            if page[0].number != after + 1:
                self._bring_back(after + 1)
                continue
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].number

    def need(self, first: int) -> None:
        """Bring back the lines from number `first` on if they were archived."""
        found = self.context.kernel.entries(self.own, after=first - 1, limit=1)
        if found and found[0].number != first:
            self._bring_back(first)

    def _bring_back(self, first: int) -> None:
        if not self.context.archive.bring_back("run", self.id, first):
            raise Damaged(f"Line {first} of the run {self.id!r} is missing. Restore it from a backup.")

    def read(self, first: int) -> History:
        """Read the log from the run's first line."""
        found, last = History(), 0
        for entry in self.entries(first):
            last = entry.number
            if not entry.forgotten and _fold(found, entry) in _GETS_ON:
                found.got_on = entry.number
        found.last = last
        return found

    def last(self) -> int:
        """Return the number of the last line."""
        newest = self.context.kernel.entries(self.own, limit=1, reverse=True)
        return newest[0].number if newest else 0

    def value(self, op: Op) -> Any:
        """Return the stored result of an operation, with its blobs."""
        return self.whole(op.form, op.value, op.raw, 2)

    def whole(self, form: int, value: Any, raw: bytes, place: int) -> Any:
        """Return a stored value with its blobs; `raw` is the line if it has any, `place` the value's index in it."""
        if form & PACKED:
            return codec.unpack(self.blobs.get(value.digest))
        return codec.decode(raw, self.blobs.find)[4][place] if raw else value

    def line(self, kind: int, n: int, data: Any) -> Append:
        """Return the write that adds a line."""
        writer, correlation = stamp(self.context)
        return Append(self.own, codec.encode([writer, correlation, kind, n, data]))

    def weighed(self, kind: int, n: int, data: list[Any], at: int) -> Work[tuple[list[AnyCheck], list[Write]]]:
        """Return the write of a line whose value `data[at]` may be large; its blobs are stored first.

        `data[at - 1]` is the form of the value; `data[at + 1]` becomes True if it has blobs.
        """
        line = self.line(kind, n, data)
        if len(line.value) < LARGE:
            return [], [line]
        value, contents = lifted(data[at])
        line = self.line(kind, n, [*data[:at], value, True, *data[at + 2 :]])
        if len(line.value) > _TOO_LARGE:  # many small parts: store them as one blob
            packed = codec.pack(data[at])
            digest = digest_of(packed)
            contents = {digest: packed}
            held = codec.stand_in(Held(digest, len(packed), text=False))
            line = self.line(kind, n, [*data[: at - 1], data[at - 1] | PACKED, held, True, *data[at + 2 :]])
        delays = backoff()
        while True:
            yield from self.blobs.ensure(contents)
            try:
                checks, writes = self.blobs.counted(changes(contents))
            except Conflict:  # a sweep deleted one just now: store it again
                yield Sleep(next(delays))
            else:
                return [*checks], [line, *writes]

    def placed(self, head: Head, before: Head | None = None) -> list[Write]:
        """Return the writes that store this head in place of the one `before`, and index it for workers."""
        return [Put(self.head_key, codec.encode(list(head))), *moved(self.id, before, head)]

    def signal_key(self, event: str) -> bytes:
        """Return the key of a pending signal."""
        return self.own + keys.pack("signal") + keys.named(event, "event")

    def child_key(self, child: str) -> bytes:
        """Return the key that lists a run started by this one."""
        return self.own + keys.pack("child") + keys.named(child, "run id")


def head_of(record: Record) -> Head:
    """Return the head in a record."""
    status, fn, user, parent, created, changed, first, wake, waits, *rest = codec.decode(record.value)
    return Head(status, fn, user, parent, created, changed, first, wake, tuple((k, r) for k, r in waits), *rest[:5])


def id_of(record: Record) -> str:
    """Return the id of the run in a record's key."""
    return str(keys.unpack(record.key)[-1])


def every_key(user: str | None) -> bytes:
    """Return the key prefix of the list of runs: all, or those of a user."""
    return _EVERY if user is None else _OF_USER + keys.named(user, "user")


def user_key(user: str, run_id: str) -> bytes:
    """Return the key that lists a run for its user."""
    return _OF_USER + keys.named(user, "user") + keys.named(run_id, "run id")


def identity_of(stored: list[Any]) -> Identity:
    """Return the identity of its stored form."""
    described = Described._make(stored[3])
    return Identity(stored[0], stored[1], stored[2], described, stored[4], stored[5])


Equal = tuple[str, str, str | bytes]
"""What equal steps share: kind, name, and the key or else the digest of the arguments."""


def equal_to(identity: Identity) -> Equal:
    """Return what steps equal to this one share."""
    return identity.kind, identity.name, identity.key if identity.key is not None else identity.described.digest


def idempotency_key_of(uid: bytes, equal: Equal, which: int) -> str:
    """Return the idempotency key of a step: of the run with this uid, the `which`-th among equal ones."""
    return hashlib.sha256(codec.pack([uid, *equal, which])).hexdigest()[:32]


def references(entry: Entry) -> set[bytes]:
    """Return the blobs to which a line refers."""
    return set() if entry.forgotten else held_in(codec.decode(entry.value)[4])


def _fold(history: History, entry: Entry) -> int:  # noqa: C901, PLR0912, PLR0915 - one kind of line after the other
    """Fold a line into the history; return its kind."""
    line = codec.decode(entry.value)
    kind, n, data, at = line[2], line[3], line[4], entry.written_at
    op = history.ops.get(n)
    if kind == RESULT:
        if op is None:
            op = history.ops[n] = Op(n, identity_of(data[0]), at - data[4])
        op.state, op.value, op.ended, op.resumes = "done", data[2], at, len(history.resumes)
        op.seconds += data[4]
        if op.attempts > 1 or data[1] or data[6]:
            op.form, op.error, op.verified = data[1], None, data[6] or None
        if data[5]:
            op.usage = [*op.usage, *data[5]]
            op.inherited += len(data[5]) if history.inherits else 0
        if data[3] or op.apart:
            op.apart, op.raw = data[3], entry.value if data[3] else b""
    elif kind == INTENT:
        history.ops[n] = Op(n, identity_of(data), at)
    elif kind == ERROR:
        identity, error, following, seconds, usage = data[:5]
        if op is None:
            op = history.ops[n] = Op(n, identity_of(identity), at - seconds)
        op.state, op.error, op.following, op.ended = "error", error, following, at
        op.seconds += seconds
        op.usage = [*op.usage, *usage]
        op.inherited += len(usage) if history.inherits else 0
    elif kind == AGAIN:
        identity, attempt, why, error, said = data[:5]
        if op is None:
            op = history.ops[n] = Op(n, identity_of(identity), at)
        op.state, op.attempts, op.error = "begun", attempt, error
        op.question = None  # it was about an earlier attempt
        op.left = False
        op.doubts += why == "doubt"
        op.repeats = [*op.repeats, [attempt, at, why, *(said or [None, None])]]
    elif kind == WAITS:
        op = history.ops[n] = Op(n, identity_of(data[0]), at)
        op.until, op.ref = data[1], data[2]
    elif kind == DOUBT and op is not None:
        op.question = data[0]
    elif kind == HALTED and op is not None:
        op.state = "halted"
    elif kind == STARTED:
        history.started, history.at, history.inherits = data, at, data["forked"] is not None
    elif kind == QUEUED:
        history.inherits = False
    elif kind == RESUMED:
        history.resumes.append(at)
        history.error = None
    elif kind == COMPLETED:
        history.form, history.value, history.raw = data[0], data[1], entry.value if data[2] else b""
    elif kind == FAILED:
        history.error = data
        for number in data.get("steps", ()):
            if number in history.ops:
                history.ops[number].left = True
    return int(kind)


def usage_sum(ops: Iterable[Op], *, inherited: bool = False) -> float:
    """Return the recorded cost of steps; with `inherited`, also of what a fork inherited."""
    used = (one for op in ops for one in op.usage[0 if inherited else op.inherited :])
    return float(sum(one[3] for one in used if one[3] is not None))


def dollars(cost: float) -> str:
    """Return a cost as text; below a cent with as many digits as it takes: $0.0004."""
    return f"${cost:.2f}" if cost >= 0.01 or not cost else f"${cost:.{2 - math.floor(math.log10(cost))}f}".rstrip("0")


def resume_line(run_id: str, history: History, *, resumed: bool, over: bool) -> str:
    """Return a run's resume line: `resuming trip-42 at book (1 step reused, 4.1 s saved)`."""
    if not resumed and not over:
        return f"starting {run_id}"
    ops = [op for _, op in sorted(history.ops.items()) if op.identity.kind in ("step", "map")]
    done = [op for op in ops if op.state == "done"]
    due = [op for op in ops if op.state != "done" and not (op.state == "error" and history.next > op.following)]
    where = f" at {_called(due[0], ops)}" if due else f" after {_called(done[-1], ops)}" if done else ""
    cost, took = usage_sum(done, inherited=True), sum(op.seconds for op in done)
    saved = [f"{took:.1f} s"] if took >= _WORTH else []
    saved += [dollars(cost)] if cost else []
    count = f"{len(done)} step{'' if len(done) == 1 else 's'} reused"
    if saved:
        count += f", {' and '.join(saved)} saved"
    return f"{'replaying' if over else 'resuming'} {run_id}{'' if over else where} ({count})"


def _called(op: Op, ops: Sequence[Op]) -> str:
    """Return a step's name with its key, or with its occurrence from the second on."""
    name, key = op.identity.name, op.identity.key
    if key is not None:
        return f"{name} [{key}]"
    which = sum(other.identity.name == name and other.n <= op.n for other in ops)
    return name if which == 1 else f"{name} number {which}"

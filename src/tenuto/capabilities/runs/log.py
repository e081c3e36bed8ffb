"""The log of a run: one line for everything that happened to it, in order.

Keys, below the tenant: the stream `(id, "run")` is the log; `(id, "run", "token")` and `(id, "run", "beat")` are the
lease under which it is written; `(id, "run", "signal", event)` holds a signal until the run takes it, and
`(id, "run", "child", other)` says which runs it began. `("runs", "index", "every", id)` is the run's head, its status
and what a worker needs to know; `("runs", "open", id)` is the same for runs that are not over; `("runs", "index",
"user", user, id)` lists a user's runs.

The log is the truth: what a run has done is read from it alone. The head changes only where the run begins, is
taken over, pauses or ends, in the commit of the line that says so. A line is added under the lease's token, so
that whoever lost the run can add nothing (`SIGNALLED` and `CANCELLED` are others' and are not).

A step is numbered when it begins, 1, 2, 3, …; its lines carry that number, and the first of them says what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from tenuto.capabilities.arguments import Described
from tenuto.capabilities.blobs import Blobs, changes, digest_of, held_in, lifted
from tenuto.capabilities.context import Context, stamp
from tenuto.errors import Conflict, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.codec import Held
from tenuto.kernel.contract import AnyCheck, Append, Delete, Entry, Put, Record, Write
from tenuto.kernel.transact import Steps, backoff
from tenuto.kernel.tree import LARGE

STARTED, RESUMED, INTENT, AGAIN, RESULT, ERROR, DOUBT, HALTED, WAITS, EMITTED, SIGNALLED = range(1, 12)
COMPLETED, FAILED, CANCELLED, QUEUED = range(20, 24)

PLAIN, LOWERED, TEXT, PACKED = 0, 1, 2, 4
"""How a result is stored: as it is; with dicts in place of objects; as its repr; as one large part."""

OVER: Final = frozenset({"completed", "failed", "cancelled"})
_EVERY: Final = keys.pack("runs", "index", "every")
_OPEN: Final = keys.pack("runs", "open")
_OF_USER: Final = keys.pack("runs", "index", "user")
_PAGE: Final = 5_000
_GETS_ON: Final = frozenset({RESULT, ERROR, DOUBT, HALTED, WAITS, EMITTED, COMPLETED, FAILED, QUEUED})
_WORTH: Final = 0.05
"""Seconds that are worth to be told of."""
_TOO_LARGE: Final = 4 * 1024 * 1024


class Head(NamedTuple):
    """What is known of a run without reading its log."""

    status: str
    """As it was written: a run that is `running` and not held is interrupted."""
    fn: str | None
    user: str | None
    parent: str | None
    created: float
    changed: float
    first: int
    """The line with which it begins; those before it are of a run of that id that was deleted."""
    wake: float | None = None
    waits: tuple[tuple[str, str], ...] = ()
    """What a waiting run waits for besides `wake`: ("signal", event) or ("question", id)."""
    deadline: float | None = None
    takeovers: int = 0
    """How often in a row it was taken over without having done anything since."""
    upto: int = 0
    """The last line at that time."""


class Identity(NamedTuple):
    """Which step is meant: by name and key, or by name and arguments."""

    kind: str
    """A step, or what else a run does that is not repeated: map, sleep, wait, ask, now, state, …"""
    name: str
    key: str | None
    described: Described
    effect: str = "pure"
    together: bool = False
    """Begun beside others, or from another task or thread than the run: then order tells nothing."""

    def stored(self) -> list[Any]:
        """Return it as a line holds it."""
        return [self.kind, self.name, self.key, list(self.described), self.effect, self.together]


class Op:
    """One numbered thing that a run does, as far as its log tells."""

    state = "begun"
    """begun, done, error, or halted: it paused inside of itself."""
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
    question: str | None = None
    until: float | None = None
    ref: str | None = None
    verified = False
    left = False
    """True where its error left the run."""

    def __init__(self, n: int, identity: Identity, at: float) -> None:
        self.n = n
        self.identity = identity
        self.at = at


class Told:
    """What a run's log tells."""

    def __init__(self) -> None:
        self.started: dict[str, Any] = {}
        self.at = 0.0
        self.ops: dict[int, Op] = {}
        self.resumes: list[float] = []
        self.error: dict[str, Any] | None = None
        self.form, self.value, self.raw = PLAIN, None, b""
        self.last = 0
        self.got_on = 0
        """The last line that says that something has come of the run's work."""

    @property
    def next(self) -> int:
        """Return the number of the next thing."""
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
        self.open_key = _OPEN + named

    # -- reading -----------------------------------------------------------------------------------------------

    def head(self) -> tuple[Head | None, int]:
        """Return the head and its version, as it is stored."""
        record = self.context.kernel.read([self.head_key])[0]
        return (None, 0) if record is None else (head_of(record), record.version)

    def must(self) -> tuple[Head, int]:
        """Return the head and its version; `NotFound` if there is no such run."""
        head, version = self.head()
        if head is None or head.status == "deleting":
            raise NotFound(f"There is no run {self.id!r}. See which there are with agent.runs.list().")
        return head, version

    def entries(self, first: int) -> Iterator[Entry]:
        """Yield the lines from number `first` on."""
        after = first - 1
        while page := self.context.kernel.entries(self.own, after=after, limit=_PAGE):
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].number

    def told(self, first: int) -> Told:
        """Return what the log tells, from the line with which the run begins."""
        found, last = Told(), 0
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
        """Return what came of a thing, with its large parts, as it is stored."""
        return self.whole(op.form, op.value, op.raw, 2)

    def whole(self, form: int, value: Any, raw: bytes, place: int) -> Any:
        """Return a stored value with its large parts; `raw` is the line if it has any, `place` where it stands there."""
        if form & PACKED:
            return codec.unpack(self.blobs.get(value.digest))
        return codec.decode(raw, self.blobs.find)[4][place] if raw else value

    # -- writing -----------------------------------------------------------------------------------------------

    def line(self, kind: int, n: int, data: Any) -> Append:
        """Return a line, to be added."""
        writer, correlation = stamp(self.context)
        return Append(self.own, codec.encode([writer, correlation, kind, n, data]))

    def weighed(self, kind: int, n: int, data: list[Any], at: int) -> Steps[tuple[list[AnyCheck], list[Write]]]:
        """Return a line whose part `at` may be large: then it refers to its large parts, which are stored first.

        `data[at + 1]` tells that it does; `data[at - 1]` is the form of the value.
        """
        line = self.line(kind, n, data)
        if len(line.value) < LARGE:
            return [], [line]
        value, contents = lifted(data[at])
        line = self.line(kind, n, [*data[:at], value, True, *data[at + 2 :]])
        if len(line.value) > _TOO_LARGE:  # many small parts: kept as one large one
            packed = codec.pack(data[at])
            digest = digest_of(packed)
            contents = {digest: packed}
            held = codec.stand_in(Held(digest, len(packed), text=False))
            line = self.line(kind, n, [*data[: at - 1], data[at - 1] | PACKED, held, True, *data[at + 2 :]])
        for delay in backoff(None):
            yield from self.blobs.ensure(contents)
            try:
                checks, writes = self.blobs.counted(changes(contents))
            except Conflict:  # a sweep took one away that had just been there: it is stored again
                yield delay
            else:
                return [*checks], [line, *writes]
        raise AssertionError("the back-off never ends")

    def placed(self, head: Head) -> list[Write]:
        """Return the writes that give the run this head."""
        value = codec.encode(list(head))
        listed: list[Write] = [Put(self.head_key, value)]
        listed.append(Delete(self.open_key) if head.status in OVER else Put(self.open_key, value))
        return listed

    def signal_key(self, event: str) -> bytes:
        """Return where a signal waits for the run to take it."""
        return self.own + keys.pack("signal") + keys.named(event, "event")

    def child_key(self, child: str) -> bytes:
        """Return where it is noted that this run began another."""
        return self.own + keys.pack("child") + keys.named(child, "run id")


def head_of(record: Record) -> Head:
    """Return what a head's record says."""
    status, fn, user, parent, created, changed, first, wake, waits, *rest = codec.decode(record.value)
    return Head(status, fn, user, parent, created, changed, first, wake, tuple((k, r) for k, r in waits), *rest[:3])


def id_of(record: Record) -> str:
    """Return the run whose head this is."""
    return str(keys.unpack(record.key)[-1])


def every_key(user: str | None) -> bytes:
    """Return below which key runs are listed: all, or those of a user."""
    return _EVERY if user is None else _OF_USER + keys.named(user, "user")


def user_key(user: str, run_id: str) -> bytes:
    """Return where a run is listed for its user."""
    return _OF_USER + keys.named(user, "user") + keys.named(run_id, "run id")


OPEN_RUNS: Final = _OPEN


def identity_of(stored: list[Any]) -> Identity:
    """Return an identity as a line holds it."""
    described = Described._make(stored[3])
    return Identity(stored[0], stored[1], stored[2], described, stored[4], stored[5])


def references(entry: Entry) -> set[bytes]:
    """Return the large parts that a line refers to."""
    return set() if entry.forgotten else held_in(codec.decode(entry.value)[4])


def _fold(told: Told, entry: Entry) -> int:  # noqa: C901, PLR0912 - one kind of line after the other
    """Take a line in; return of which kind it is."""
    line = codec.decode(entry.value)
    kind, n, data, at = line[2], line[3], line[4], entry.written_at
    op = told.ops.get(n)
    if kind == RESULT:
        if op is None:
            op = told.ops[n] = Op(n, identity_of(data[0]), at - data[4])
        op.state, op.value, op.ended = "done", data[2], at
        op.seconds += data[4]
        if op.attempts > 1 or data[1] or data[6]:
            op.form, op.error, op.verified = data[1], None, data[6]
        if data[5]:
            op.usage = [*op.usage, *data[5]]
        if data[3] or op.apart:
            op.apart, op.raw = data[3], entry.value if data[3] else b""
    elif kind == INTENT:
        told.ops[n] = Op(n, identity_of(data), at)
    elif kind == ERROR:
        identity, error, following, seconds, usage = data[:5]
        if op is None:
            op = told.ops[n] = Op(n, identity_of(identity), at - seconds)
        op.state, op.error, op.following, op.ended = "error", error, following, at
        op.seconds += seconds
        op.usage = [*op.usage, *usage]
    elif kind == AGAIN:
        identity, attempt, why, error = data[:4]
        if op is None:
            op = told.ops[n] = Op(n, identity_of(identity), at)
        op.state, op.attempts, op.error = "begun", attempt, error
        op.question = None  # what was said of an earlier attempt says nothing of this one
        op.left = False
        op.doubts += why == "doubt"
    elif kind == WAITS:
        op = told.ops[n] = Op(n, identity_of(data[0]), at)
        op.until, op.ref = data[1], data[2]
    elif kind == DOUBT and op is not None:
        op.question = data[0]
    elif kind == HALTED and op is not None:
        op.state = "halted"
    elif kind == STARTED:
        told.started, told.at = data, at
    elif kind == RESUMED:
        told.resumes.append(at)
        told.error = None
    elif kind == COMPLETED:
        told.form, told.value, told.raw = data[0], data[1], entry.value if data[2] else b""
    elif kind == FAILED:
        told.error = data
        for number in data.get("steps", ()):
            if number in told.ops:
                told.ops[number].left = True
    return int(kind)


def usage_sum(ops: Iterable[Op]) -> float:
    """Return what steps cost, as far as they said so."""
    return float(sum(one[3] for op in ops for one in op.usage if one[3] is not None))


def resume_line(run_id: str, told: Told, *, resumed: bool, over: bool) -> str:
    """Say where a run stands as it is taken: `resuming trip-42 at book (1 step reused, 4.1 s saved)`."""
    if not resumed and not over:
        return f"starting {run_id}"
    ops = [op for _, op in sorted(told.ops.items()) if op.identity.kind in ("step", "map")]
    done = [op for op in ops if op.state == "done"]
    due = [op for op in ops if op.state != "done" and not (op.state == "error" and told.next > op.following)]
    where = f" at {_called(due[0], ops)}" if due else f" after {_called(done[-1], ops)}" if done else ""
    cost, took = usage_sum(done), sum(op.seconds for op in done)
    saved = [f"{took:.1f} s"] if took >= _WORTH else []
    saved += [f"${cost:.2f}"] if cost else []
    count = f"{len(done)} step{'' if len(done) == 1 else 's'} reused"
    if saved:
        count += f", {' and '.join(saved)} saved"
    return f"{'replaying' if over else 'resuming'} {run_id}{'' if over else where} ({count})"


def _called(op: Op, ops: Sequence[Op]) -> str:
    """Return what a step is called among others: its name, with its key or which one of that name it is."""
    name, key = op.identity.name, op.identity.key
    if key is not None:
        return f"{name} [{key}]"
    which = sum(other.identity.name == name and other.n <= op.n for other in ops)
    return name if which == 1 else f"{name} number {which}"

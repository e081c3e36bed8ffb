"""A run: code that carries on where it was killed.

    with agent.run("trip-42") as run:
        plan = run.step("plan", make_plan, "Lisbon, May")
        booking = run.step("book", book, plan, effect="once", verify=find_booking)

The body runs again each time; what is on record is not done again. This is the handle that the body has; taking
and leaving a run is in `running`, a step in `stepping`, waiting in `waiting`, and finding things again in `replay`.
"""

from __future__ import annotations

import itertools
import random
import threading
import uuid as uuids
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Token, copy_context
from datetime import datetime
from typing import Any, Literal, Self, TypeVar

from tenuto.capabilities import waiting
from tenuto.capabilities.arguments import Described
from tenuto.capabilities.outcomes import paused_in
from tenuto.capabilities.replay import LENIENT
from tenuto.capabilities.runlog import EMITTED, RESULT, Identity
from tenuto.capabilities.running import Engine, Running, current, current_step
from tenuto.capabilities.stepping import MISSING, Effect, Lane, Retry, Step, Verify, recalled, stepping
from tenuto.capabilities.threads import Thread
from tenuto.errors import InvalidInput, Paused
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Append
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.work import Work, perform, worked

T = TypeVar("T")
OnError = Literal["raise", "keep"]


class Run:
    """A run in hand. Use it inside of `with`; everything here is on record when it returns."""

    def __init__(
        self,
        engine: Engine,
        run_id: str,
        *,
        user: str | None = None,
        wait: Duration = 15,
        block: bool = False,
        deadline: Duration | None = None,
        thread: str | None = None,
    ) -> None:
        self._running = Running(
            engine,
            run_id,
            user=None if user is None else keys.name(user, "user"),
            wait=seconds(wait, "wait"),
            block=block,
            deadline=None if deadline is None else seconds(deadline, "deadline"),
        )
        self._running.handle = self
        self.id = self._running.id
        self.result: Any = None
        """What the run comes to; set it in the body. A durable function's is what it returns."""
        self.state = RunState(self._running)
        self.thread = RunThread(
            self._running, Thread(engine.threads, run_id if thread is None else thread, user=user, ttl=None)
        )
        self._tokens: list[Token[Running | None]] = []

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._running.context.clock

    @property
    def user(self) -> str | None:
        """Return whose run it is."""
        return self._running.user

    @property
    def resumed(self) -> bool:
        """Tell whether this run had been begun before."""
        return self._running.resumed or self._running.over

    @property
    def reused(self) -> int:
        """Return how many finished steps were on record when it was taken."""
        return sum(op.state == "done" and op.identity.kind in ("step", "map") for op in self._running.told.ops.values())

    # -- steps -------------------------------------------------------------------------------------------------

    def step(  # noqa: PLR0913 - the words of the API
        self,
        name: str,
        fn: Callable[..., T],
        *args: Any,
        key: str | None = None,
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schema: Any = None,
    ) -> T:
        """Run `fn(*args)`, durably, or return what came of it before.

        Its intent is on record before it is called, and its result before this returns. `effect` says what a
        repeat does: "pure" nothing, so no intent is written; "idempotent" nothing more, given the same
        `tenuto.idempotency_key()`; "once" harm, so it is not repeated unless `verify` or people say that it did not
        happen. `key` stands for the arguments, which are then not stored, and the order does not matter.
        `verify(intent)` is asked before any repeat. `timeout` ends the waiting; a blocking function cannot be
        stopped, and goes on in its thread. `schema` is the type of the result, by default what `fn` is annotated with.
        """
        if key is None and schema is None and (told := recalled(self._running, name, fn, args)) is not MISSING:
            return told  # type: ignore[no-any-return]
        step = Step(name, fn, args, key, effect, verify, retry, timeout, schema)
        return perform(stepping(self._running, step), self.clock)  # type: ignore[no-any-return]

    def map(  # noqa: PLR0913 - the words of the API
        self,
        name: str,
        fn: Callable[[Any], T],
        items: Iterable[Any],
        *,
        concurrency: int = 4,
        on_error: OnError = "raise",
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schema: Any = None,
    ) -> list[T]:
        """Run `fn(item)` for each item, some at once, each a step of its own; return the results in order.

        A step is known by its place and its item, so items that changed are noticed. With `on_error="raise"` the
        first error, by place, is raised when those in flight have ended; with "keep" it stands in its place.
        """
        step = Step(name, fn, (), None, effect, verify, retry, timeout, schema, "map")
        lanes = Lanes(self._running, step, items, concurrency, on_error)
        if len(lanes.works) == 1:
            perform(lanes.works[0], self.clock)
        elif lanes.works:
            with ThreadPoolExecutor(len(lanes.works), thread_name_prefix="tenuto-map") as pool:
                futures = [pool.submit(copy_context().run, perform, work, self.clock) for work in lanes.works]
            for future in futures:
                future.result()
        return lanes.results()

    # -- waiting -----------------------------------------------------------------------------------------------

    @worked
    def sleep(self, duration: Duration) -> Work[None]:
        """Let time pass, durably: counted from when this was first asked for, whatever dies meanwhile."""
        return (yield from waiting.sleeping(self._running, duration))

    @worked
    def wait(self, event: str, *, timeout: Duration | None = None) -> Work[Any]:
        """Wait for `agent.signal(run_id, event, payload)` and return its payload; `TimedOut` if it does not come."""
        return (yield from waiting.signalled(self._running, event, timeout))

    @worked
    def ask(
        self,
        question: str,
        *,
        to: str | None = None,
        context: Any = None,
        choices: Sequence[Any] | None = None,
        deadline: Duration | None = None,
    ) -> Work[Any]:
        """Ask people, through the inbox, and return their answer; `TimedOut` if none comes before the deadline."""
        return (
            yield from waiting.asked(
                self._running, question, to=to, context=context, choices=choices, deadline=deadline
            )
        )

    # -- what is the same on every replay ----------------------------------------------------------------------

    @worked
    def now(self) -> Work[datetime]:
        """Return the time, the same one on every replay."""
        at: datetime = yield from noted(self._running, "now", lambda: moment(self._running.context.kernel.now()))
        return at

    @worked
    def uuid(self) -> Work[uuids.UUID]:
        """Return a random UUID, the same one on every replay."""
        made: uuids.UUID = yield from noted(self._running, "uuid", uuids.uuid4)
        return made

    @worked
    def random(self) -> Work[float]:
        """Return a random number from 0 to 1, the same one on every replay."""
        number: float = yield from noted(self._running, "random", random.random)
        return number

    # -- telling -----------------------------------------------------------------------------------------------

    @worked
    def emit(self, value: Any) -> Work[None]:
        """Give something to whoever watches the run, durably; once, however often it is replayed.

        Inside of a step it belongs to that attempt: one that is repeated gives it again.
        """
        inside = current_step.get()
        if inside is not None and inside.run is self._running:
            yield self._running.write([], [self._running.log.line(EMITTED, inside.n, [value, inside.attempt])])
        else:
            yield from noted(self._running, "emit", lambda: value)

    @worked
    def usage(
        self, model: str, *, input_tokens: int = 0, output_tokens: int = 0, cost: float | None = None
    ) -> Work[None]:
        """Note what a model call used, and what it cost; inside of a step it is recorded with its result."""
        used = [keys.name(model, "model"), int(input_tokens), int(output_tokens), None if cost is None else float(cost)]
        inside = current_step.get()
        if inside is not None and inside.run is self._running:
            inside.usage.append(used)
        else:
            yield from noted(self._running, "usage", lambda: None, usage=[used])

    # -- taking and leaving ------------------------------------------------------------------------------------

    def taking(self) -> Work[None]:
        """Begin the body."""
        try:
            yield self._running.take()
        except BaseException:  # cancelled when it had just been taken: nobody else would let go of it
            yield self._running.let_go()
            raise
        self.state._held.clear()
        self._tokens.append(current.set(self._running))

    def leaving(self, error: BaseException | None) -> Work[None]:
        """End the body."""
        if self._tokens:
            current.reset(self._tokens.pop())
        meant = paused_in(error)
        yield from self._running.leave(meant, self.result)
        if meant is not None and meant is not error and isinstance(meant, Paused):
            raise meant from error

    def __enter__(self) -> Self:
        """Take the run: begin it, or resume it."""
        perform(self.taking(), self.clock)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Leave it: completed, failed, or paused."""
        perform(self.leaving(error), self.clock)

    def __str__(self) -> str:
        """Say where the run stands: `resuming trip-42 at book (1 step reused, 4.1 s saved)`."""
        return str(self._running)

    def __repr__(self) -> str:
        """Say which run this is."""
        return f"<run {self.id!r}>"


def current_run() -> Any:
    """Return the run whose body or step this is called from, also from threads and tasks begun there; else None."""
    inside = current.get()
    return None if inside is None else inside.handle


def noted(run: Running, kind: str, make: Callable[[], Any], *, name: str | None = None, usage: Any = ()) -> Work[Any]:
    """Return something that is made once, and is the same ever after."""
    run.must_go_on(f"run.{kind}")
    identity = Identity(kind, name or kind, None, Described(LENIENT), together=run.beside())
    op = yield from run.recall(identity)
    if op is not None:
        return (yield run.value_of(op)) if op.apart else op.value
    run.may_begin(f"run.{kind}")
    with run.busy():
        value = codec.unpack(codec.pack(make()))
        data = [identity.stored(), 0, value, False, 0.0, list(usage), False]
        yield run.record(RESULT, run.number(), data, 2)
    return value


class Lanes:
    """The items of a map, taken one after the other by a few workers."""

    def __init__(self, run: Running, step: Step, items: Iterable[Any], concurrency: int, on_error: OnError) -> None:
        if concurrency < 1:
            raise InvalidInput(f"A map does at least one item at a time, not {concurrency}.")
        if on_error not in ("raise", "keep"):
            raise InvalidInput(f'on_error is "raise" or "keep", not {on_error!r}.')
        self._run = run
        self._step = step
        self._items = list(items)
        self._on_error = on_error
        again = run.mapping(step.name)
        self._again = "" if again == 1 else f"#{again}"
        self._next = itertools.count()
        self._failed = threading.Event()
        self._errors: dict[int, BaseException] = {}
        self._values: dict[int, Any] = {}
        self.works = [self._lane() for _ in range(min(concurrency, len(self._items)))]

    def _lane(self) -> Work[None]:
        lane = Lane()
        one = self._step
        try:
            while not self._failed.is_set() and (at := next(self._next)) < len(self._items):
                step = Step(
                    one.name, one.fn, (self._items[at],), f"{at}{self._again}", one.effect, one.verify, one.retry, one.timeout,
                    one.schema, "map", lane,
                )  # fmt: skip
                try:
                    self._values[at] = yield from stepping(self._run, step)
                except Exception as error:  # noqa: BLE001 - it is raised when the others have ended
                    self._errors[at] = error
                    if self._on_error == "raise":
                        self._failed.set()
        except BaseException:
            self._failed.set()
            raise
        finally:
            writes = lane.taken()
            if writes:
                yield self._run.write([], writes, saving=True)

    def results(self) -> list[Any]:
        """Return what came of the items, in order; raise the first error unless errors are kept."""
        if self._errors and self._on_error == "raise":
            raise self._errors[min(self._errors)]
        return [self._errors.get(at, self._values.get(at)) for at in range(len(self._items))]


class RunState:
    """The state of a run: a dict whose writes are on record, and which a replay shows as it was at that point."""

    def __init__(self, run: Running) -> None:
        self._run = run
        self._held: dict[str, Any] = {}

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._run.context.clock

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value as it is at this point of the run."""
        return codec.unpack(self._held[key]) if key in self._held else default

    @worked
    def set(self, key: str, value: Any) -> Work[None]:
        """Set a value, durably; on a replay it is what it was."""
        kept = yield from noted(self._run, "state", lambda: [value], name=keys.name(key, "key"))
        self._apply(key, kept)

    @worked
    def delete(self, key: str) -> Work[None]:
        """End a value, durably."""
        kept = yield from noted(self._run, "state", list, name=keys.name(key, "key"))
        self._apply(key, kept)

    def _apply(self, key: str, kept: list[Any]) -> None:
        if kept:
            self._held[key] = codec.pack(kept[0])
        else:
            self._held.pop(key, None)

    def keys(self) -> list[str]:
        """Return the keys, sorted."""
        return sorted(self._held)

    def items(self) -> dict[str, Any]:
        """Return everything, by key."""
        return {key: codec.unpack(self._held[key]) for key in self.keys()}

    def __getitem__(self, key: str) -> Any:
        """Return a value; KeyError if there is none."""
        return codec.unpack(self._held[key])

    def __setitem__(self, key: str, value: Any) -> None:
        """Set a value, durably."""
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        """End a value, durably; KeyError if there is none."""
        if key not in self._held:
            raise KeyError(key)
        self.delete(key)

    def __contains__(self, key: object) -> bool:
        """Tell whether there is a value."""
        return key in self._held

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self.keys())

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._held)


class RunThread:
    """The conversation of a run: an ordinary thread, to which a replay appends nothing twice.

    A message and the line that says so are one commit. During a replay the thread is read as it was at that point.
    """

    def __init__(self, run: Running, thread: Thread) -> None:
        self._run = run
        self._thread = thread
        self.id = thread.id

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._run.context.clock

    @worked
    def append(self, *messages: Any) -> Work[int]:
        """Add messages at the end, durably, once; return the number of the last one."""
        run = self._run
        run.must_go_on("run.thread")
        identity = Identity("thread", "append", None, Described(LENIENT), together=run.beside())
        op = yield from run.recall(identity)
        if op is not None:
            return int(op.value[1])
        run.may_begin("run.thread")
        n = run.number()

        def along(before: int, after: int) -> list[Append]:
            return [run.log.line(RESULT, n, [identity.stored(), 0, [before, after, self.id], False, 0.0, [], False])]

        with run.busy():
            return int((yield run.guarded(self._thread.appending(messages, fence=run.lease, along=along))))

    def messages(self, last: int | None = None, after: int | None = None) -> list[Any]:
        """Return the conversation as it is at this point of the run: all, the `last` so many, those `after` a number."""
        upto = self._run.past.due("thread")
        return self._thread.messages(last, after, None if upto is None else upto.value[0] + 1)

    def count(self) -> int:
        """Return how many messages there are at this point of the run."""
        upto = self._run.past.due("thread")
        return self._thread.count() if upto is None else int(upto.value[0])

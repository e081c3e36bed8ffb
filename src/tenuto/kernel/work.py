"""Work that calls the user's code: written once, for the blocking and the async face.

Such work is a generator that asks for one thing at a time and is given its outcome: `Steps`, to be driven to their
end (commits); a `Pause`, to be waited for; or a `Call` of a function that somebody else wrote. All three are
done by whoever drives it, here with blocking, in the async face with awaiting. The generator itself never
blocks, so an event loop may run it.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from tenuto.errors import TimedOut
from tenuto.kernel.bell import Pause
from tenuto.kernel.clock import Clock
from tenuto.kernel.transact import Steps, Timed, drive

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Timed)


class Call(NamedTuple):
    """A call of the user's code, in the surroundings that it is to see."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    around: Callable[[], AbstractContextManager[object]]
    what: str
    """What it is called in an error."""
    timeout: float | None = None

    def here(self) -> Any:
        """Make the call in this thread, or beside it where it may take only so long; return its value."""
        if inspect.iscoroutinefunction(self.fn):
            raise TypeError(f"{self.what} is a coroutine function, which only an AsyncTenuto's run can await.")
        with self.around():
            value = self.fn(*self.args) if self.timeout is None else self._beside()
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(f"{self.what} returned an awaitable, which only an AsyncTenuto's run can await.")
        return value

    def _beside(self) -> Any:
        """Make the call in a thread of its own, and leave it there when its time is over."""
        outcome: list[Any] = []
        problem: list[BaseException] = []
        context = contextvars.copy_context()

        def run() -> None:
            try:
                outcome.append(context.run(self.fn, *self.args))
            except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
                problem.append(error)

        thread = threading.Thread(target=run, name=f"tenuto {self.what}", daemon=True)
        thread.start()
        thread.join(self.timeout)
        if problem:
            raise problem[0]
        if not outcome:
            raise self.late()
        return outcome[0]

    def late(self) -> TimedOut:
        """Return the error of a call that took too long."""
        return TimedOut(f"{self.what} took longer than {self.timeout:g} s. What it began may still happen.")


Work = Generator[Steps[Any] | Pause | Call, Any, R]
"""A piece of work that asks for what it cannot do by itself, and returns its result."""


def worked(work: Callable[Concatenate[S, P], Work[R]]) -> Callable[Concatenate[S, P], R]:
    """Make work an ordinary method, which blocks, by its object's `clock`."""

    @functools.wraps(work)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return perform(work(self, *args, **kwargs), self.clock)

    method.work = work  # type: ignore[attr-defined]
    return method


def perform(work: Work[R], clock: Clock) -> R:
    """Do work to its end, in this thread."""
    given: Any = None
    problem: BaseException | None = None
    while True:
        try:
            asked = work.send(given) if problem is None else work.throw(problem)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        given = problem = None
        try:
            if type(asked) is Call:
                given = asked.here()
            elif type(asked) is Pause:
                asked.sleep(clock)
            else:
                given = drive(asked, clock)  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 - the work decides what becomes of it
            problem = error

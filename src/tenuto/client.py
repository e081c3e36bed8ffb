"""The client: opens a store, wraps it, and hands out capabilities. The one place that knows them all."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from contextvars import Token
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from tenuto.backends import connect
from tenuto.capabilities.checkpoints import Checkpoints
from tenuto.capabilities.context import Context
from tenuto.capabilities.durable import Durable, name_of
from tenuto.capabilities.keeper import Keeper
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.once import once
from tenuto.capabilities.questions import Inbox
from tenuto.capabilities.retention import Retention
from tenuto.capabilities.run import Run
from tenuto.capabilities.running import Engine
from tenuto.capabilities.runs import Runs
from tenuto.capabilities.state import ScopeView, State
from tenuto.capabilities.stepping import Effect, Retry, Step, Verify
from tenuto.capabilities.store import Store
from tenuto.capabilities.tasks import Tasks
from tenuto.capabilities.threads import Thread, Threads
from tenuto.capabilities.workflows import Action, Actions, Workflows
from tenuto.errors import InvalidInput
from tenuto.hooks.events import Hook
from tenuto.kernel import correlation, keys
from tenuto.kernel.clock import Clock, SystemClock
from tenuto.kernel.contract import Backend, is_backend
from tenuto.kernel.durations import Duration
from tenuto.kernel.work import perform
from tenuto.wrappers.observe import Observe
from tenuto.wrappers.tenant import Tenant

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def register_action(actions: Actions, name: str, action: Action) -> None:
    """Register what the steps of workflows call; `InvalidInput` if another function has the name."""
    keys.name(name, "action")
    Step(name, action.fn, (), None, action.effect, action.verify, action.retry, action.timeout)  # refuses what is wrong
    known = actions.get(name)
    if known is not None and _place(known.fn) != _place(action.fn):
        raise InvalidInput(
            f"The action {name!r} is {'.'.join(_place(known.fn))}; register this one under another name."
        )
    actions[name] = action


def _place(fn: Callable[..., Any]) -> tuple[str, str]:
    return getattr(fn, "__module__", ""), getattr(fn, "__qualname__", repr(fn))


def register_function(functions: dict[str, Callable[..., Any]], fn: Callable[..., Any], name: str | None) -> str:
    """Register a durable function and return its name; `InvalidInput` if another one has it."""
    name = name_of(fn, name)
    known = functions.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (fn.__module__, fn.__qualname__):
        raise InvalidInput(f"The name {name!r} is {known.__module__}.{known.__qualname__}'s; register with name=.")
    functions[name] = fn
    return name


class Correlation:
    """A block in which a correlation id is in force, in this thread and in tasks begun inside it."""

    def __init__(self, correlation_id: str) -> None:
        self.id = correlation.trace_id(correlation_id) or keys.name(correlation_id, "correlation id")
        self._tokens: list[Token[str | None]] = []

    def __enter__(self) -> str:
        """Put the id in force."""
        self._tokens.append(correlation.variable.set(self.id))
        return self.id

    def __exit__(self, *_: object) -> None:
        """Put back what was in force before."""
        correlation.variable.reset(self._tokens.pop())


class Tenuto:
    """An agent's state, in a store of its own or shared with others.

    `name` says who writes; it is on every journal line and partitions nothing. `url` is a path or a URL;
    without one, `$TENUTO_URL` or `.tenuto/tenuto.db` in this folder. A ready-made backend is taken too.
    Nothing is opened before the first call, or `open()`. One client serves all threads, and children
    after a fork.
    """

    def __init__(
        self,
        name: str = "default",
        url: str | os.PathLike[str] | Backend | None = None,
        *,
        tenant: str = "default",
        durability: str = "full",
        clock: Clock | None = None,
        hooks: Sequence[Hook] = (),
        retention: Retention | None = None,
    ) -> None:
        self.name = keys.name(name, "name")
        self.tenant = keys.name(tenant, "tenant")
        self.clock: Clock = clock or SystemClock()
        if url is None or isinstance(url, str | os.PathLike):
            backend = connect(url, durability=durability, clock=clock)
        elif is_backend(url):
            backend = url
        else:
            raise InvalidInput(f"A store is given as a URL, a path or a backend, not {type(url).__name__}.")
        for hook in hooks:
            if not callable(hook):
                raise InvalidInput(f"A hook is a callable that takes an event, not {type(hook).__name__}.")
        self._backend: Backend = Observe(backend, hooks) if hooks else backend
        self._keeper = Keeper()
        self._retention = retention
        self._functions: dict[str, Callable[..., Any]] = {}
        self._actions: Actions = {}
        self._compose()

    def _compose(self) -> None:
        self.kernel: Backend = Tenant(self._backend, self.tenant)
        self._context = Context(self.kernel, self.clock, self.name)
        self.state = State(self._context)
        self.checkpoint = Checkpoints(self._context, self._retention)
        self.store = Store(self._context, self._backend)
        self.threads = Threads(self._context)
        self._users = State(self._context, "user")
        self.inbox = Inbox(self._context)
        self._engine = Engine(self._context, self._keeper, self.threads, self.inbox)
        self.runs = Runs(self._engine, self._functions)
        self.tasks = Tasks(self._context, self._keeper)
        self.state.enqueuing = self.tasks.entering
        self.workflows = Workflows(self._engine, self._actions)

    def user(self, user_id: str) -> ScopeView:
        """Return a view of a user's preferences, exact by key, shared by all agents of the tenant."""
        return self._users[keys.name(user_id, "user")]

    def thread(self, thread_id: str, *, user: str | None = None, ttl: Duration | None = None) -> Thread:
        """Return a conversation, which begins with what is first written to it; nothing is read or written here.

        `user` is whose it is, for `threads.list`. With `ttl` it ends so long after the last line that was written to it.
        """
        return Thread(self.threads, thread_id, user=user, ttl=ttl)

    def run(
        self,
        run_id: str,
        *,
        user: str | None = None,
        wait: Duration = 15,
        block: bool = False,
        deadline: Duration | None = None,
        thread: str | None = None,
    ) -> Run:
        """Return a run, which begins, or is resumed, with `with agent.run("trip-42") as run: …`.

        `wait` is how long to wait for somebody else who has it in hand. With `block` it waits in place for times,
        signals and answers, instead of raising `Waiting`. After `deadline` nothing more begins. `thread` is the
        conversation that is `run.thread`, by default one of the run's own.
        """
        return Run(self._engine, run_id, user=user, wait=wait, block=block, deadline=deadline, thread=thread)

    @overload
    def durable(self, fn: Callable[Concatenate[Run, P], R]) -> Durable[P, R]: ...
    @overload
    def durable(self, *, name: str) -> Callable[[Callable[Concatenate[Run, P], R]], Durable[P, R]]: ...
    def durable(self, fn: Any = None, *, name: str | None = None) -> Any:
        """Register a function whose calls are runs: `@agent.durable`, or `@agent.durable(name="deploy")`.

        Its first argument is the run. It is known by its name, under which another process goes on with its runs.
        """
        if fn is None:
            return lambda given: self._durable(given, name)
        return self._durable(fn, name)

    def _durable(self, fn: Callable[..., Any], name: str | None) -> Durable[Any, Any]:
        if inspect.iscoroutinefunction(fn):
            raise TypeError(f"{fn.__name__} is a coroutine function, which only an AsyncTenuto can run.")
        return Durable(self._engine, register_function(self._functions, fn, name), fn)

    def once(
        self,
        key: str,
        fn: Callable[..., R],
        *args: Any,
        verify: Verify | None = None,
        schema: Any = None,
        wait: Duration | None = None,
    ) -> R:
        """Call `fn(*args)` once for this key, across threads, processes and restarts; everybody gets the recorded result.

        Whoever comes while it is being done waits for it, no longer than `wait`. If its process dies meanwhile it is in
        doubt: `verify(intent)` is asked before it is done again, and where nobody can say it is `InDoubt`, with a question
        in the inbox. What it raises is not a result: the next caller tries again.
        """
        work = once(self._engine, key, fn, args, verify=verify, schema=schema, wait=wait)
        return perform(work, self.clock)  # type: ignore[no-any-return]

    @overload
    def action(self, name: F) -> F: ...
    @overload
    def action(
        self,
        name: str,
        *,
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Callable[[F], F]: ...
    def action(
        self,
        name: Any,
        *,
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Register what the steps of workflows call: `@agent.action("compare_pricing", effect="once", verify=…)`.

        The function is given the step, and what it returns is the step's result; see `Run.step` for the rest.
        """
        if callable(name):
            return self.action(getattr(name, "__name__", ""))(name)

        def register(fn: F) -> F:
            if inspect.iscoroutinefunction(fn):
                raise TypeError(f"{fn.__name__} is a coroutine function, which only an AsyncTenuto can run.")
            register_action(self._actions, name, Action(fn, effect, verify, retry, timeout))
            return fn

        return register

    def full_context(self, user_id: str, thread_id: str, *, last: int | None = None) -> dict[str, Any]:
        """Return what an agent needs to go on with a user: the conversation, the preferences, the active workflows.

        `{"thread": {"id", "messages", "decisions"}, "user": {…}, "workflows": [{…}, …]}`, as plain data; `last` leaves out
        all but so many messages.
        """
        thread = self.thread(thread_id)
        return {
            "thread": {
                "id": thread.id,
                "messages": thread.messages(last),
                "decisions": [{"text": one.text, "why": one.why} for one in thread.decisions()],
            },
            "user": self.user(user_id).items(),
            "workflows": [one.as_dict() for one in self.workflows.list("active", user_id)],
        }

    def signal(self, run_id: str, event: str, payload: Any = None) -> bool:
        """Send a signal to a run, durably; see `Runs.signal`."""
        return self.runs.signal(run_id, event, payload)

    def lease(self, name: str, *, ttl: Duration = 10, wait: Duration | None = None) -> Lease:
        """Return a lease on a name: `with agent.lease("conversation:42") as lease: …`.

        It is renewed in the background until released. `wait` is how long to wait for it; without it
        `LeaseHeld` is raised at once if somebody else has it.
        """
        return Lease(self._context, self._keeper, name, kind="lease", ttl=ttl, wait=wait)

    def leader(self, name: str, *, ttl: Duration = 10) -> Lease:
        """Return a lease that is waited for without end: `with agent.leader("scheduler") as lead: …`."""
        return Lease(self._context, self._keeper, name, kind="leader", ttl=ttl, wait=None)

    def correlation(self, correlation_id: str) -> Correlation:
        """Stamp every write, event and log line inside the block with an id.

        A W3C `traceparent` is taken for the trace id in it.
        """
        return Correlation(correlation_id)

    def for_tenant(self, tenant: str) -> Self:
        """Return a client for another tenant of the same store, sharing this one's connections."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view.tenant = keys.name(tenant, "tenant")
        view._compose()
        return view

    def open(self) -> Self:
        """Open the store now, creating or upgrading it where needed, instead of at the first call."""
        self.kernel.read([keys.pack("tenuto")])
        return self

    def close(self) -> None:
        """Let go of the store. Calling it again does nothing; any other call is then `Closed`."""
        self._backend.close()

    def __enter__(self) -> Self:
        """Open the store."""
        return self.open()

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Say who and where; nothing is opened."""
        return f"<Tenuto {self.name!r} of tenant {self.tenant!r}>"

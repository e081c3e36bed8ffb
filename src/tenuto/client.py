"""The client: opens a store, wraps it and creates the capabilities. The only module that imports them all."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, overload

from tenuto.backends import connect
from tenuto.capabilities import upkeep
from tenuto.capabilities._core.base import Context, raise_if_blocked
from tenuto.capabilities._core.notices import Notices
from tenuto.capabilities._core.renewal import Renewer
from tenuto.capabilities.alerts import Alerts
from tenuto.capabilities.archive import TenantArchive
from tenuto.capabilities.audits import Audits
from tenuto.capabilities.checkpoints import Checkpoints, Retention
from tenuto.capabilities.context import ContextBuilder, Guard, Sources, Turns
from tenuto.capabilities.costs import Costs
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.memory import Embed, Memories, embedder_of
from tenuto.capabilities.people import (
    AskOptions,
    Inbox,
    Milestone,
    Milestones,
    Notify,
    Question,
    Routes,
    When,
    WorkingTime,
)
from tenuto.capabilities.playbooks import Playbooks
from tenuto.capabilities.runs import (
    DUE_RUNS,
    Durable,
    Effect,
    Engine,
    Prices,
    Retry,
    Run,
    Runs,
    StepOptions,
    Verify,
    answer_learned,
    register_function,
    run_once,
    step_function,
)
from tenuto.capabilities.sessions import (
    Handoffs,
    Judge,
    Merged,
    Progress,
    Rule,
    Session,
    merge_results,
    name_in,
    names,
    read_file,
)
from tenuto.capabilities.state import ScopeView, State
from tenuto.capabilities.store import Store, Summary, restored
from tenuto.capabilities.tasks import Tasks
from tenuto.capabilities.threads import Thread, Threads
from tenuto.capabilities.workflows import Action, Actions, Workflows, queued_for, register_action, resuming
from tenuto.errors import InvalidInput
from tenuto.hooks.events import Hook
from tenuto.kernel import keys
from tenuto.kernel.clock import Clock, SystemClock
from tenuto.kernel.contract import Backend, Copyable, Sealing
from tenuto.kernel.correlation import Correlation
from tenuto.kernel.durations import Duration
from tenuto.kernel.work import Work, perform
from tenuto.wrappers.encrypt import Encryption, KeySource, encrypted
from tenuto.wrappers.observe import Observe, report
from tenuto.wrappers.tenant import Tenant

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Ts = TypeVarTuple("Ts")
F = TypeVar("F", bound=Callable[..., Any])


class Tenuto:
    """Hold the state of an agent in a store, alone or shared with other agents.

    `name` identifies the writer in every journal entry; it partitions nothing. `url` is a path, a URL or a backend;
    the default is `$TENUTO_URL`, else `.tenuto/tenuto.db` in the current folder or, if it is there, in the nearest
    folder above, up to the root of the git repository. `https://host` is a tenuto server, with `api_key` or
    `$TENUTO_API_KEY`. `embed` finds memories by meaning: "wordllama", "minilm", a URL, or a function from texts to
    vectors. `encryption_key` encrypts all values: a key, a list of keys with the one to write with first, `env:NAME`,
    `file:PATH`, a callable, or an `Encryption` with options; the default is `$TENUTO_ENCRYPTION_KEY`. `archive` replaces
    the recorded places of archives; the default is `$TENUTO_ARCHIVE`.
    The store is opened by the first call or by `open()`. A client is safe to share between threads, and to
    use in children after a fork.
    """

    def __init__(  # noqa: PLR0913 - the options of a client
        self,
        name: str = "default",
        url: str | os.PathLike[str] | Backend | None = None,
        *,
        api_key: str | None = None,
        tenant: str = "default",
        durability: str = "full",
        clock: Clock | None = None,
        hooks: Sequence[Hook] = (),
        retention: Retention | None = None,
        embed: str | Embed | None = None,
        encryption_key: KeySource | Encryption | None = None,
        archive: str | os.PathLike[str] | None = None,
    ) -> None:
        self.name, self.tenant = keys.name(name, "name"), keys.name(tenant, "tenant")
        self.clock: Clock = clock or SystemClock()
        store = connect(url, durability=durability, clock=clock, api_key=api_key)
        backend = store if store is url and encryption_key is None else encrypted(store, encryption_key)
        for hook in hooks:
            if not callable(hook):
                raise InvalidInput(f"A hook must be a callable that accepts an event, not {type(hook).__name__}.")
        self._file = store if isinstance(store, Copyable) else None
        self._sealing = backend if isinstance(backend, Sealing) else None
        self._below, self._encryption, self._place = backend, encryption_key, archive
        self._backend: Backend = Observe(backend, hooks) if hooks else backend
        self._report = functools.partial(report, tuple(hooks))
        self._renewer, self._retention, self._embedder = Renewer(), retention, embedder_of(embed)
        self._prices, self._actions, self._functions = Prices(), Actions(), dict[str, Callable[..., Any]]()
        self._compose()

    def _compose(self) -> None:
        self.kernel: Backend = Tenant(self._backend, self.tenant, self._below)
        context = Context(self.kernel, self.clock, self.name, self._report, isinstance(self._backend, Observe))
        self._archive = TenantArchive(context, self._sealing, self.tenant, self._place)
        self._context = context._replace(archive=self._archive)
        self.state = State(self._context)
        self.checkpoint = Checkpoints(self._context, self._retention)
        view = functools.partial(Tenant, self._backend, unread=self._below)
        self.store = Store(self._context, self._file, self._sealing, self.tenant, view)
        self.threads = Threads(self._context)
        self._users = State(self._context, "user")
        self.inbox = Inbox(self._context)
        self.notify = Notify(self._context, self.inbox)
        self.routes = Routes(self._context, self.inbox)
        self.milestones = Milestones(self._context, self.inbox)
        self.memory = Memories(self._context, self.threads, self._embedder)
        self.inbox._recalled = self.memory._known_about
        notices = Notices(self.kernel, DUE_RUNS)
        parts = (self._context, self._renewer, self.threads, self.inbox, self.memory, notices, self._prices)
        self._engine = Engine(*parts, {}, self._progress_of)
        self.inbox._waking = self._engine.waking
        self.inbox._learned = functools.partial(answer_learned, self._engine)
        self.runs = Runs(self._engine, self._functions)
        self.inbox._due = self.runs._due_of
        self.costs, self.audits = Costs(self._engine), Audits(self._context)
        self.tasks = Tasks(self._context, self._renewer)
        self.alerts = Alerts(self._context, self.runs, self.inbox, self.notify, self.audits)
        self.state._enqueuing = self.tasks._enqueuer.prepare
        self.workflows = Workflows(self._engine, self._actions)
        self.handoff = Handoffs(self._context, self._renewer, self.threads)
        self.playbooks = Playbooks(self._engine, self.workflows, self.runs)
        self.costs._playbook_of = self.playbooks._of_run
        self._progress_names = functools.partial(names, self._context)
        self._forgetter = upkeep.attach(self)
        self.forget_user, self.verify_receipt = self._forgetter.forget_user, self._forgetter.verify_receipt
        self.milestones._start = {"function": self._start, "playbook": self.playbooks._missed}
        self._sources = Sources(self._users, self.workflows, self.inbox, self.threads, self.memory)
        self._builder = ContextBuilder(self._context, self.threads, self._sources.gather)
        self.build_context, self.calibrate = self._builder.build_context, self._builder.calibrate
        self._turns = Turns(self._engine, self._builder, self._sources)
        self.turn = self._turns.turn

    def user(self, user_id: str) -> ScopeView:
        """Return a view of a user's preferences, shared by all agents of the tenant."""
        return self._users[keys.name(user_id, "user")]

    def thread(self, thread_id: str, *, user: str | None = None, ttl: Duration | None = None) -> Thread:
        """Return a conversation; nothing is read or written until its first method is called.

        `user` is the owner, for `threads.list`. With `ttl` it expires that long after its last write.
        """
        return Thread(self.threads, thread_id, user=user, ttl=ttl)

    def run(
        self,
        run_id: str | None = None,
        *,
        user: str | None = None,
        wait: Duration | None = 15,
        block: bool = False,
        deadline: Duration | None = None,
        thread: str | None = None,
        budget: float | None = None,
    ) -> Run:
        """Return a run, started or resumed by `with agent.run("trip-42") as run: …`.

        Without an id it is a new run: `run.id` has its id. `wait` is how long to wait if another process has the run
        open. With `block`, waits for times, signals and answers block instead of raising `Waiting`. After `deadline` no
        new step starts. `thread` is the conversation of `run.thread`, by default one of the run's own. When the run has
        spent `budget` dollars, the next step raises `BudgetExceeded`; the same call with a higher one resumes it.
        """
        return Run(
            self._engine, run_id, user=user, wait=wait, block=block, deadline=deadline, thread=thread, budget=budget
        )

    @overload
    def durable(self, fn: Callable[Concatenate[Run, P], R]) -> Durable[P, R]: ...
    @overload
    def durable(
        self, *, name: str | None = None, retry: Retry | None = None, priority: int = 0
    ) -> Callable[[Callable[Concatenate[Run, P], R]], Durable[P, R]]: ...
    def durable(self, fn: Any = None, *, name: str | None = None, retry: Retry | None = None, priority: int = 0) -> Any:
        """Register a function whose calls are runs: `@agent.durable`, or `@agent.durable(name="deploy")`.

        Its first argument is the run. Another process resumes its runs by the registered name. Workers retry failed runs
        by `retry`, reusing recorded steps, and execute the highest `priority` first. A direct call is not retried.
        """

        def made(given: Callable[..., Any]) -> Durable[Any, Any]:
            if inspect.iscoroutinefunction(given):
                raise TypeError(f"{given.__name__} is a coroutine function. Use AsyncTenuto to run it.")
            registered = register_function(self._functions, given, name)
            return Durable(self._engine, registered, given)._with_policy(retry, priority)

        return made if fn is None else made(fn)

    @overload
    def step(self, fn: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def step(
        self, *, name: str | None = None, schema: Any = None, **options: Unpack[StepOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def step(self, fn: Any = None, /, *, name: str | None = None, schema: Any = None, **options: Any) -> Any:  # type: ignore[misc]
        """Make each call of a function inside a run's body a step: `@agent.step`, or `@agent.step(effect="once", verify=…)`.

        The options are those of `run.step`. Inside another step and outside runs it is an ordinary call.
        """
        if fn is None:
            return lambda given: step_function(given, name, {"schema": schema, **options})
        return step_function(fn, name, {"schema": schema, **options})

    @overload
    def once(
        self,
        key: str,
        fn: Callable[[*Ts], Any],
        *args: *Ts,
        schema: type[S],
        verify: Verify | None = None,
        wait: Duration | None = math.inf,
    ) -> S: ...
    @overload
    def once(
        self,
        key: str,
        fn: Callable[[*Ts], R],
        *args: *Ts,
        schema: None = None,
        verify: Verify | None = None,
        wait: Duration | None = math.inf,
    ) -> R: ...
    def once(  # type: ignore[misc]
        self,
        key: str,
        fn: Callable[..., Any],
        *args: Any,
        verify: Verify | None = None,
        schema: Any = None,
        wait: Duration | None = math.inf,
    ) -> Any:
        """Call `fn(*args)` once for this key, across threads, processes and restarts; return the recorded result to all callers.

        A concurrent caller waits for the result, at most `wait`. If the process dies during the call, the call is in
        doubt: `verify(intent)` decides whether to repeat it; if that cannot tell, `InDoubt` is raised with a question in
        the inbox. So is a call that raised, for the next caller: its effect may have happened before the error.
        """
        work = run_once(self._engine, key, fn, args, verify=verify, schema=schema, wait=wait)
        return perform(work, self.clock)

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
        """Register an action that workflow steps call: `@agent.action("compare_pricing", effect="once", verify=…)`.

        The function receives the step and returns its result. The other arguments are those of `Run.step`.
        """
        if callable(name):
            return self.action(getattr(name, "__name__", ""))(name)

        def register(fn: F) -> F:
            if inspect.iscoroutinefunction(fn):
                raise TypeError(f"{fn.__name__} is a coroutine function. Use AsyncTenuto to run it.")
            register_action(self._actions, name, Action(fn, effect, verify, retry, timeout))
            self._functions[queued_for(name)] = resuming(self._actions)
            return fn

        return register

    def full_context(self, user_id: str, thread_id: str, *, last: int | None = None) -> dict[str, Any]:
        """Return what an agent needs to continue with a user: the conversation, the preferences, the active workflows.

        The result is plain data: `{"thread": {"id", "messages", "decisions"}, "user": {…}, "workflows": [{…}, …]}`.
        `last` limits it to the most recent messages. Raise `NotFound` if the thread belongs to another user.
        """
        thread = self.thread(thread_id)
        self.memory._must_be_theirs(thread_id, user_id)
        return {
            "thread": {
                "id": thread.id,
                "messages": thread.messages(last),
                "decisions": [{"text": one.text, "why": one.why} for one in thread.decisions()],
            },
            "user": self.user(user_id).items(),
            "workflows": [one.as_dict() for one in self.workflows.list("active", user_id)],
        }

    def progress(self, name: str, *, goal: str | None = None) -> Progress:
        """Return the progress document of a task; the first change stores it.

        `goal` is the goal of a new document; change a stored one with `Progress.goal`.
        """
        return Progress(self._context, self._renewer, name, goal, self.inbox, self.memory._texts)

    def read_progress(self, path: str | os.PathLike[str], name: str | None = None) -> Progress:
        """Read a progress file, also one that was edited by hand, into the store durably; return the document.

        `name` is the document's name; the default is the file's title, or the name of a `.json` feature list. Raise
        `Conflict` if the same lines were changed both in the file and in the store.
        """
        progress = self.progress(name_in(path) if name is None else name)
        perform(read_file(progress, path), self.clock)
        return progress

    def session(
        self,
        name: str,
        *,
        goal: str | None = None,
        file: str | os.PathLike[str] | None = None,
        commit: bool = False,
        limit: int = 2000,
    ) -> Session:
        """Return a session on a task: `with agent.session("book-flight") as session: …`.

        At its start `session.digest` has what the last session reached, in at most `limit` bytes; `session.progress` is
        the progress document. At its end, also by an exception, the document is up to date, in `file` too. With
        `commit` the file is committed to git.
        """
        return Session(self.progress(name, goal=goal), self.handoff, file=file, commit=commit, limit=limit)

    def _progress_of(self, run_id: str) -> Progress:
        """Return the progress document of a run, brought up to date from its record."""
        progress = self.progress(run_id)
        progress.follow(self.runs.get(run_id))
        return progress

    def merge(
        self,
        name: str,
        results: Mapping[str, Any],
        *,
        rules: Mapping[str, Rule] | None = None,
        judge: Judge | None = None,
        times: Mapping[str, datetime | float] | None = None,
        block: bool = False,
    ) -> Merged:
        """Merge the results of several agents durably, with one recorded verdict on each field that differs.

        `rules` decide by field ("*" for all others): "union", "newest", "majority", "min", "max" or a function of the
        values. Else `judge(conflict)` decides, and returns the value or a `Verdict` with a reason. Without a judge, or
        with the name of a person, a question in the inbox asks whose value is right, and `Waiting` is raised until it
        is answered; with `block` the call waits. "newest" is by `times`, else the last result given. Call it again
        with the same results to resume it, or to get the recorded verdicts.
        """
        work = merge_results(self._engine, name, results, rules=rules, judge=judge, times=times, block=block)
        return perform(work, self.clock)

    def ask(self, question: str, **options: Unpack[AskOptions]) -> Question:
        """Ask people durably and return the question at once; `run.ask` waits for the answer.

        `to` names people or groups; `context`, `evidence` and `policy` help them decide. The answer must be one of
        `choices`, or fit `schema` (a JSON Schema or a type). At the `deadline` the question goes to the levels of
        `escalate`; then `on_timeout` applies: "wait" (keep waiting), "deny", "default" (the answer is `default`) or
        "fail". `calendar` counts durations in business hours. `blocks` closes the gate of a resource until the answer.
        `about` names subjects, for routes and for the last outcome. The same `key` is asked once. `quorum` people must
        give the same answer. An answer about something becomes a memory, unless `remember` is False.
        """
        return perform(self.inbox._ask(question, options), self.clock)

    def gate(self, resource: str) -> None:
        """Raise `Blocked` with the question if an open question blocks a resource.

        To write only if the gate is open, pass `gate=` to the write: it checks in the same commit.
        """
        raise_if_blocked(self.kernel, resource)

    def milestone(
        self,
        name: str,
        *,
        due: When,
        on_miss: Any = None,
        context: Any = None,
        calendar: WorkingTime | None = None,
    ) -> Milestone:
        """Set a milestone durably: `agent.milestones.meet(name, evidence=…)` meets it, else it is missed when due.

        `on_miss` is what a miss starts, once: `{"playbook": name}` a workflow by a playbook, `{"question": "…", "to":
        "ann"}` a question, a durable function or its name a run with the milestone as its argument. `due` is a duration, a time, or a date (its end).
        """
        return perform(self.milestones._set(name, due, on_miss, context, calendar), self.clock)

    def _start(self, function: str, run_id: str, argument: dict[str, Any]) -> Work[Any]:
        """Queue a run of a durable function for a worker, unless there is one of this id."""

        def body(run: Run, milestone: dict[str, Any]) -> None: ...

        return Durable(self._engine, function, self._functions.get(function, body))._queueing(run_id, (argument,), {})

    def guard(self, thread_id: str, *, user: str | None = None, changing: Iterable[str] = ()) -> Guard:
        """Return a guard that looks for signs of lost context in a thread; see `Guard`."""
        return Guard(self._context, self._sources, thread_id, user, changing)

    def signal(self, run_id: str, event: str, payload: Any = None) -> bool:
        """Send a signal to a run, durably; see `Runs.signal`."""
        return self.runs.signal(run_id, event, payload)

    def lease(self, name: str, *, ttl: Duration = 10, wait: Duration | None = None) -> Lease:
        """Return a lease on a name: `with agent.lease("conversation:42") as lease: …`.

        It is renewed in the background until released. If another holder has it, wait at most `wait`, then
        raise `LeaseHeld`; without `wait`, raise at once.
        """
        return Lease(self._context, self._renewer, name, kind="lease", ttl=ttl, wait=wait)

    def leader(self, name: str, *, ttl: Duration = 10) -> Lease:
        """Return a lease that is waited for indefinitely: `with agent.leader("scheduler") as lead: …`."""
        return Lease(self._context, self._renewer, name, kind="leader", ttl=ttl, wait=None)

    def correlation(self, correlation_id: str) -> Correlation:
        """Set the correlation id of every write, event and log line inside the block; of a W3C `traceparent`, its trace id."""
        return Correlation(correlation_id)

    def for_tenant(self, tenant: str) -> Self:
        """Return a client for another tenant of the same store, sharing this client's connections."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view.tenant = keys.name(tenant, "tenant")
        view._compose()
        return view

    @classmethod
    def restore(
        cls, backup: str | os.PathLike[str], url: str | os.PathLike[str], *, tenant: str = "default"
    ) -> Summary:
        """Restore a backup or an export into a new store, verify both, and return what it holds; overwrite nothing."""
        return restored(lambda place: cls("restore", place, tenant=tenant), backup, os.fspath(url))

    def open(self) -> Self:
        """Open the store now instead of at the first call; create or upgrade it if needed."""
        self.kernel.read([keys.pack("tenuto")])
        return self

    def close(self) -> None:
        """Close the store. Closing twice is safe; any other call then raises `Closed`."""
        self._backend.close()

    def __enter__(self) -> Self:
        """Open the store."""
        return self.open()

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    def __repr__(self) -> str:
        """Show the name and the tenant, without opening the store."""
        return f"<Tenuto {self.name!r} of tenant {self.tenant!r}>"

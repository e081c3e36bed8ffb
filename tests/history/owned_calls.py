"""Random concurrent calls of several clients to one lease, or to one queue, and what their answers must look like.

A lease has one holder at a time, its token grows by one with each acquisition, and nobody else's fenced write is applied.
A task is claimed by one client, and no client is told that the queue is empty while a task is ready. Nothing expires meanwhile.
"""

import random
import sys
import threading
import time
from typing import Any, NamedTuple

from tenuto import LeaseHeld, StaleLease, Tenuto
from tenuto.testing._search import search


class Step(NamedTuple):
    """One call of one client: what it asked, and what it was told."""

    client: str
    began: int
    ended: int
    asked: str
    told: Any

    def __str__(self):
        return f"{self.client}: {self.asked} -> {self.told}"


class LeaseState(NamedTuple):
    token: int = 0
    holder: str | None = None
    written: int = 0
    """The version of the value that holders write with their fence."""


def after_lease(state, step):
    """Return the state of a lease after a call, or None if its answer does not fit."""
    mine = state.holder == step.client
    if step.asked == "acquire":
        if step.told == "held":
            return state if state.holder is not None else None
        free = state.holder is None and step.told == state.token + 1
        return state._replace(token=step.told, holder=step.client) if free else None
    if step.asked == "release":
        return state._replace(holder=None) if mine else None
    assert step.asked == "write", step
    if step.told == "stale":
        return None if mine else state
    fits = mine and step.told == state.written + 1
    return state._replace(written=step.told) if fits else None


class QueueState(NamedTuple):
    ready: frozenset = frozenset()
    running: frozenset = frozenset()


def after_queue(state, step):
    """Return the state of a queue after a call, or None if its answer does not fit."""
    if step.asked == "enqueue":
        return state._replace(ready=state.ready | {step.told})
    if step.asked == "claim":
        if step.told is None:
            return state if not state.ready else None
        taken = QueueState(state.ready - {step.told}, state.running | {(step.client, step.told)})
        return taken if step.told in state.ready else None
    mine = (step.client, step.told)
    return state._replace(running=state.running - {mine}) if mine in state.running else None


class Client:
    """One client, in a thread of its own."""

    def __init__(self, store, seed, who):
        self.agent, self.name, self.steps = Tenuto(who, store), who, []
        self.owns_store = isinstance(store, str)
        self.dice, self.scope = random.Random(f"{seed} {who}"), f"history-{seed}"

    def step(self, asked, call, *, told=None):
        """Make a call and note it; return its answer, None if it was refused because of a lease."""
        began = time.monotonic_ns()
        try:
            answer = call()
        except (LeaseHeld, StaleLease) as error:
            answer, refusal = None, "held" if isinstance(error, LeaseHeld) else "stale"
            told = lambda _: refusal
        ended = time.monotonic_ns()
        self.steps.append(Step(self.name, began, ended, asked, told(answer) if told else answer))
        return answer

    def leases(self, count):
        lease = None
        for _ in range(count):
            if lease is None:
                asking = self.agent.lease(self.scope, ttl=600)
                lease = self.step("acquire", asking.acquire, told=lambda one: one.token)
            elif self.dice.random() < 0.5:
                self.step("write", lambda fence=lease: self.agent.state.set(self.scope, "by", self.name, fence=fence))
            else:
                self.step("release", lease.release)
                lease = None
        if lease is not None:
            self.step("release", lease.release)

    def tasks(self, count):
        held = []
        for number in range(count):
            kind = self.dice.random()
            if kind < 0.35:
                self.step("enqueue", lambda n=number: self.agent.tasks.enqueue(self.scope, n).id)
            elif kind < 0.75 or not held:
                claim = lambda: self.agent.tasks.claim(self.scope, lease=600)
                task = self.step("claim", claim, told=lambda one: one and one.id)
                held += [task] if task is not None else []
            else:
                task = held.pop(self.dice.randrange(len(held)))
                self.step("complete", lambda one=task: one.complete(), told=lambda _, one=task: one.id)

    def close(self):
        if self.owns_store:
            self.agent.close()


KINDS = {"leases": (Client.leases, after_lease, LeaseState()), "tasks": (Client.tasks, after_queue, QueueState())}


def random_steps(stores, seed, kind, count, *, who="client"):
    """Make random calls in a thread for each store, concurrently; return all of them."""
    clients = [Client(store, seed, f"{who} {number}") for number, store in enumerate(stores, 1)]
    ready, failed = threading.Barrier(len(clients)), []

    def work(client):
        ready.wait()
        try:
            KINDS[kind][0](client, count)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # switch threads inside calls, not only between them
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if failed:
        raise failed[0]
    for client in clients:
        client.close()
    return [step for client in clients for step in client.steps]


def violation(steps, kind):
    """Return None if some order of the steps explains every answer, else the step that fits nowhere and those about it."""
    _, after, start = KINDS[kind]
    stuck = search(steps, start, after)
    if stuck is None:
        return None
    near = [step for step in steps if step.began <= stuck.call.ended and step.ended >= stuck.call.began - 10**7]
    lines = [f"{(one.began - stuck.call.began) / 1e3:9.0f} to {(one.ended - stuck.call.began) / 1e3:9.0f}  {one}"
             for one in sorted(near, key=lambda one: one.began)]  # fmt: skip
    return "\n".join([f"no order explains {stuck.call}, at {set(stuck.states)}", *lines])

"""Mixed work of every kind on one store, for a long time: worker_soak.py STORE SECONDS NAME [leaky]

Names are reused and what was made is deleted again, so what is kept is bounded. It prints a sample of its own size, as
JSON, about twenty times, and forks now and then; a child does some work and ends. A leaky
worker has a planted bug: it leaves a file open each time.
"""

import json
import logging
import os
import random
import sys
import threading
import time
import warnings

import psutil

from tenuto import Conflict, NotFound, RunBusy, Tenuto

logging.disable(logging.WARNING)
warnings.filterwarnings(
    "ignore", ".*fork", DeprecationWarning
)  # Python 3.12 and later: forks next to threads are what is tried


def state(agent, chance):
    scope = f"scope{chance.randrange(5)}"
    agent.state.set(scope, f"k{chance.randrange(50)}", "x" * chance.randrange(2_000), ttl=chance.choice([None, 1]))
    agent.state.update(scope, "counter", lambda n: n + 1, default=0, attempts=100)
    agent.state.items(scope)
    if chance.random() < 0.2:
        agent.state.delete(scope, f"k{chance.randrange(50)}")


def thread(agent, chance):
    one = agent.thread(f"t{chance.randrange(10)}", user="u")
    one.append({"role": "user", "content": "hello " * chance.randrange(50)}, {"role": "assistant", "content": "hi"})
    one.messages(last=20)
    if one.count() > 60:
        one.delete()


def checkpoint(agent, chance):
    name = f"c{chance.randrange(3)}"
    agent.checkpoint.create("state", {"items": list(range(chance.randrange(300))), "name": name}, thread=name)
    agent.checkpoint.restore(thread=name, default=None)
    agent.checkpoint.prune(thread=name, keep_last=5)


def run(agent, chance):
    name = f"r{chance.randrange(20)}"
    with agent.run(name, wait=0.05) as one:
        one.step("a", lambda: "x" * 500)
        one.step("b", time.time, effect="pure")
    agent.runs.delete(name)


def task(agent, chance):
    agent.tasks.enqueue("q", {"n": chance.random()})
    if claimed := agent.tasks.claim("q", lease=30):
        claimed.complete("done")


def memory(agent, chance):
    user = f"u{chance.randrange(3)}"
    agent.memory.remember(f"{user} likes number {chance.randrange(30)}", user=user)
    agent.memory.recall("which number?", user=user)
    if chance.random() < 0.1:
        agent.memory.forget(user=user)


def question(agent, chance):
    asked = agent.ask("Go on?", to="ops", choices=["yes", "no"], key=f"q{chance.randrange(5)}")
    if asked.status == "pending":
        agent.inbox.answer(asked.id, "yes", by="ann")


def lease(agent, chance):
    with agent.lease(f"l{chance.randrange(3)}", ttl=30, wait=5) as held:
        agent.state.set("fenced", "k", 1, fence=held)


def workflow(agent, chance):
    name = f"w{chance.randrange(3)}"
    one = agent.workflows.create(name=name, steps=[{"action": "first"}, {"action": "second"}])
    step = one.next_incomplete_step()
    if step is not None:
        one.complete(step.step, result="x" * 200)
    else:
        agent.workflows.delete(name)


def playbook(agent, chance):
    agent.playbooks.save(f"p{chance.randrange(3)}", steps=["look", "act"], lessons=[f"lesson {chance.randrange(5)}"])
    agent.playbooks.suggest("look", k=2)


def session(agent, chance):
    progress = agent.progress(f"d{chance.randrange(3)}", goal="Book it")
    progress.note("seat", chance.choice(["aisle", "window"]))
    progress.next(f"Look at {chance.randrange(9)}")
    agent.handoff.send(agent.name, {"n": chance.randrange(9)})
    if received := agent.handoff.receive():
        received.accept()


def context(agent, chance):
    agent.build_context(thread=f"t{chance.randrange(10)}", user="u", query="hello", budget=2_000, keep=False)


def prune(agent, chance):
    agent.store.prune("5s")


def fork(agent, chance):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            state(agent, random.Random(os.getpid()))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


WORK = [state] * 12 + [thread] * 8 + [checkpoint] * 4 + [run] * 6 + [task] * 6 + [memory] * 4
WORK += [question, lease, fork, workflow, playbook, session, context] * 2 + [prune]


def main(store, seconds, name, bug=""):
    left_open = []
    chance, me = random.Random(name), psutil.Process()
    began, ended, done, refused = time.monotonic(), float(seconds), 0, 0
    due = ended / 20
    with Tenuto(name, store) as agent:
        while (passed := time.monotonic() - began) < ended:
            try:
                chance.choice(WORK)(agent, chance)
            except (Conflict, NotFound, RunBusy):  # another worker uses the same names
                refused += 1
            done += 1
            if bug == "leaky":
                left_open.append(open(store))  # noqa: PTH123, SIM115
            if passed > due:
                due += ended / 20
                sample = {"rss": me.memory_info().rss, "fds": me.num_fds(), "threads": threading.active_count()}
                print(json.dumps({**sample, "done": done, "refused": refused}), flush=True)
    print(json.dumps({"ended": done}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

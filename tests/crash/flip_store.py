"""A store with something of everything in it, and the judge who says what became of it after damage."""

import random
from typing import NamedTuple

from tenuto import Tenuto
from tenuto.backends.sqlite.commit import WorkJob, Writer
from tenuto.errors import TenutoError
from tenuto.kernel import keys
from tenuto.kernel.contract import Commit, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock

SCOPES = ("alpha", "beta", "gamma")
PROBES = ("", "zzz", "k0000", "k9999")
_NOTHING = object()


class Expected(NamedTuple):
    """What was written: values and versions by scope and key, what must be absent, and the journals."""

    values: dict
    absent: list
    journals: dict
    requests: dict
    floor: int
    now: float


def build(path, *, keys_per_scope=70, seed=4):
    """Fill a store: values of many sizes, overwritten and deleted ones, streams, requests, a floor."""
    clock = HeldClock()
    chance = random.Random(seed)
    with Tenuto("builder", path, clock=clock) as agent:
        for number in range(5):
            agent.state.set("floored", "gone", number)
        agent.state.delete("floored", "gone")
        clock.advance(2 * 3_600)
        agent._backend._group.submit(WorkJob(Writer.sweep))  # the tombstone goes, its version becomes the floor
        fill(agent, chance, keys_per_scope)
        requests = {}
        for number in range(120):
            request = new_request(agent.kernel.now())
            put = Put(keys.pack("requested", "raw", f"r{number}"), bytes([number]) * 20)
            requests[request] = (put, agent.kernel.commit([], [put], request=request))
        return expected(agent, requests, clock)


def fill(agent, chance, keys_per_scope, *, name="k"):
    """Write, overwrite and delete in every scope."""
    for scope in SCOPES:
        for number in range(keys_per_scope):
            length = chance.choice([3, 20, 100, 400, 900]) if number % 25 else 6_000
            agent.state.set(scope, f"{name}{number:04}", [scope, number, chance.randbytes(length)])
        for number in range(0, keys_per_scope, 5):
            agent.state.set(scope, f"{name}{number:04}", [scope, "again", number])
        for number in range(2, keys_per_scope, 7):
            agent.state.delete(scope, f"{name}{number:04}")


def expected(agent, requests, clock):
    values, absent, journals = {}, [], {}
    for scope in SCOPES:
        items = agent.state.items(scope)
        values[scope] = {key: (value, agent.state.entry(scope, key).version) for key, value in items.items()}
        journals[scope] = agent.kernel.entries(keys.pack(scope, "state"), limit=10_000)
        told = {change.key for change in agent.state.watch(scope, after=0, timeout="1ms")}
        absent += [(scope, key) for key in sorted(told - items.keys())]
        absent += [(scope, key) for key in PROBES if key and key not in items]
    assert all(len(part) > 10 for part in (*values.values(), *journals.values(), absent))
    return Expected(values, absent, journals, requests, 6, clock.time())


def judge(path, told):
    """Open a store and read everything. Return what became of it:

    open, read, check    the damage was noticed, and where first
    harmless             everything is as it was written
    wrong                something was returned that was never written
    silent               something is missing, and neither a read nor check() says so
    untyped              an error that is not tenuto's
    """
    agent = Tenuto("judge", path, clock=HeldClock(told.now))
    try:
        try:
            agent.open()
        except TenutoError:
            return "open", ""
        wrong, missing, raised = _read_all(agent, told)
        if wrong:
            return "wrong", wrong[0]
        if raised:
            return "read", ""
        if agent.store.check().findings:
            return "check", ""
        if missing:
            return "silent", missing[0]
    except TenutoError:
        return "check", ""
    except Exception as error:
        return "untyped", repr(error)
    finally:
        agent.close()
    return "harmless", ""


def _read_all(agent, told):
    wrong, missing, raised = [], [], 0

    def ask(call, *arguments, **options):
        nonlocal raised
        try:
            return call(*arguments, **options)
        except TenutoError:
            raised += 1
            return _NOTHING

    for scope, written in told.values.items():
        for key, (value, version) in written.items():
            found = ask(agent.state.entry, scope, key)
            if found is None:
                missing.append(f"{scope}/{key}")
            elif found is not _NOTHING and (found.value, found.version) != (value, version):
                wrong.append(f"{scope}/{key}")
        listed = ask(agent.state.keys, scope)
        if listed is not _NOTHING and listed != sorted(written):
            (wrong if set(listed) - set(written) else missing).append(f"the list of {scope}")
        found = ask(agent.kernel.entries, keys.pack(scope, "state"), limit=10_000)
        if found is not _NOTHING and found != told.journals[scope]:
            prefix = found == told.journals[scope][: len(found)]
            (missing if prefix else wrong).append(f"the journal of {scope}")
    wrong += [
        f"{scope}/{key} came back"
        for scope, key in told.absent
        if ask(agent.state.get, scope, key, _NOTHING) is not _NOTHING
    ]
    return wrong, missing, raised


def judge_by_writing(path, told):
    """Like `judge`, for what only a writer sees: the outcomes of requests, and where versions go on.

    twice                a request was applied again, and check() says why it could be
    """
    agent = Tenuto("judge", path, clock=HeldClock(told.now), durability="process")
    try:
        try:
            agent.open()
        except TenutoError:
            return "open", ""
        twice, restarted, raised = _write_all(agent, told)
        found = agent.store.check().findings
        if twice:
            return ("twice" if found else "wrong"), twice[0]
        if raised:
            return "read", ""
        if found:
            return "check", ""
        if restarted:
            return "silent", restarted[0]
    except TenutoError:
        return "check", ""
    except Exception as error:
        return "untyped", repr(error)
    finally:
        agent.close()
    return "harmless", ""


def _write_all(agent, told):
    twice, restarted, raised = [], [], 0
    for request, (put, done) in told.requests.items():
        try:
            again = agent.kernel.commit([], [put], request=request)
        except TenutoError:
            raised += 1
        else:
            if again != Commit(done.versions, done.at, repeated=True):
                twice.append(f"a request was applied again: {again}")
    try:
        version = agent.state.set("floored", "gone", "anew")
    except TenutoError:
        raised += 1
    else:
        if version != told.floor + 1:
            restarted.append(f"a key that was at version {told.floor} went on at {version}")
    return twice, restarted, raised

"""What has an order and what has none, in histories of a few calls: times are small numbers, keys are A and B."""

import pytest

from tenuto.backends.volatile import VolatileBackend
from tenuto.errors import Conflict, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, CheckEnd, Commit, Delete, Entry, Put, Record
from tenuto.kernel.transact import new_request
from tenuto.testing import Faults
from tenuto.testing._recorded import Found, Look, Page
from tenuto.testing._search import NEVER
from tenuto.testing.history import Call, NotLinearizable, Recorded, verify

A, B = keys.pack("t", "s", "a"), keys.pack("t", "s", "b")
PAIR, LOG = keys.pack("t", "s"), keys.pack("t", "s", "log")


def read(began, ended, **found):
    names = {"a": A, "b": B}
    answer = Found(tuple(one and Record(names[name], one[0], one[1], 0.0) for name, one in found.items()))
    return Call("reader", began, ended, tuple(names[name] for name in found), (), (), answer)


def look(began, ended, verb, answer, key=PAIR, **how):
    return Call("looker", began, ended, (), (), (), Page(tuple(answer)), Look(verb, key, **how))


def records(**found):
    return [Record({"a": A, "b": B}[name], value, version, 0.0) for name, (value, version) in found.items()]


def lines(first, *values):
    return [Entry(number, value, 0.0, b"", b"", ()) for number, value in enumerate(values, first)]


def commit(began, ended, writes, *versions, checks=()):
    return Call("writer", began, ended, (), tuple(checks), tuple(writes), Commit(versions, 0.0))


def unknown(began, writes, checks=()):
    return Call("lost", began, NEVER, (), tuple(checks), tuple(writes), None)


def refused(began, ended, checks, *different):
    return Call("late", began, ended, (), tuple(checks), (Put(A, b"no"),), Conflict("", different))


ONE, TWO = (b"1", 1), (b"2", 2)
first = commit(0, 10, [Put(A, b"1")], 1)
second = commit(20, 50, [Put(A, b"2")], 2, checks=[Check(A, 1)])
both = commit(0, 30, [Put(A, b"1"), Put(B, b"1")], 1, 1)
line = commit(0, 10, [Put(A, b"1"), Append(LOG, b"x")], 1, 1)
next_line = commit(20, 50, [Append(LOG, b"y"), Append(LOG, b"z")], 2, 3, checks=[CheckEnd(LOG, 1)])

EXPLAINED = {
    "nothing": [],
    "one after the other": [read(0, 1, a=None), commit(2, 3, [Put(A, b"1")], 1), read(4, 5, a=ONE)],
    "a read beside a commit sees the old": [first, second, read(25, 45, a=ONE)],
    "or the new": [first, second, read(25, 45, a=TWO)],
    "first the old, then the new": [first, second, read(21, 30, a=ONE), read(31, 40, a=TWO)],
    "an unanswered commit happened": [unknown(0, [Put(A, b"1")]), read(5, 6, a=ONE)],
    "or did not": [unknown(0, [Put(A, b"1")]), read(5, 6, a=None)],
    "or happened later": [unknown(0, [Put(A, b"1")]), read(5, 6, a=None), read(7, 8, a=ONE)],
    "or where its check held": [first, unknown(0, [Put(A, b"2")], [Check(A, 1)]), read(70, 80, a=TWO)],
    "a conflict with what came in between": [first, second, refused(30, 40, [Check(A, 1)], A)],
    "a conflict with what nobody answered": [first, unknown(11, [Put(A, b"2")]), refused(30, 40, [Check(A, 1)], A)],
    "a deletion counts": [
        first,
        commit(11, 12, [Delete(A)], 2),
        commit(13, 14, [Delete(A)], 2),
        read(15, 16, a=None),
        commit(17, 18, [Put(A, b"3")], 3, checks=[Check(A, 0)]),
    ],
    "both keys at once": [both, read(1, 20, a=None, b=None), read(21, 40, a=ONE, b=ONE)],
    "one key after the other, by two reads": [both, read(1, 5, b=None), read(6, 20, a=ONE), read(21, 29, b=ONE)],
    "a stream counts too": [
        commit(0, 1, [Append(A, b"x"), Append(A, b"y")], 1, 2),
        commit(2, 3, [Append(A, b"z")], 3, checks=[CheckEnd(A, 2)]),
    ],
    "a scan of both": [both, look(31, 40, "scan", records(a=ONE, b=ONE))],
    "a scan before both": [both, look(1, 20, "scan", []), look(2, 29, "scan", records(a=ONE, b=ONE))],
    "a page of a scan": [
        both,
        look(31, 40, "scan", records(b=ONE), after=A),
        look(31, 40, "scan", records(a=ONE), limit=1),
        look(31, 40, "scan", records(b=ONE, a=ONE), reverse=True),
        look(31, 40, "scan", records(a=ONE), after=B, reverse=True),
    ],
    "entries while they are added": [
        line,
        next_line,
        look(21, 30, "entries", lines(1, b"x"), LOG),
        look(31, 40, "entries", lines(1, b"x", b"y", b"z"), LOG),
        look(60, 70, "entries", lines(2, b"y"), LOG, after=1, limit=1),
        look(60, 70, "entries", lines(3, b"z"), LOG, after=4, limit=1, reverse=True),
    ],
    "entries of a commit without an answer": [
        unknown(0, [Append(LOG, b"x")]),
        look(5, 6, "entries", [], LOG),
        look(7, 8, "entries", lines(1, b"x"), LOG),
    ],
    "a stream that is listed": [line, look(1, 5, "streams", []), look(11, 12, "streams", [LOG])],
    "a scan that leaves out the streams": [line, look(11, 12, "scan", records(a=ONE))],
    "two hundred at once": [commit(0, 5_000 + n, [Put(A, b"%d" % n)], n) for n in range(1, 201)],
}

WITHOUT = {
    "an older value after a newer one was acknowledged": [first, second, read(51, 60, a=ONE)],
    "the new, then the old": [first, second, read(21, 30, a=TWO), read(31, 40, a=ONE)],
    "a value before it was written": [read(0, 1, a=ONE), commit(2, 3, [Put(A, b"1")], 1)],
    "a value that nobody wrote": [first, read(11, 12, a=(b"?", 1))],
    "an acknowledged write that is not there": [first, read(11, 12, a=None)],
    "two who passed the same check": [
        first,
        commit(20, 30, [Put(A, b"2")], 2, checks=[Check(A, 1)]),
        commit(20, 30, [Put(A, b"3")], 3, checks=[Check(A, 1)]),
    ],
    "two who each found the other absent": [
        commit(0, 10, [Put(A, b"1")], 1, checks=[Check(B, 0)]),
        commit(0, 10, [Put(B, b"1")], 1, checks=[Check(A, 0)]),
    ],
    "a version left out": [first, commit(11, 12, [Put(A, b"2")], 3)],
    "a version given twice": [first, commit(11, 12, [Put(A, b"2")], 1)],
    "a version that began again": [first, commit(11, 12, [Delete(A)], 2), commit(13, 14, [Put(A, b"1")], 1)],
    "half a commit": [both, read(31, 40, a=ONE, b=None)],
    "half a commit while it is under way": [both, read(5, 10, a=ONE, b=None)],
    "half a commit, by two reads": [both, read(5, 10, b=ONE), read(11, 20, a=None)],
    "a conflict with nothing": [first, refused(11, 12, [Check(A, 1)], A)],
    "a conflict that names another key": [both, refused(40, 50, [Check(A, 2), Check(B, 1)], B)],
    "a conflict that names no key": [first, refused(11, 12, [Check(A, 0)])],
    "a conflict with nothing that names no key": [first, refused(11, 12, [Check(A, 1)])],
    "an older value while others are at work": [
        commit(0, 100, [Put(B, b"1")], 1),
        commit(10, 20, [Put(A, b"1")], 1),
        read(110, 120, a=None, b=ONE),
    ],
    "the value of one that was refused": [first, refused(11, 12, [Check(A, 0)], A), read(13, 14, a=(b"no", 2))],
    "a scan that misses a key": [both, look(31, 40, "scan", records(a=ONE))],
    "a scan that misses all keys": [both, look(31, 40, "scan", [])],
    "a scan with half a commit": [both, look(5, 10, "scan", records(a=ONE))],
    "a scan with an older value": [first, second, look(51, 60, "scan", records(a=ONE))],
    "a scan in the wrong order": [both, look(31, 40, "scan", records(b=ONE, a=ONE))],
    "a scan that finds what was deleted": [
        first,
        commit(11, 12, [Delete(A)], 2),
        look(13, 14, "scan", records(a=ONE)),
    ],
    "a scan beyond its limit": [both, look(31, 40, "scan", records(a=ONE, b=ONE), limit=1)],
    "a scan that finds what nobody wrote": [first, look(11, 12, "scan", records(a=ONE, b=ONE))],
    "an entry read early": [line, next_line, look(11, 12, "entries", lines(1, b"x", b"y"), LOG)],
    "an entry that was never added": [line, look(11, 12, "entries", lines(1, b"x", b"y"), LOG)],
    "an entry that is missing": [line, next_line, look(60, 70, "entries", lines(1, b"x", b"y"), LOG)],
    "half of the entries of a commit": [line, next_line, look(30, 40, "entries", lines(1, b"x", b"y"), LOG)],
    "an entry with another's value": [line, look(11, 12, "entries", lines(1, b"?"), LOG)],
    "entries that go back": [
        line,
        next_line,
        look(21, 30, "entries", lines(1, b"x", b"y", b"z"), LOG),
        look(31, 40, "entries", lines(1, b"x"), LOG),
    ],
    "a stream that is not listed": [line, look(11, 12, "streams", [])],
    "an unanswered commit that happened twice": [unknown(0, [Put(A, b"1")]), read(5, 6, a=(b"1", 2))],
    "an unanswered commit that came and went": [unknown(0, [Put(A, b"1")]), read(5, 6, a=ONE), read(7, 8, a=None)],
    "an unanswered commit before it began": [read(0, 1, a=ONE), unknown(2, [Put(A, b"1")])],
    "an unanswered commit whose check never held": [unknown(0, [Put(A, b"1")], [Check(A, 7)]), read(5, 6, a=ONE)],
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_there_is_an_order_for(name: str) -> None:
    verify(EXPLAINED[name])
    verify(EXPLAINED[name][::-1])


@pytest.mark.parametrize("name", WITHOUT)
def test_there_is_no_order_for(name: str) -> None:
    for calls in (WITHOUT[name], WITHOUT[name][::-1]):
        with pytest.raises(NotLinearizable):
            verify(calls)


def test_keys_without_a_call_in_common_are_judged_apart() -> None:
    stale = [commit(0, 1, [Put(B, b"1")], 1), read(2, 3, b=None)]

    with pytest.raises(NotLinearizable) as error:
        verify([first, second, *stale])

    assert str(error.value).splitlines()[1:] == [
        "        -0 to     -0  writer: put b 1 -> b is at 1",
        "         0 to      0  reader: read b -> absent   <- fits nowhere",
        "At its latest possible position the store holds b 1 at 1.",
    ]


def test_what_is_shown_is_the_call_and_those_that_it_is_held_against() -> None:
    long = [commit(100 * n, 100 * n + 50, [Put(A, b"%d" % n)], n) for n in range(1, 100)]

    with pytest.raises(NotLinearizable) as error:
        verify([*long, read(5_060, 5_070, a=(b"48", 48))])

    shown = str(error.value).splitlines()
    assert [line.partition(": ")[2] for line in shown[1:4]] == [
        "put a 48 -> a is at 48",
        "put a 50 -> a is at 50",
        "read a -> 48 at 48   <- fits nowhere",
    ]
    assert shown[4:] == ["At its latest possible position the store holds a 50 at 50."]


def test_a_commit_that_is_sent_again_is_one_call() -> None:
    faults = Faults(VolatileBackend())
    client = Recorded(faults, "one")
    request = new_request(faults.now())
    faults.lose_reply()
    with pytest.raises(StorageUnavailable):
        client.commit([], [Put(A, b"1")], request=request)
    assert client.calls[0].answer is None

    client.commit([], [Put(A, b"1")], request=request)

    assert [call.answer.versions for call in client.calls] == [(1,)]
    verify(client.calls)


def test_a_commit_that_surely_did_not_happen_is_no_call() -> None:
    faults = Faults(VolatileBackend())
    client = Recorded(faults, "one")
    faults.fail_before()

    with pytest.raises(StorageUnavailable):
        client.commit([], [Put(A, b"1")])

    assert client.calls == []


def test_a_conflict_after_a_lost_reply_leaves_the_first_sending_open() -> None:
    faults = Faults(VolatileBackend())
    client = Recorded(faults, "one")
    request = new_request(faults.now())
    faults.fail_before(error=StorageUnavailable("lost", outcome="unknown"))
    with pytest.raises(StorageUnavailable):
        client.commit([Check(A, 0)], [Put(A, b"1")], request=request)
    client.commit([], [Put(A, b"2")])

    with pytest.raises(Conflict):
        client.commit([Check(A, 0)], [Put(A, b"1")], request=request)

    assert [type(call.answer) for call in client.calls] == [type(None), Commit, Conflict]
    verify(client.calls)

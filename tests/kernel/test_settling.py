"""A commit whose reply is lost: once its outcome is unknown, only an answer to its request id makes it known."""

from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.backends.volatile import VolatileBackend
from tenuto.errors import (
    Closed,
    Conflict,
    NewerFormat,
    ReadOnly,
    RequestExpired,
    StorageFull,
    StorageUnavailable,
    TenutoError,
)
from tenuto.kernel import keys
from tenuto.kernel.contract import Check, Commit, Put
from tenuto.kernel.transact import commit_once, new_request
from tenuto.kernel.work import perform
from tenuto.testing import HeldClock

KEY = keys.pack("t", "s", "k")


class Scripted(VolatileBackend):
    """A store whose commits do, one after the other, what a test says; then they work."""

    def __init__(self, *script: Any) -> None:
        super().__init__(clock=HeldClock())
        self.script = list(script)
        self.requests: list[bytes | None] = []

    def commit(self, checks: Any, writes: Any, *, request: bytes | None = None) -> Commit:
        self.requests.append(request)
        if not self.script:
            return super().commit(checks, writes, request=request)
        step = self.script.pop(0)
        if step == "lost":
            super().commit(checks, writes, request=request)
            raise StorageUnavailable("The reply was lost.", outcome="unknown", request=request)
        raise step


def away() -> StorageUnavailable:
    return StorageUnavailable("The server refuses connections. Nothing was written.")


def settled(store: Scripted, checks: Any = (), request: bytes | None = None) -> Commit:
    return perform(commit_once(store, list(checks), [Put(KEY, b"v")], request), HeldClock())


@pytest.mark.parametrize(
    "failure",
    [
        away(),
        StorageFull("There is no room left."),
        ReadOnly("It is a replica now."),
        RequestExpired("Too old."),
        NewerFormat("Upgraded meanwhile."),
        Closed("Closed."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_retry_meets_does_not_make_the_first_attempt_known(failure: TenutoError) -> None:
    store = Scripted("lost", failure, failure, failure)
    with pytest.raises(StorageUnavailable) as error:
        settled(store)
    assert error.value.outcome == "unknown"
    assert str(error.value) == "The reply was lost."
    assert error.value.__cause__ is failure
    # The error says how to find out.
    assert settled(store, request=error.value.request).repeated
    assert len(set(store.requests)) == 1


def test_a_server_that_comes_back_between_retries_resolves_it() -> None:
    store = Scripted("lost", away(), away())
    assert settled(store).repeated
    assert store.read([KEY])[0].version == 1  # type: ignore[union-attr]


def test_a_first_attempt_that_was_surely_not_applied_is_told_so_and_not_repeated() -> None:
    store = Scripted(away())
    with pytest.raises(StorageUnavailable) as error:
        settled(store)
    assert error.value.outcome == "not applied"
    assert len(store.requests) == 1


def test_a_conflict_of_a_retry_is_an_answer() -> None:
    lost = StorageUnavailable("The request was lost.", outcome="unknown")
    with pytest.raises(Conflict):
        settled(Scripted(lost), [Check(KEY, 7)])


def test_a_store_that_chose_another_id_is_asked_by_that_one() -> None:
    other = new_request(HeldClock().time())
    store = Scripted(StorageUnavailable("The reply was lost.", outcome="unknown", request=other))
    settled(store)
    assert store.requests[1] == other


@pytest.mark.parametrize("what", ["append", "update", "enqueue"])
def test_no_capability_says_that_nothing_was_written_when_it_was(what: str) -> None:
    store = Scripted()
    agent = Tenuto("a", store, clock=HeldClock())
    store.script = ["lost", *[away()] * 3]
    with pytest.raises(StorageUnavailable) as error:
        if what == "append":
            agent.thread("t").append({"role": "user", "content": "pay"})
        elif what == "update":
            agent.state.update("s", "n", lambda n: n + 1, default=0)
        else:
            agent.tasks.enqueue("q", {})
    assert error.value.outcome == "unknown"


def test_a_run_that_tries_for_a_while_to_record_a_result_stays_in_doubt_too() -> None:
    store = Scripted()
    agent = Tenuto("a", store, clock=HeldClock())
    with pytest.raises(StorageUnavailable) as error:
        with agent.run("r") as run:
            run.step("one", lambda: store.script.extend(["lost", *[away()] * 1_000]))
    assert error.value.outcome == "unknown"

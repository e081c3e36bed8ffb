"""A crash at every commit of create, prune, delete, fork and sweep: what was acknowledged restores, and it can go on."""

import copy
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tenuto import Damaged, Tenuto
from tenuto.capabilities._core import blobs
from tenuto.capabilities.checkpoints.diff import same
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Backend, Commit, Record, Write
from tenuto.kernel.work import perform


class Crash(BaseException):
    """The process ends here."""


class CrashAt:
    """Passes everything through, and ends the process before or after its n-th commit."""

    def __init__(self, backend: Backend, at: int, when: str) -> None:
        self._backend, self._left, self._when = backend, at, when
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        return self._backend.read(keys)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        self.commits += 1
        if self.commits == self._left and self._when == "before":
            raise Crash
        done = self._backend.commit(checks, writes, request=request)
        if self.commits == self._left:
            raise Crash
        return done


pytestmark = pytest.mark.slow
PDF = os.urandom(450_000)
"""Nine parts of the size that the test sets: two commits of them."""


def state_at(step: int) -> dict[str, Any]:
    return {"step": step, "text": f"{step} " * 700, "pdf": PDF if step >= 6 else None}


def create(agent: Tenuto) -> None:
    agent.checkpoint.create("late", state_at(6), thread="t")


def prune(agent: Tenuto) -> None:
    agent.checkpoint.prune("t", keep_last=1)


def delete(agent: Tenuto) -> None:
    agent.checkpoint.delete(thread="t")


def fork(agent: Tenuto) -> None:
    agent.checkpoint.fork("big@1", thread="t-2")


def sweep(agent: Tenuto) -> None:
    agent.checkpoint.delete(thread="big")
    perform(agent.checkpoint._blobs.sweep(grace=-1.0), agent.clock)


KEPT: dict[Callable[[Tenuto], None], Callable[[str], bool]] = {
    create: lambda known: True,
    prune: lambda known: known in ("t@5", "big@1"),
    delete: lambda known: known == "big@1",
    fork: lambda known: True,
    sweep: lambda known: known != "big@1",
}
"""What each of them never touches: it is there after a crash anywhere."""


def prepared(backend: Backend, tenant: str) -> dict[str, Any]:
    agent = Tenuto("before", backend, tenant=tenant)
    made = {}
    for step in range(1, 6):
        made[agent.checkpoint.create("auto", state_at(step), thread="t").id] = state_at(step)
    made[agent.checkpoint.create("auto", state_at(7), thread="big").id] = state_at(7)
    return made


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("work", list(KEPT), ids=lambda work: work.__name__)
def test_whatever_was_acknowledged_restores(
    backend: Backend,
    work: Callable[[Tenuto], None],
    when: str,
    check_references: Callable[[Tenuto], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenuto.capabilities.checkpoints.create._SPARE", 64)  # keyframes come soon
    monkeypatch.setattr(blobs, "PART", 50_000)
    at = 0
    while True:
        at += 1
        tenant = uuid.uuid4().hex
        made = prepared(backend, tenant)
        crashing = CrashAt(backend, at, when)
        try:
            work(Tenuto("crashing", crashing, tenant=tenant))
            ended = True
        except Crash:
            ended = False
        agent = Tenuto("after", backend, tenant=tenant)
        shown = {checkpoint.id for checkpoint in agent.checkpoint.list(limit=1_000)}
        assert {known for known in made if KEPT[work](known)} <= shown
        for known in shown & set(made):
            assert same(dict(agent.checkpoint.restore(id=known)), made[known])
        for known in shown - set(made):
            agent.checkpoint.restore(id=known)
        check_references(agent)
        if not ended:
            try:
                work(agent)  # again, and it goes through
            except Exception:
                assert work is fork, "only a fork that had been made is refused"
            check_references(agent)
        if work is delete:
            left = agent.kernel.scan(keys.pack("t", "checkpoint", "at"), limit=100)
            assert len(left) == 1, "only the end that keeps the count"
            assert b"auto" not in left[0].value
        agent.checkpoint.create("more", {"n": 1}, thread="t")
        assert agent.checkpoint.restore(thread="t") == {"n": 1}
        if ended:
            break
    assert at > 1


class Flipped:
    """A store that returns one record with one bit of its value changed, unnoticed."""

    def __init__(self, backend: Backend, key: bytes, at: int) -> None:
        self._backend, self._key, self._at = backend, key, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _changed(self, record: Record | None) -> Record | None:
        if record is None or record.key != self._key:
            return record
        value = bytearray(record.value)
        value[self._at // 8] ^= 1 << self._at % 8
        return record._replace(value=bytes(value))

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        return [self._changed(record) for record in self._backend.read(keys)]

    def scan(self, prefix: bytes, **options: Any) -> list[Record]:
        return [self._changed(record) for record in self._backend.scan(prefix, **options)]  # type: ignore[misc]

    def entries(self, stream: bytes, **options: Any) -> Any:
        return self._backend.entries(stream, **options)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        return self._backend.commit(checks, writes, request=request)

    def now(self) -> float:
        return self._backend.now()

    def check(self) -> Any:
        return self._backend.check()

    def stats(self) -> Mapping[str, Any]:
        return self._backend.stats()

    def close(self) -> None:
        self._backend.close()


def test_any_flipped_bit_is_an_error_that_names_the_checkpoint_never_a_wrong_state(backend: Backend) -> None:
    """Beneath every checksum of the store itself, which would have noticed first."""
    tenant = uuid.uuid4().hex
    agent = Tenuto("writer", backend, tenant=tenant)
    made = {}
    state: dict[str, Any] = {"list": [f"element {n}" * 3 for n in range(80)], "large": "x" * 70_000, "n": (1, 2.5)}
    for step in range(4):
        state["list"][step * 7] = {"edited": step}
        made[agent.checkpoint.create("auto", state, thread="t").id] = copy.deepcopy(state)
    found = wrong = unnamed = 0
    for record in backend.scan(keys.pack(tenant, "t"), limit=100) + backend.scan(keys.pack(tenant, "blobs"), limit=100):
        bits = len(record.value) * 8
        for at in range(0, bits, max(1, bits // 60)):
            reader = Tenuto("reader", Flipped(backend, record.key, at), tenant=tenant)
            for known, expected in made.items():
                try:
                    restored = reader.checkpoint.restore(id=known, default=None)
                except Damaged as error:
                    found += 1
                    unnamed += known not in str(error)
                else:
                    wrong += restored is not None and not same(dict(restored), expected)
    assert (wrong, unnamed) == (0, 0)
    assert found > 200

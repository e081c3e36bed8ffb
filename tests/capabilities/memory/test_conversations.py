"""Recall in a conversation: by words, neighbours, speakers and dates, of that conversation alone."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tenuto import NotFound, Tenuto
from tenuto.testing import HeldClock


def say(agent: Tenuto, *texts: str, thread: str = "t", user: str | None = None) -> None:
    for at, text in enumerate(texts):
        agent.thread(thread, user=user).append({"role": ("user", "assistant")[at % 2], "content": text})


def numbers(agent: Tenuto, query: str, **options: object) -> list[int]:
    return [one.memory.source.message for one in agent.memory.recall(query, thread="t", **options)]  # type: ignore


def test_an_answer_is_found_by_the_question_before_it(agent: Tenuto) -> None:
    say(agent, "Hello", "What is the name of your dog?", "Rex", "Nice. And the weather?", "It rains")
    hit = agent.memory.recall("the dog's name", thread="t")[0]
    assert hit.memory.text == "Rex"
    assert [one.text for one in hit.before] == ["What is the name of your dog?"]
    assert [one.text for one in hit.after] == ["Nice. And the weather?"]
    assert "answers a question" in hit.why
    assert agent.memory.recall("the dog's name", thread="t", neighbours=0)[0].before == ()


def test_a_named_speaker_and_a_date_count(agent: Tenuto, clock: HeldClock) -> None:
    for day in (1, 30, 60):
        when = datetime(2023, 5, 1, tzinfo=UTC).timestamp() + day * 86_400
        for name, text in (
            ("Ann", "I was painting again"),
            ("Bea", "Lovely! It rains."),
            ("Bea", "I was painting too"),
        ):
            agent.thread("t").append({"role": "user", "name": name, "content": text, "timestamp": when})
    assert numbers(agent, "What did Bea paint in June 2023?", k=1) == [9]
    assert numbers(agent, "What did Ann paint in June 2023?", k=1) == [7]
    assert numbers(agent, "What did Ann paint on 2 May 2023?", k=1) == [1]


def test_new_messages_are_found_at_once_and_deleted_ones_never(client: Callable[..., Tenuto]) -> None:
    agent, other = client("one"), client("two")
    say(agent, "The password is swordfish")
    assert numbers(other, "password") == [1]
    say(agent, "The password is marlin now")
    assert sorted(numbers(other, "password")) == [1, 2]
    agent.thread("t").take_back()
    assert numbers(other, "password") == [1]
    agent.thread("t").delete()
    assert numbers(other, "password") == []
    say(agent, "A new password: carp")
    assert [one.memory.text for one in other.memory.recall("password", thread="t")] == ["A new password: carp"]


def test_a_summary_hides_nothing_from_recall(agent: Tenuto) -> None:
    say(agent, "My dog is called Rex", "Fine", "Something else", "Yes")
    agent.thread("t").compact(lambda messages: "They talked.", keep_last=1)
    assert numbers(agent, "dog called", k=1) == [1]


def test_recall_at_a_time_and_by_trust(agent: Tenuto, clock: HeldClock) -> None:
    say(agent, "Tea please", "Tea it is")
    then = datetime.fromtimestamp(clock.time(), UTC)
    clock.sleep(100)
    say(agent, "Tea again")
    assert sorted(numbers(agent, "tea", at=then)) == [1, 2]
    assert sorted(numbers(agent, "tea", min_trust="person")) == [1, 3]


def test_a_thread_of_another_user_is_not_found(agent: Tenuto) -> None:
    say(agent, "Ann's secret is blue", user="ann")
    assert numbers(agent, "secret", user="ann") == [1]
    with pytest.raises(NotFound, match="'bob' has no thread"):
        agent.memory.recall("secret", thread="t", user="bob")
    assert agent.memory.recall("secret", thread="no such thread", user="bob") == []


def test_content_parts_of_any_provider_are_read(agent: Tenuto) -> None:
    agent.thread("t").append(
        {"role": "user", "content": [{"type": "text", "text": "A picture of a llama"}, {"type": "image", "data": "…"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "llamas live in Peru", "tool_call_id": "1"},
    )
    assert sorted(numbers(agent, "llama")) == [1, 3]

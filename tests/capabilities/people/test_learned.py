"""Answers of people become memories, in the commit of the answer."""

from typing import Any

import pytest

from tenuto import Conflict, InvalidInput, Tenuto, Waiting


def decided(agent: Tenuto, **options: Any) -> str:
    asked = agent.ask("The receipt is missing. Pay anyway?", choices=["approve", "reject"], **options)
    agent.inbox.answer(asked.id, "approve", by="bob")
    return asked.id


def test_what_happened_last_time_is_found_by_itself(agent: Tenuto) -> None:
    decided(agent, about=["invoice:881", "vendor:acme"], context={"vendor": "Acme", "amount": 4_200, "lines": [1, 2]})
    decided(agent, about=["invoice:9", "vendor:globex"])
    [best, *_] = agent.memory.recall("what happened last time this vendor acme had an issue", k=1)
    assert best.memory.about == "vendor:acme"
    assert "invoice:881, vendor:acme" in best.memory.text
    assert "amount 4200" in best.memory.text
    assert best.memory.text.endswith(": approve")
    assert (best.memory.kind, best.memory.trust, best.memory.user) == ("decision", "person", None)
    asked = agent.ask("The receipt is missing again", about=["invoice:882", "vendor:acme"])
    assert asked.remembered == [best.memory.text]
    assert asked.last is not None


def test_only_answers_about_something_are_remembered_unless_asked(agent: Tenuto) -> None:
    decided(agent)
    decided(agent, about="vendor:acme", remember=False)
    assert agent.memory.list() == []
    decided(agent, remember=True)
    [one] = agent.memory.list()
    assert one.about is None
    open_ = agent.ask("And now?", about="vendor:acme", quorum=2, to=["ann", "bob"])
    agent.inbox.answer(open_.id, "yes", by="ann")
    assert len(agent.memory.list()) == 1, "one vote of two decides nothing"
    agent.inbox.cancel(open_.id, by="ann")
    assert len(agent.memory.list()) == 1
    with pytest.raises(InvalidInput, match="remember"):
        agent.ask("And now?", remember="no")  # type: ignore[typeddict-item]


def test_the_answer_to_a_users_run_is_the_memory_of_that_user(agent: Tenuto) -> None:
    with pytest.raises(Waiting), agent.run("r", user="ann") as run:
        run.ask("Send it to the old address?", about="address", remember=True)
    [asked] = agent.inbox.list()
    agent.inbox.answer(asked.id, "No, to the new one.", by="carl")
    assert agent.memory.list() == []
    assert agent.memory.recall("address", user="bob") == []
    [one] = agent.memory.list("ann")
    assert one.text.endswith("No, to the new one.")
    agent.memory.forget(user="ann")
    assert agent.memory.recall("address", user="ann") == []


def test_the_memory_and_the_answer_are_both_there_or_neither(agent: Tenuto, monkeypatch: Any) -> None:
    asked = agent.ask("Pay?", about="vendor:acme")
    commits: list[int] = []
    real = type(agent.kernel).commit

    def counted(self: Any, checks: Any, writes: Any, **options: Any) -> Any:
        commits.append(len(writes))
        return real(self, checks, writes, **options)

    monkeypatch.setattr(type(agent.kernel), "commit", counted)
    agent.inbox.answer(asked.id, "yes", by="ann")
    assert len(commits) == 1, "one commit has the answer and the memory"
    assert len(agent.memory.list()) == 1
    with pytest.raises(Conflict):
        agent.inbox.answer(asked.id, "no", by="bob")
    assert len(agent.memory.list()) == 1


def test_a_long_or_strange_answer_is_stored_all_the_same(agent: Tenuto) -> None:
    asked = agent.ask("What is it? \x00", about="vendor:acme", context={"a": "\ud800"[:0], "b": "x" * 5_000})
    agent.inbox.answer(asked.id, {"text": "y" * 500_000, "zero": "\x00"}, by="ann")
    [one] = agent.memory.list()
    assert len(one.text) < 5_000

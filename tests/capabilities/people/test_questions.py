"""Questions: asked once, answered once by those who may, with every refusal typed."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any

import jsonschema
import msgspec
import pydantic
import pytest
from support.long import size

from tenuto import Conflict, InvalidInput, NoAnswer, NotFound, Run, Tenuto, TimedOut, TooLarge, Waiting
from tenuto.capabilities._core.schemas import problems, schema_of


@dataclasses.dataclass
class Decision:
    approve: bool
    limit: int = 0


class Refund(msgspec.Struct):
    amount: int
    reason: str


class Model(pydantic.BaseModel):
    score: int


def test_a_question_carries_everything_needed_to_decide(agent: Tenuto, clock: Any) -> None:
    asked = agent.ask(
        "Invoice 881 lacks a receipt",
        to=["ann", "bob"],
        context={"vendor": "acme", "amount": 4_200},
        evidence=["scan-1.png"],
        choices=["approve", "reject"],
        deadline="24h",
        policy="Over 1,000 needs a receipt.",
    )
    found = agent.inbox.get(asked.id)
    assert found == asked
    assert (found.to, found.assignees, found.evidence) == ("ann, bob", ["ann", "bob"], ["scan-1.png"])
    assert found.deadline == datetime.fromtimestamp(clock.time() + 86_400, UTC)
    assert [one.id for one in agent.inbox.list(to="bob")] == [asked.id]
    shape = found.as_interrupt()
    assert set(shape) == {"id", "reason", "message", "toolCallId", "responseSchema", "expiresAt", "metadata"}
    assert shape["responseSchema"] == {"enum": ["approve", "reject"]}
    assert shape["expiresAt"] is None, "it waits for ever"
    assert agent.inbox.answer(asked.id, "approve", by="bob").status == "answered"
    assert [one.what for one in agent.inbox.history(asked.id)] == ["asked", "answered"]


def test_a_later_answer_is_told_who_answered_and_when(agent: Tenuto) -> None:
    asked = agent.ask("Pay?", to="ann")
    agent.inbox.answer(asked.id, "yes", by="ann")
    with pytest.raises(Conflict, match=r"already answered by ann at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"):
        agent.inbox.answer(asked.id, "no", by="bob")
    assert agent.inbox.get(asked.id).answer == "yes"


def test_the_same_key_is_asked_once(agent: Tenuto, client: Callable[..., Tenuto]) -> None:
    first = agent.ask("Pay 881?", to="ann", key="881")
    assert client("other").ask("Pay 881?", to="ann", key="881") == first
    assert len(agent.inbox.list()) == 1
    agent.inbox.answer("881", "yes", by="ann")
    assert agent.ask("Pay 881?", to="ann", key="881", deadline="2001-01-01").answer == "yes", "after its deadline too"
    with pytest.raises(Conflict, match="another question"):
        agent.ask("Pay 882?", key="881")


def test_two_runs_with_the_same_key_wait_for_one_answer(agent: Tenuto) -> None:
    def body(name: str) -> Any:
        with agent.run(name) as run:
            run.result = run.ask("Is the bank down?", key="bank")
        return run.result

    for name in ("a", "b", "c", "d"):
        with pytest.raises(Waiting):
            body(name)
    [asked] = agent.inbox.list()
    for name in ("b", "a"):
        agent.runs.cancel(name)
        assert agent.inbox.get(asked.id).status == "pending", "others wait for the answer"
    agent.inbox.answer(asked.id, "yes")
    assert [body("c"), body("d")] == ["yes", "yes"]


def test_an_answer_wakes_every_run_that_waits_for_it(agent: Tenuto) -> None:
    @agent.durable
    def pay(run: Run, bank: str) -> Any:
        return run.ask(f"Is {bank} down?", key="bank")

    agent.ask("Is acme down?", to="ann", key="bank")  # asked outside of a run first
    for name in ("a", "b"):
        with pytest.raises(Waiting):
            pay.run(name, "acme")
    assert agent.runs.recover() == {}
    assert [one.id for one in agent.inbox.list(run="b")] == ["bank"]
    agent.inbox.answer("bank", "yes", by="ann")
    assert agent.runs.recover() == {"a": "completed", "b": "completed"}


@pytest.mark.parametrize("schema", [Decision, Refund, Model])
def test_an_answer_fits_the_schema_and_comes_back_as_its_type(agent: Tenuto, schema: Any) -> None:
    right = {Decision: {"approve": True, "limit": 5}, Refund: {"amount": 5, "reason": "late"}, Model: {"score": 1}}
    result: list[Any] = []

    def body() -> None:
        with agent.run("r") as run:
            result.append(run.ask("How much?", schema=schema))

    with pytest.raises(Waiting):
        body()
    [asked] = agent.inbox.list()
    with pytest.raises(InvalidInput, match="is missing"):
        agent.inbox.answer(asked.id, {})
    with pytest.raises(InvalidInput, match="must be of type object"):
        agent.inbox.answer(asked.id, "yes")
    agent.inbox.answer(asked.id, right[schema])
    body()
    body()
    assert result == [schema(**right[schema])] * 2


def test_a_quorum_needs_so_many_people_with_the_same_answer(agent: Tenuto) -> None:
    agent.inbox.group("finance", ["ann", "bob", "cleo"])
    asked = agent.ask("Pay?", to="finance", choices=["yes", "no"], quorum=2)
    assert [one.id for one in agent.inbox.list(to="bob")] == [asked.id], "as a member"
    assert agent.inbox.list(to="mallory") == []
    assert agent.inbox.answer(asked.id, "yes", by="ann").status == "pending"
    assert agent.inbox.answer(asked.id, "yes", by="ann").status == "pending", "the same person counts once"
    assert agent.inbox.answer(asked.id, "no", by="bob").status == "pending"
    with pytest.raises(InvalidInput, match="asked of ann, bob, cleo"):
        agent.inbox.answer(asked.id, "yes", by="mallory")
    done = agent.inbox.answer(asked.id, "yes", by="cleo")
    assert (done.status, done.answer, [one.by for one in done.votes]) == ("answered", "yes", ["ann", "bob", "cleo"])


def test_the_vote_of_someone_who_left_the_group_no_longer_counts(agent: Tenuto, between: Any) -> None:
    agent.inbox.group("finance", ["ann", "bob", "cleo"])
    asked = agent.ask("Pay?", to="finance", quorum=2)
    agent.inbox.answer(asked.id, "yes", by="ann")
    agent.inbox.group("finance", ["bob", "cleo"])
    assert agent.inbox.answer(asked.id, "yes", by="bob").status == "pending"
    between(agent, lambda: agent.inbox.group("finance", ["bob", "dora"]))
    with pytest.raises(InvalidInput, match="'cleo' may not answer"):
        agent.inbox.answer(asked.id, "yes", by="cleo")
    with pytest.raises(InvalidInput, match="'ann' may not"):
        agent.inbox.acknowledge(asked.id, by="ann")
    assert agent.inbox.answer(asked.id, "yes", by="dora").status == "answered"


def test_a_quorum_that_nobody_can_reach_is_refused(agent: Tenuto) -> None:
    agent.inbox.group("finance", ["ann", "bob"])
    with pytest.raises(InvalidInput, match="quorum is 3, but 2 may answer: ann, bob"):
        agent.ask("Pay?", to=["finance", "ann"], quorum=3)
    assert agent.ask("Pay?", to="finance", deadline="1h", escalate=["lead"], quorum=3).quorum == 3


def test_an_answer_is_a_choice_by_type_too(agent: Tenuto) -> None:
    asked = agent.ask("How many?", choices=[0, 1])
    with pytest.raises(InvalidInput, match="Answer one of"):
        agent.inbox.answer(asked.id, True)
    assert agent.inbox.answer(asked.id, 1).answer == 1


def test_an_answer_by_nobody_is_refused(agent: Tenuto) -> None:
    asked = agent.ask("Pay?", to="ann")
    for nobody in (None, "", 7):
        with pytest.raises(InvalidInput):
            agent.inbox.answer(asked.id, "yes", by=nobody)  # type: ignore[arg-type]
    assert agent.inbox.get(asked.id).status == "pending"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"deadline": -5}, "0 or more"),
        ({"deadline": "2001-01-01"}, "past"),
        ({"deadline": datetime(2001, 1, 1, tzinfo=UTC)}, "past"),
        ({"deadline": "2026-02-30"}, "exists"),
        ({"deadline": "soon"}, "24h|90s"),
        ({"schema": {"type": "nonsense"}}, "invalid"),
        ({"schema": {"unknown": 1}}, "not supported"),
        ({"schema": 7}, "schema"),
        ({"schema": {"$ref": "#/$defs/none"}}, "has no"),
        ({"choices": []}, "choices"),
        ({"choices": ["a"], "schema": {}}, "either"),
        ({"on_timeout": "shrug", "deadline": 5}, "on_timeout"),
        ({"on_timeout": "deny"}, "deadline"),
        ({"on_timeout": "default", "deadline": 5, "choices": ["a"], "default": "b"}, "not a choice"),
        ({"escalate": ["lead"]}, "deadline"),
        ({"to": "ann", "escalate": ["lead", "ann"], "deadline": 5}, "circular"),
        ({"escalate": ["lead", ("4h", "cfo")], "deadline": "8h"}, "every level"),
        ({"escalate": [("4h", "lead"), ("2h", "cfo")]}, "one after the other"),
        ({"quorum": 0}, "quorum"),
        ({"to": ""}, "empty"),
        ({"to": 7}, "to must be a name"),
        ({"to": "ann", "escalate": "lead", "deadline": 5}, "list of levels"),
        ({"escalate": [7], "deadline": 5}, "level of escalate"),
        ({"evidence": "a photo"}, "evidence must be a list"),
        ({"choices": 7}, "choices must be a list"),
        ({"blocks": 7}, "subject must be"),
        ({"policy": 7}, "policy"),
        ({"deadline": 1e30}, "years"),
        ({"deadline": "73050d"}, "100 years"),
        ({"deadline": date(9999, 12, 31)}, "before the year"),
        ({"deadline": timedelta.max}, "years"),
        ({"blocks": ""}, "empty"),
        ({"context": "x" * 10_000_000}, "1 MB"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_half_asked(agent: Tenuto, options: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        agent.ask("Pay?", **options)
    assert isinstance(caught.value, TooLarge) == ("1 MB" in problem)
    assert agent.inbox.list(status=None) == []
    with pytest.raises(InvalidInput), agent.run("r") as run:
        run.ask("Pay?", **options)
    assert agent.inbox.list(status=None) == []
    with pytest.raises(NotFound):
        agent.inbox.history("nothing")


def test_what_a_run_receives_when_no_answer_comes_is_never_a_denial(agent: Tenuto, clock: Any) -> None:
    got: dict[str, Any] = {}

    def body(policy: Any) -> None:
        with agent.run(policy) as run:
            default = {"default": "no"} if policy == "default" else {}
            got[policy] = run.ask("Pay?", choices=["yes", "no"], deadline=60, on_timeout=policy, **default)

    for policy in ("wait", "deny", "default", "fail"):
        with pytest.raises(Waiting):
            body(policy)
    clock.advance(61)
    with pytest.raises(Waiting):
        body("wait")
    with pytest.raises(TimedOut, match="No answer came in time"):
        body("fail")
    for _ in range(2):
        body("deny")
        body("default")
        assert isinstance(got["deny"], NoAnswer)
        assert not got["deny"]
        assert got["deny"] not in ("yes", "no")
        assert got["default"] == "no"
    for one in agent.inbox.list(status="expired"):
        assert (one.by, one.answer) == (None, "no" if one.run == "default" else None)


@pytest.mark.races
def test_of_two_answers_at_the_same_moment_one_wins(agent: Tenuto, client: Callable[..., Tenuto]) -> None:
    clients = [client("a"), client("b")]

    def answer(at: int) -> str:
        try:
            return str(clients[at].inbox.answer(asked.id, f"by {at}", by=f"p{at}").answer)
        except Conflict:
            return ""

    with ThreadPoolExecutor(2) as pool:
        for _ in range(size(10, 200)):
            asked = agent.ask("Pay?")
            won = [one for one in pool.map(answer, (0, 1)) if one]
            assert won == [agent.inbox.get(asked.id).answer]


def test_an_answer_that_comes_between_wins(agent: Tenuto, client: Callable[..., Tenuto], between: Any) -> None:
    slow = client("slow")
    asked = agent.ask("Pay?")
    between(slow, lambda: agent.inbox.answer(asked.id, "yes", by="ann"))
    with pytest.raises(Conflict, match="already answered by ann"):
        slow.inbox.answer(asked.id, "no", by="bob")
    assert agent.inbox.get(asked.id).answer == "yes"


def test_an_answer_that_comes_before_a_timer_fires_wins(
    agent: Tenuto, client: Callable[..., Tenuto], between: Any, clock: Any
) -> None:
    slow = client("slow")
    asked = agent.ask("Pay?", to="ann", deadline=60, on_timeout="deny")
    clock.advance(61)
    between(slow, lambda: agent.inbox.answer(asked.id, "yes", by="ann"))
    assert slow.inbox.fire() == 0
    assert agent.inbox.get(asked.id).status == "answered"


def test_a_timer_is_fired_by_one_of_two(agent: Tenuto, client: Callable[..., Tenuto], between: Any, clock: Any) -> None:
    slow = client("slow")
    asked = agent.ask("Pay?", to="ann", deadline=60, escalate=["lead"])
    clock.advance(61)
    between(slow, agent.inbox.fire)
    assert slow.inbox.fire() == 0
    assert [one.what for one in agent.inbox.history(asked.id)] == ["asked", "escalated"]


def test_a_date_is_the_end_of_that_day(agent: Tenuto, clock: Any) -> None:
    clock.advance(datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp() - clock.time())
    for when in ("2030-01-03", date(2030, 1, 3)):
        assert agent.ask("Pay?", deadline=when).deadline == datetime(2030, 1, 4, tzinfo=UTC)
    assert agent.ask("Pay?", deadline="2030-01-03 15:00").deadline == datetime(2030, 1, 3, 15, tzinfo=UTC)


SCHEMAS: list[tuple[Any, list[Any]]] = [
    ({"type": "integer", "minimum": 2, "multipleOf": 2}, [2, 3, 0, 4.0, True, "2", None]),
    ({"type": ["string", "null"], "minLength": 2, "pattern": "^a"}, ["ab", "a", "bb", None, 1]),
    ({"enum": [1, "a", None, [1]]}, [1, True, 1.0, "a", None, [1], [True]]),
    ({"const": {"a": 1}}, [{"a": 1}, {"a": True}, {"a": 1.0}, {}]),
    (
        {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"], "additionalProperties": False},
        [{"a": 1}, {"a": "x"}, {}, {"a": 1, "b": 2}, []],
    ),
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 2}, [[], ["a", "a"], ["a", "b", "c"]]),
    ({"prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, [[1, "a"], ["a"], [1, 1], []]),
    ({"anyOf": [{"type": "string"}, {"minimum": 5}]}, ["a", 5, 4, None]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, [4, 5, 5.5, "a"]),
    ({"allOf": [{"minimum": 1}, {"exclusiveMaximum": 3}], "not": {"const": 2}}, [1, 2, 3, 0]),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}}, [{"next": {}}, {"next": 1}]),
    ({"patternProperties": {"^x": {"type": "integer"}}, "propertyNames": {"maxLength": 2}}, [{"x": 1}, {"x": "a"}, {"abc": 1}]),
    ({"minProperties": 1, "maxProperties": 1}, [{}, {"a": 1}, {"a": 1, "b": 2}]),
    (schema_of(Decision), [{"approve": True}, {"approve": 1}, {"limit": 1}]),
    (schema_of(Model), [{"score": 1}, {"score": "x"}]),
]  # fmt: skip


def test_references_that_branch_are_checked_once_each() -> None:
    branches = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(50)}
    schema = schema_of({"$ref": "#/$defs/a0", "$defs": {**branches, "a50": {"type": "integer"}}})
    assert problems(schema, "x") == ["answer: fits none of the allowed forms"]
    assert problems(schema, 7) != [], "too deep to be checked is not right"
    itself = schema_of({"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "string"}]})
    assert (problems(itself, "x"), len(problems(itself, 7))) == ([], 1)


@pytest.mark.parametrize(("schema", "values"), SCHEMAS, ids=str)
def test_schemas_are_checked_as_by_the_reference_library(schema: Any, values: list[Any]) -> None:
    reference = jsonschema.Draft202012Validator(schema_of(schema))
    for value in values:
        assert bool(problems(schema, value)) != reference.is_valid(value), value

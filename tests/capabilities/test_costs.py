"""Costs add up: each call once where it was made, saved where it was reused, and a budget stops before the next step."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tenuto import Price, Retry, Tenuto, current_run
from tenuto.errors import BudgetExceeded, InvalidInput
from tenuto.testing import HeldClock


class Killed(BaseException):
    pass


def spend(run: Any, model: str, cost: float) -> str:
    run.usage(model, input_tokens=100, output_tokens=10, cached_tokens=40, cost=cost)
    return model


def test_the_report_equals_a_sum_by_hand_with_retries_resumes_and_forks_of_forks(
    agent: Tenuto, clock: HeldClock
) -> None:
    failing = [True, True]

    def flaky(run: Any) -> str:
        spend(run, "large", 0.5)
        if failing:
            failing.pop()
            raise ConnectionError("lost")
        return "done"

    def body(run: Any, *, kill: bool = False) -> None:
        run.step("a", lambda: spend(run, "small", 0.25), key="a")
        run.step("b", lambda: flaky(run), key="b", retry=Retry(attempts=3, first=0.0, on=(ConnectionError,)))
        if kill:
            raise Killed
        run.step("c", lambda: spend(run, "large", 1.0), key="c")
        run.usage("tiny", cost=0.125)

    for _ in range(2):  # interrupted twice: a and b are reused at each of two resumes
        with pytest.raises(Killed), agent.run("r", user="ann") as run:
            body(run, kill=True)
    with agent.run("r", user="ann") as run:
        body(run)
    clock.sleep(86_400)
    agent.runs.fork("r", "fork", at="c")
    with agent.run("fork") as run:  # a and b are inherited: saved, not spent
        body(run)
    agent.runs.fork("fork", "fork-of-fork")
    with agent.run("fork-of-fork") as run:  # all is inherited
        body(run)

    found = {one.key: one for one in agent.costs.report(by="run")}
    first = 0.25 + 3 * 0.5  # of a, and of b with its two retries
    assert (found["r"].spent, found["r"].saved) == (first + 1.0 + 0.125, 2 * first)
    assert (found["fork"].spent, found["fork"].saved) == (1.125, first)
    assert (found["fork-of-fork"].spent, found["fork-of-fork"].saved) == (0, first + 1.125)
    assert [agent.runs.get(one).cost for one in ("r", "fork", "fork-of-fork")] == [2.875, 1.125, 0]
    models = {one.key: (one.calls, one.spent) for one in agent.costs.report()}
    assert models == {"large": (5, 3.5), "small": (1, 0.25), "tiny": (2, 0.25)}
    assert [one.tokens for one in agent.costs.report() if one.key == "large"] == [550]
    assert [one.cached_tokens for one in agent.costs.report() if one.key == "small"] == [40]
    assert sum(one.spent for one in agent.costs.report(by="day")) == 4.0
    assert [one.spent for one in agent.costs.report(by="day")] == [2.875, 1.125]
    assert [(one.key, one.spent) for one in agent.costs.report(by="user", user="ann")] == [("ann", 4.0)]
    since = datetime.fromtimestamp(agent.kernel.now(), UTC) - timedelta(hours=1)
    assert sum(one.spent for one in agent.costs.report(since=since)) == 1.125


def test_a_budget_stops_before_the_next_step_and_a_higher_one_resumes(agent: Tenuto) -> None:
    made: list[int] = []

    def call(run: Any, number: int) -> int:
        made.append(number)
        run.usage("m", cost=0.5)
        return number

    def body(run: Any) -> None:
        for number in range(4):
            run.step("call", lambda number=number: call(run, number), key=str(number))

    with pytest.raises(
        BudgetExceeded, match=r"has spent \$1.00 of its budget of \$1.00; the step 'call' was not begun"
    ) as stopped:
        with agent.run("r", budget=1.0) as run:
            body(run)
    assert (made, stopped.value.spent, stopped.value.budget) == ([0, 1], 1.0, 1.0)
    with pytest.raises(BudgetExceeded), agent.run("r", budget=1.0) as run:
        body(run)
    assert made == [0, 1]
    with agent.run("r", budget=5.0) as run:
        body(run)
    assert made == [0, 1, 2, 3]
    assert agent.runs.get("r").cost == 2.0


OPENAI = SimpleNamespace(
    model="gpt",
    usage=SimpleNamespace(
        prompt_tokens=100, completion_tokens=20, prompt_tokens_details=SimpleNamespace(cached_tokens=60)
    ),
)
RESPONSES = SimpleNamespace(
    model="gpt",
    usage=SimpleNamespace(input_tokens=100, output_tokens=20, input_tokens_details=SimpleNamespace(cached_tokens=60)),
)
ANTHROPIC = SimpleNamespace(
    model="gpt",
    usage=SimpleNamespace(
        input_tokens=30, output_tokens=20, cache_read_input_tokens=60, cache_creation_input_tokens=10
    ),
)
LANGCHAIN = SimpleNamespace(
    usage_metadata={"input_tokens": 100, "output_tokens": 20, "input_token_details": {"cache_read": 60}},
    response_metadata={"model_name": "gpt"},
)
AS_DICT = {
    "model": "gpt",
    "usage": {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}},
}


@pytest.mark.parametrize(
    "response",
    [OPENAI, RESPONSES, ANTHROPIC, LANGCHAIN, AS_DICT],
    ids=["openai", "responses", "anthropic", "langchain", "dict"],
)
@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
def test_the_usage_in_a_response_is_read_and_priced(agent: Tenuto, response: Any) -> None:
    agent.costs.prices["gpt"] = Price(input=10.0, output=100.0, cached=1.0)
    with agent.run("r") as run:
        run.usage(response)
    (cost,) = agent.costs.report()
    assert (cost.tokens, cost.cached_tokens) == (120, 60)
    assert cost.spent == pytest.approx((40 * 10 + 60 * 1 + 20 * 100) / 1_000_000)


@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
def test_what_a_provider_writes_to_its_cache_has_a_price_of_its_own(agent: Tenuto) -> None:
    agent.costs.prices["gpt"] = Price(input=10.0, output=100.0, cached=1.0, written=12.5)
    langchain = {
        "usage_metadata": {"input_tokens": 100, "output_tokens": 20, "input_token_details": {"cache_read": 60, "cache_creation": 10}},
        "response_metadata": {"model_name": "gpt"},
    }  # fmt: skip
    claude = {"usage": {"input_tokens": 30, "output_tokens": 20, "cache_creation_input_tokens": 70}}
    with agent.run("r") as run:
        for response in (ANTHROPIC, langchain, {"model": "claude-sonnet-4-5", **claude}):
            run.usage(response)
    found = {one.key: one for one in agent.costs.report()}
    assert found["gpt"].spent == pytest.approx(2 * (30 * 10 + 60 * 1 + 10 * 12.5 + 20 * 100) / 1_000_000)
    assert found["claude-sonnet-4-5"].spent == pytest.approx((30 * 3 + 70 * 3.75 + 20 * 15) / 1_000_000), (
        "genai-prices knows it, too"
    )


@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
def test_prices_of_known_models_come_from_genai_prices(agent: Tenuto) -> None:
    with agent.run("r") as run:
        run.usage("gpt-4o", input_tokens=1_000, output_tokens=100)
        run.usage("no-such-model", input_tokens=1_000)
    assert {one.key: one.spent > 0 for one in agent.costs.report()} == {"gpt-4o": True, "no-such-model": False}


@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
def test_bad_input_is_said_clearly(agent: Tenuto) -> None:
    with pytest.raises(InvalidInput, match="budget must be"):
        agent.run("r", budget=-1)
    with pytest.raises(InvalidInput, match="by must be"):
        agent.costs.report(by="colour")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="time zone"):
        agent.costs.report(since=datetime(2026, 1, 1))
    with pytest.raises(InvalidInput, match="no usage and model"), agent.run("r") as run:
        run.usage(object())
    with pytest.raises(InvalidInput, match="Tokens must be"), agent.run("s") as run:
        run.usage("m", input_tokens=1, cached_tokens=2)
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises(InvalidInput, match="cost must be"), agent.run("s") as run:
            run.usage("m", cost=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="budget must be"):
        agent.run("r", budget="5")  # type: ignore[arg-type]


def test_a_playbook_that_a_cheaper_model_carries_out_says_what_it_saved(agent: Tenuto) -> None:
    agent.costs.prices["large"] = Price(input=10.0, output=100.0)
    agent.costs.prices["small"] = Price(input=1.0, output=10.0)

    @agent.action("check")
    def check(step: Any) -> None:
        current_run().usage("small", input_tokens=1_000, output_tokens=100)

    agent.playbooks.save("invoices", ["check"], designed_by="large")
    agent.playbooks.save("mails", ["check"])
    for number, name in enumerate(("invoices", "invoices", "mails")):
        agent.playbooks.start(name, as_=f"case-{number}").resume()
    with agent.run("apart") as run:
        run.usage("small", input_tokens=1_000, output_tokens=100)
    found = {one.key: (one.calls, round(one.spent, 6), round(one.cheaper, 6)) for one in agent.costs.report("playbook")}
    assert found == {"invoices": (2, 0.004, 0.036), "mails": (1, 0.002, 0.0)}
    agent.costs.prices["large"] = Price(input=1.0, output=10.0)
    assert [one.cheaper for one in agent.costs.report("playbook")] == [0.0, 0.0]


def test_a_fork_of_a_workflows_run_counts_for_its_playbook(agent: Tenuto) -> None:
    agent.costs.prices["small"] = Price(input=1.0, output=10.0)

    def model() -> None:
        current_run().usage("small", input_tokens=1_000, output_tokens=100)

    agent.action("check")(lambda step: model())
    agent.action("pay")(lambda step: model())
    agent.playbooks.save("invoices", ["check", "pay"])
    agent.playbooks.start("invoices", as_="case").resume()
    agent.runs.fork("workflow:case", "again", at="pay")
    first = agent.workflows.get("case")._doc.steps[0].uid
    with agent.run("again") as run:
        run.step("check", model, key=first)
        run.step("pay", model)
    agent.runs.fork("again", "and again", at="pay")
    with agent.run("and again") as run:
        run.step("check", model, key=first)
        run.step("pay", model)
    with agent.run("apart") as run:
        run.step("pay", model)
    (found,) = agent.costs.report("playbook")
    assert (found.key, found.calls, round(found.spent, 6)) == ("invoices", 4, 0.008)
    agent.runs.delete("again")
    (found,) = agent.costs.report("playbook")
    assert found.calls == 2, "where the fork it came from was deleted, nothing says whose it is"

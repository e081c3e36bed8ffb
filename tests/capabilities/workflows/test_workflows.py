"""Workflows: documented step by step, resumed where they were, edited while they run, never done twice unknowingly."""

import threading

import pytest

from tenuto import Conflict, Happened, InDoubt, InvalidInput, NotFound, NotHappened, Retry
from tenuto.capabilities.workflows import resume
from tenuto.capabilities.workflows import workflows as capability

STEPS = [
    {"step": 1, "action": "scrape_websites", "status": "completed"},
    {"step": 2, "action": "extract_features", "status": "completed"},
    {"step": 3, "action": "compare_pricing", "status": "in_progress"},
    {"step": 4, "action": "generate_report", "status": "pending"},
]


def statuses(wf):
    return [one.status for one in wf.refresh().steps]


def four(agent, log, **options):
    """Register the four actions, which note that they were called."""
    for one in STEPS:
        name = one["action"]

        def act(step, name=name):
            log.append(name)
            return f"{name} done"

        act.__qualname__ = f"act_{name}"
        agent.action(name, **options)(act)


# -- the document --------------------------------------------------------------------------------------------------


def test_a_workflow_is_written_down_and_found_again(agent, client):
    wf = agent.workflows.create(name="competitor-analysis", steps=STEPS, user="u-1")
    left = client("other").workflows.get("competitor-analysis").next_incomplete_step()
    assert (left.step, left.action, left.status, left.result, left.error) == (
        3, "compare_pricing", "in_progress", None, None,
    )  # fmt: skip
    assert (wf.status, wf.progress, wf.user) == ("in_progress", 0.5, "u-1")
    assert repr(wf) == "<workflow 'competitor-analysis': in_progress, 2 of 4 steps done>"
    with pytest.raises(NotFound):
        agent.workflows.get("another")


def test_creating_it_again_returns_the_stored_one(agent):
    agent.workflows.create("w", ["a", "b"]).complete(1, "x")
    again = agent.workflows.create("w", [{"action": "a"}, {"step": 2, "action": "b"}])
    assert [one.status for one in again.steps] == ["completed", "pending"]
    with pytest.raises(Conflict, match="other steps"):
        agent.workflows.create("w", ["a", "c"])
    with pytest.raises(Conflict, match="other steps"):
        agent.workflows.create("w", ["a", {"action": "b", "url": "x"}])
    with pytest.raises(Conflict, match="belongs to the user"):
        agent.workflows.create("w", ["a", "b"], user="u")


@pytest.mark.races
def test_many_create_it_at_once_and_there_is_one(agent):
    gate, found = threading.Barrier(8), []

    def create():
        gate.wait()
        found.append(agent.workflows.create("w", ["a", "b"]))

    threads = [threading.Thread(target=create) for _ in range(8)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    assert len({tuple(one.uid for one in wf._doc.steps) for wf in found}) == 1


def test_steps_are_carried_out_by_hand(agent, clock):
    wf = agent.workflows.create("w", ["a", "b", "c", "d"])
    assert wf.status == "pending"
    assert (wf.start(1).status, wf.start(1).attempts) == ("in_progress", 1)
    clock.advance(5)
    done = wf.complete(1, result={"n": 1})
    assert (done.status, done.result, (done.ended - done.started).seconds) == ("completed", {"n": 1}, 5)
    assert wf.fail(2, "no answer").error == "no answer"
    assert wf.status == "failed"
    assert wf.next_incomplete_step().step == 2
    assert (wf.start(2).attempts, wf.step(2).error) == (1, None)
    assert wf.block(2, "waits for legal").reason == "waits for legal"
    assert wf.status == "blocked"
    assert wf.unblock(2).status == "pending"
    assert wf.skip(2, "not needed").status == "skipped"
    assert wf.complete(3).status == "completed"
    assert wf.fail(4, ValueError("x")).error == "ValueError: x"
    wf.complete(4, 4)
    assert (wf.status, wf.progress, wf.next_incomplete_step()) == ("completed", 1.0, None)
    assert [one.result for one in wf.steps] == [{"n": 1}, None, None, 4]
    told = wf.history()
    assert [one.what for one in told] == [
        "created", "started", "completed", "failed", "started", "blocked", "unblocked", "skipped", "completed",
        "failed", "completed",
    ]  # fmt: skip
    assert (told[3].step, told[3].action, told[3].detail, told[3].writer) == (2, "b", "no answer", "tester")
    assert wf.history(after=10)[0].what == "completed"


def test_what_is_done_stays_done(agent):
    wf = agent.workflows.create("w", ["a", "b"])
    wf.complete(1, "x")
    wf.skip(2)
    for again in (wf.start, wf.complete, wf.skip, wf.unblock):
        for step in (1, 2):
            with pytest.raises(Conflict, match="is already"):
                again(step)
    with pytest.raises(Conflict):
        wf.fail(1, "no")
    with pytest.raises(NotFound, match="steps are 1, 2"):
        wf.start(3)
    assert wf.step(1).result == "x"


def test_a_step_is_in_one_hand(agent, client, monkeypatch):
    # given a step that another process began
    other = {"writer": "them", "host": "elsewhere/1", "pid": 1, "started": "1"}
    with monkeypatch.context() as patch:
        patch.setattr(capability, "owner", lambda writer: other)
        client("them").workflows.create("w", ["a"]).start(1)
    wf = agent.workflows.get("w")
    with pytest.raises(Conflict, match="started by them"):
        wf.start(1)
    assert wf.start(1, again=True).attempts == 2
    # one that died on this machine is replaced
    mine = capability.owner("x")
    with monkeypatch.context() as patch:
        patch.setattr(capability, "owner", lambda writer: {**mine, "pid": 2**22 + 1, "started": "1"})
        wf.start(1, again=True)
    assert wf.start(1).attempts == 4


@pytest.mark.races
def test_several_processes_change_one_workflow_and_nothing_is_lost(agent, client):
    agent.workflows.create("w", [{"step": n, "action": "a"} for n in range(24)])
    gate = threading.Barrier(4)

    def complete(part):
        wf = client(f"p{part}").workflows.get("w")
        gate.wait()
        for n in range(part, 24, 4):
            wf.complete(n, n)

    threads = [threading.Thread(target=complete, args=(part,)) for part in range(4)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    wf = agent.workflows.get("w")
    assert wf.status == "completed"
    assert [one.result for one in wf.steps] == list(range(24))
    assert len(wf.history()) == 25


def test_workflows_are_listed_by_status_and_user(agent):
    agent.workflows.create("a", ["x"], user="u")
    agent.workflows.create("b", ["x"], user="u").complete(1)
    agent.workflows.create("c", ["x"]).block(1, "no")
    assert [one.name for one in agent.workflows.list()] == ["a", "b", "c"]
    assert [one.name for one in agent.workflows.list(user="u")] == ["a", "b"]
    assert [one.name for one in agent.workflows.list("active", "u")] == ["a"]
    assert [one.name for one in agent.workflows.list("blocked")] == ["c"]
    assert [one.name for one in agent.workflows.list(limit=2)] == ["a", "b"]
    assert agent.workflows.delete("a")
    assert not agent.workflows.delete("a")
    assert agent.workflows.list(user="u", status="active") == []
    with pytest.raises(InvalidInput):
        agent.workflows.list("unknown")


@pytest.mark.parametrize(
    "steps",
    [[], "a", {"action": "a"}, [{"status": "pending"}], [{"action": "a", "status": "odd"}], [{"action": ""}], [7],
     [{"step": 1, "action": "a"}, {"step": 1, "action": "b"}], [{"step": 1.5, "action": "a"}], None],
)  # fmt: skip
def test_wrong_steps_are_refused_with_a_sentence(agent, steps):
    with pytest.raises(InvalidInput) as error:
        agent.workflows.create("w", steps)
    assert str(error.value).endswith(".")
    assert agent.workflows.list() == []


# -- editing -------------------------------------------------------------------------------------------------------


def test_steps_are_added_moved_and_taken_out_and_what_is_done_stays(agent):
    wf = agent.workflows.create("w", ["a", "b", "c"])
    wf.complete(1, "A")
    wf.start(2)
    # a step put in front, one taken out, the others renumbered
    wf.edit(
        [{"step": 1, "action": "z"}, {"step": 2, "action": "a"}, {"step": 3, "action": "b"}, {"step": 4, "action": "d"}]
    )
    assert [(one.step, one.action, one.status, one.result) for one in wf.steps] == [
        (1, "z", "pending", None), (2, "a", "completed", "A"), (3, "b", "in_progress", None), (4, "d", "pending", None),
    ]  # fmt: skip
    assert wf.step(3).attempts == 1
    assert wf.history()[-1].detail == {"added": [[1, "z"], [4, "d"]], "taken out": [[3, "c"]]}
    # what is done and left out stays
    wf.edit([{"step": 10, "action": "e"}])
    assert [(one.step, one.action, one.status) for one in wf.steps] == [(2, "a", "completed"), (10, "e", "pending")]
    with pytest.raises(Conflict, match="Give the new step another number"):
        wf.edit([{"step": 2, "action": "other"}])


def test_a_workflow_is_edited_while_it_runs(agent):
    log = []
    wf = agent.workflows.create("w", ["a", "b"])

    @agent.action("a")
    def a(step):
        log.append("a")
        agent.workflows.get("w").edit(
            [{"step": 1, "action": "a"}, {"step": 2, "action": "c"}, {"step": 3, "action": "b"}]
        )
        return "A"

    @agent.action("b")
    def b(step):
        log.append(("b", step.results))

    @agent.action("c")
    def c(step):
        log.append("c")
        agent.workflows.get("w").edit(["a", "b"])  # it takes itself out while it runs
        return "C"

    wf.resume()
    # what is done stays done, also where the step was taken out meanwhile and another one has its number
    assert log == ["a", "c", ("b", {"a": "A", "c": "C"})]
    assert wf.status == "completed"
    assert [(one.action, one.result) for one in wf.steps] == [("a", "A"), ("b", None), ("c", "C")]


def test_a_done_workflow_that_is_given_more_goes_on_in_another_run(agent):
    log = []
    four(agent, log)
    wf = agent.workflows.create("w", ["scrape_websites"]).resume()
    assert wf.run_id == "workflow:w"
    wf.edit(["scrape_websites", "generate_report"])
    assert wf.resume().status == "completed"
    assert wf.run_id == "workflow:w#2"
    assert log == ["scrape_websites", "generate_report"]


# -- resuming ------------------------------------------------------------------------------------------------------


def test_resume_carries_out_what_is_left_and_nothing_else(agent):
    log = []
    four(agent, log)
    wf = agent.workflows.create("w", [*STEPS[:2], {"step": 3, "action": "compare_pricing"}, STEPS[3]])
    assert wf.resume() is wf
    assert log == ["compare_pricing", "generate_report"]
    assert wf.step(3).result == "compare_pricing done"
    assert wf.status == "completed"
    run = agent.runs.get("workflow:w")
    assert (run.status, [one.name for one in run.steps]) == ("completed", ["compare_pricing", "generate_report"])
    wf.resume()
    assert len(log) == 2


def test_a_step_in_progress_is_in_doubt_and_an_idempotent_one_is_run_again(agent, caplog):
    log = []
    four(agent, log)
    wf = agent.workflows.create("w", STEPS)
    wf.resume()
    assert log == ["compare_pricing", "generate_report"]
    assert "outcome is unknown" in caplog.text
    step = agent.runs.get("workflow:w").steps[0]
    assert (step.name, step.attempts, step.repeated_in_doubt) == ("compare_pricing", 2, 1)


@pytest.mark.parametrize("answer", [Happened("paid before"), NotHappened()])
def test_a_step_in_progress_that_may_happen_once_is_verified(agent, answer):
    log, asked = [], []

    @agent.action("compare_pricing", effect="once", verify=lambda intent: asked.append(intent.step) or answer)
    def compare(step):
        log.append(step.step)
        return "paid now"

    agent.action("generate_report")(lambda step: log.append(step.results["compare_pricing"]))
    agent.workflows.create("w", STEPS).resume()
    assert asked == ["compare_pricing"]
    assert log == (["paid before"] if isinstance(answer, Happened) else [3, "paid now"])


def test_a_step_in_progress_that_nobody_can_tell_of_waits_for_people(agent):
    log = []
    four(agent, log, effect="once")
    wf = agent.workflows.create("w", STEPS)
    for _ in range(2):
        with pytest.raises(InDoubt) as pause:
            wf.resume()
    assert (log, statuses(wf)) == ([], ["completed", "completed", "in_progress", "pending"])
    assert "in doubt" in wf.step(3).reason
    assert agent.runs.get("workflow:w").status == "in_doubt"
    agent.inbox.answer(pause.value.question, Happened("found in the log"))
    assert wf.resume().step(3).result == "found in the log"
    assert log == ["generate_report"]


def test_a_step_that_failed_is_tried_again_by_the_same_call(agent):
    calls = []

    @agent.action("a", retry=Retry(attempts=2, first=0.01))
    def a(step):
        calls.append(step.attempts)
        if len(calls) < 3:
            raise OSError("away")
        return "came"

    wf = agent.workflows.create("w", ["a"])
    with pytest.raises(OSError):
        wf.resume()
    assert (wf.status, wf.step(1).error) == ("failed", "OSError: away")
    assert len(calls) == 2
    wf.resume()
    assert (wf.status, wf.step(1).result, wf.step(1).error) == ("completed", "came", None)
    assert [one.what for one in wf.history()] == ["created", "started", "failed", "started", "completed"]


def test_resume_stops_before_a_blocked_step_and_goes_on_when_it_is_free(agent):
    log = []
    four(agent, log)
    wf = agent.workflows.create("w", ["scrape_websites", "extract_features", "generate_report"])
    wf.block(2, "no access")
    assert wf.resume().status == "blocked"
    assert agent.runs.get("workflow:w").status == "waiting"
    wf.resume()
    assert log == ["scrape_websites"]
    wf.unblock(2)
    assert wf.resume().status == "completed"
    assert log == ["scrape_websites", "extract_features", "generate_report"]


def test_a_step_without_an_action_is_ended_by_hand(agent):
    wf = agent.workflows.create("w", ["ask_ann", "generate_report"])
    with pytest.raises(InvalidInput, match=r"@agent.action\('ask_ann'\)"):
        wf.resume()
    log = []
    four(agent, log)
    wf.complete(1, "ann said yes")
    wf.resume()
    assert log == ["generate_report"]


def test_a_step_that_is_ended_by_hand_while_it_runs_keeps_that(agent):
    @agent.action("a")
    def a(step):
        agent.workflows.get("w").complete(1, "by hand")
        return "by the action"

    wf = agent.workflows.create("w", ["a"]).resume()
    assert wf.step(1).result == "by hand"


@pytest.mark.parametrize("moment", ["before the intent", "before the result", "before the document"])
def test_a_crash_between_any_two_commits_of_a_step_is_made_good(agent, client, monkeypatch, moment):
    log, asked = [], []

    class Died(BaseException):
        pass

    armed = [True]

    def act(step):
        log.append(step.step)
        if moment == "before the result" and armed[0]:
            raise Died
        return "done"

    def verify(intent):
        asked.append(intent.attempt)
        return NotHappened()

    agent.action("a", effect="once", verify=verify)(act)
    wf = agent.workflows.create("w", ["a", "a"])
    with monkeypatch.context() as patch:
        if moment == "before the intent":
            patch.setattr(resume, "run_step", lambda run, step: _die(Died))
        if moment == "before the document":
            patch.setattr(resume, "_ended", lambda workflow, left, result: _die(Died))
        with pytest.raises(Died):
            wf.resume()
    armed[0] = False
    # the next one does what is left: it asks only where it cannot know, and does nothing twice
    assert wf.resume().status == "completed"
    if moment == "before the result":
        assert (log, asked) == ([1, 1, 2], [1])
    else:
        assert (log, asked) == ([1, 2], [])


def _die(error):
    raise error
    yield  # a generator, as what it stands for


def test_actions_are_registered_once_each(agent):
    @agent.action
    def summarize(step):
        return step["text"].upper()

    with pytest.raises(InvalidInput, match="under another name"):
        agent.action("summarize")(lambda step: None)
    with pytest.raises(InvalidInput):
        agent.action("b", effect="twice")(lambda step: None)

    async def wrong(step):
        return None

    with pytest.raises(TypeError, match="AsyncTenuto"):
        agent.action("c")(wrong)
    wf = agent.workflows.create("w", [{"action": "summarize", "text": "abc"}]).resume()
    assert wf.step(1).result == "ABC"
    assert wf.step(1).get("nothing", 7) == 7


# -- the whole picture ---------------------------------------------------------------------------------------------


def test_the_full_context_of_a_user_is_one_call(agent, client):
    agent.thread("t-1", user="u-1").append({"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"})
    agent.thread("t-1").decide("use LGA", why="asked")
    agent.user("u-1").set("seat", "aisle")
    agent.workflows.create("book", [{"action": "search", "status": "completed", "result": ["TP1"]}, "pay"], user="u-1")
    agent.workflows.create("old", ["x"], user="u-1").complete(1)
    agent.workflows.create("other's", ["x"], user="u-2")
    context = client("other").full_context("u-1", "t-1")
    assert [one["content"] for one in context["thread"]["messages"]] == ["hello", "hi"]
    assert context["thread"]["decisions"] == [{"text": "use LGA", "why": "asked"}]
    assert context["user"] == {"seat": "aisle"}
    (book,) = context["workflows"]
    assert (book["name"], book["next_step"], book["progress"]) == ("book", 2, 0.5)
    assert book["steps"][0]["result"] == ["TP1"]
    assert [m["content"] for m in agent.full_context("u-1", "t-1", last=1)["thread"]["messages"]] == ["hi"]
    assert agent.full_context("nobody", "nothing") == {
        "thread": {"id": "nothing", "messages": [], "decisions": []},
        "user": {},
        "workflows": [],
    }

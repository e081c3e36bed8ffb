"""Runs killed with SIGKILL at every boundary, by the fixture that users have for theirs; and bugs that it must catch."""

import secrets
import subprocess
import sys
import time

import killed_workflows as workflows
import pytest
from support.long import LONG, size

import tenuto
from tenuto import Tenuto
from tenuto.capabilities.runs import open_run, options, replay, step
from tenuto.testing.crash import killed_everywhere

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a machine under load takes its time


BY = {"indirect": ["url"], "ids": lambda value: getattr(value, "__name__", value)}


STORES = ("sqlite", "postgres", "valkey", "http")


def played(found, **short):
    """Return the workflows to run on each store: those named, in the long form all of them."""
    return [
        (store, workflow)
        for store in STORES
        for workflow in found
        if size(workflow.__name__ in short.get(store, ()), long=True)
    ]


SHORT = {
    "sqlite": ("everything_noted", "an_error_that_leaves_the_run", "mapped_at_once", "asynchronous"),
    "postgres": ("every_kind_of_step",),
    "http": ("asynchronous",),
}
SHORT_WAITING = {"sqlite": ("asynchronous_waits",), "postgres": ("asynchronous_waits",)}
SHORT_STOPPED = {"sqlite": ("mapped",), "postgres": ("nested",), "valkey": ("nested",)}


def counted(report):
    """Return a report's figures: `doubled` are effects that happened again without a declaration or a record."""
    return {
        "kills": len(report.kills),
        "effects": report.effects,
        "doubled": len(report.twice),
        "lost": len(report.never),
        "wrong": len(report.differences),
        "paused": len(report.paused),
    }


def shown(report, name):
    print(f"{name}: {len(report.kills)} kills, {report.effects} effects counted, {len(report.repeated)} kinds repeated "
          f"by their key or harmlessly, {len(report.paused)} left a question")  # fmt: skip
    return report


@pytest.mark.parametrize(("url", "workflow"), played(workflows.WORKFLOWS, **SHORT), **BY)
@pytest.mark.scorecard(3)
def test_a_workflow_killed_at_any_boundary_ends_as_if_nothing_had_been(crash, url, workflow, figures):
    # given a workflow, when it is killed at each of its boundaries and called again
    report = shown(crash(workflow, url=url), workflow.__name__)
    figures(**counted(report))
    # then no effect happens twice or never, no finished step runs again, and the result is the same
    assert report.ok, report
    assert len(report.kills) >= 10
    assert not report.paused


@pytest.mark.parametrize(("url", "workflow"), played(workflows.WAITING, **SHORT_WAITING), **BY)
@pytest.mark.scorecard(3)
def test_a_workflow_that_waits_is_killed_at_any_boundary_and_woken(crash, url, workflow, figures):
    report = shown(crash(workflow, url=url, meanwhile=workflows.people), workflow.__name__)
    figures(**counted(report))
    assert report.ok, report
    assert report.plain.outcome.kind == "returned"


@pytest.mark.parametrize("url", size(("sqlite", "valkey"), STORES), indirect=True)
@pytest.mark.scorecard(3)
def test_a_step_that_may_happen_once_is_paused_when_nobody_can_say(crash, url, figures):
    # given steps that may happen once, one without verify and one whose verify does not know
    report = shown(crash(workflows.once_without_verify, url=url), "once")
    figures(**counted(report))
    # then being killed between intent and result leaves a question, and nothing happens twice
    assert report.ok, report
    in_between = ["after the intent", "after the effect", "before the result"]
    assert [kill.at.split(" of ")[0].split(" '")[0].removeprefix("killed ") for kill in report.paused] == in_between * 2
    # and when people answer, as the world shows, it goes on to the same end
    if url is not None and not LONG:
        return
    answered = shown(crash(workflows.once_without_verify, url=url, meanwhile=workflows.people), "once, answered")
    assert answered.ok, answered
    assert not answered.paused


# Not through a server: its clock is not the trial's, so a lease would have to pass in real time.
@pytest.mark.parametrize(
    ("url", "workflow"),
    [one for one in played([workflows.nested, workflows.mapped], **SHORT_STOPPED) if one[0] != "http"],
    **BY,
)
@pytest.mark.scorecard(3)
def test_a_workflow_stopped_past_its_lease_at_any_boundary_can_write_nothing_more(crash, url, workflow, figures):
    # given a process that stands still, for longer than its lease lives, at each boundary; when another has
    # taken the run and ended it, and the first goes on
    report = shown(crash(workflow, url=url, stopped=True), "stopped")
    # then it writes nothing, and what it still does has the key that its receiver knows
    told = counted(report)
    if workflow is workflows.mapped:
        del told["doubled"]  # its items without a key: what a process did before it was stopped cannot be undone
    figures(**told)
    assert not report.differences, report
    assert workflow is workflows.mapped or report.ok, report


# -- the fixture itself ----------------------------------------------------------------------------------------------


def careless(crash):
    with Tenuto("a", crash.url) as agent, agent.run("r") as run:
        run.step("post", lambda: crash.effect("posted"))
        return run.step("end", lambda: "end")


def test_the_report_says_which_effect_happened_twice_and_what_to_do(crash):
    report = crash(careless)
    assert not report.ok
    assert {(one.effect, one.times, one.recorded) for one in report.twice} == {("posted", 2, True)}
    assert "killed after the effect 'posted'" in str(report)
    assert 'effect="once"' in str(report)
    assert not report.never
    assert not report.differences


def test_an_effect_outside_of_a_step_is_found(crash):
    def outside():
        with Tenuto("a", crash.url) as agent, agent.run("r") as run:
            crash.effect("posted")
            return run.step("end", lambda: "end")

    report = crash(outside)
    assert {one.recorded for one in report.twice} == {False}
    assert "outside a step" in str(report)


def test_a_result_that_depends_on_when_it_was_killed_is_found(crash):
    def unsteady():
        with Tenuto("a", crash.url) as agent, agent.run("r") as run:
            run.step("one", lambda: 1)
            return run.resumed

    report = crash(unsteady)
    assert "returned True instead of returned False" in report.differences[0]


def test_an_effect_that_never_happens_is_found(crash):
    def forgetful():
        with Tenuto("a", crash.url) as agent, agent.run("r") as run:
            run.step("one", lambda: 1)
            if not run.resumed:
                crash.effect("only at first")

    report = crash(forgetful)
    assert report.never
    assert "'only at first' did not happen when it was killed" in report.never[0]


def test_effects_may_be_read_from_the_world(crash):
    def writes():
        with Tenuto("a", crash.url) as agent, agent.run("r") as run:

            def write():
                with (crash.folder / "sent").open("a") as file:
                    file.write("hello\n")

            run.step("send", write)

    report = crash(writes, world=lambda: (crash.folder / "sent").read_text().split())
    assert {one.effect for one in report.twice} == {"hello"}


def test_a_client_that_was_made_before_is_led_to_a_fresh_store(crash, tmp_path):
    agent = Tenuto("app", tmp_path / "never opened.db")

    @agent.durable
    def deploy(run, version):
        return run.step("announce", lambda: workflows.told(crash, version))

    report = crash(lambda: deploy.run("d", "1.2.3"), agent=agent)
    assert report.ok, report
    assert report.plain.effects == {"1.2.3": 1}
    assert not (tmp_path / "never opened.db").exists()


def test_the_function_behind_the_fixture_cleans_up_after_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report = killed_everywhere(careless)
    assert len(report.kills) == 13
    assert list(tmp_path.iterdir()) == []


def test_a_workflow_that_hangs_is_killed_and_said_so(crash):
    report = crash(lambda: time.sleep(60), timeout=0.2)
    assert not report.ok
    assert "hung" in str(report)


def test_a_workflow_that_fails_by_itself_shows_why(crash):
    def broken():
        raise ValueError("a typo of mine")

    report = crash(broken)
    assert not report.ok
    assert "there is no boundary" in str(report)
    assert "ValueError: a typo of mine" in str(report).splitlines()[-1]


def test_a_volatile_store_is_refused(crash):
    with pytest.raises(tenuto.InvalidInput):
        crash(careless, url="volatile:")


def test_outside_of_a_workflow_there_is_no_store_and_there_are_no_effects(crash):
    with pytest.raises(tenuto.InvalidInput):
        crash.effect("posted")
    with pytest.raises(tenuto.InvalidInput):
        _ = crash.url


# -- planted bugs ----------------------------------------------------------------------------------------------------


def three_steps(crash):
    with Tenuto("a", crash.url) as agent, agent.run("r") as run:
        return [run.step(name, lambda name=name: workflows.told(crash, name), key=name) for name in ("a", "b", "c")]


def three_in_order(crash):
    with Tenuto("a", crash.url) as agent, agent.run("r") as run:
        return [run.step("step", lambda n: workflows.told(crash, f"{n}"), n) for n in range(3)]


def no_intent(crash):
    def intend(self):
        self.made = 1
        yield from ()

    step._Attempts._intend = intend
    return three_steps(crash)


def late_result(crash):
    held = options.Lane()
    begin, complete = step.Step.__post_init__, open_run.OpenRun._complete

    def in_one_lane(self):
        begin(self)
        self.lane = held

    def completed(self, result):
        if held.writes:
            yield self.write([], held.taken())
        return (yield from complete(self, result))

    step.Step.__post_init__ = in_one_lane
    open_run.OpenRun._complete = completed
    return three_steps(crash)


def unfenced(crash):
    fenced = open_run.commit
    open_run.commit = lambda context, checks, writes, _, *rest: fenced(context, checks, writes, None, *rest)
    return three_steps(crash)


def another_key(crash):
    begin = step._Attempts.__init__

    def begun(self, *given):
        begin(self, *given)
        self._key = secrets.token_hex(8)

    step._Attempts.__init__ = begun
    return three_steps(crash)


def a_neighbours_value(crash):
    def take(self, identity):
        return self._alone.pop() if self._alone else None

    replay.Replay.take = take
    replay.Replay.take_next = lambda *_: None
    return three_in_order(crash)


def never_in_doubt(crash):
    def again(self, why, error):
        self.made += 1
        yield from ()

    step._Attempts._again = again
    return three_steps(crash)


PLANTED = [
    (no_intent, False, "no record shows that it was in doubt"),
    (late_result, False, "ran again although its caller had continued with its result"),
    (unfenced, True, "was written by a process that had lost the run to another"),
    (another_key, False, "had another idempotency key at its next attempt"),
    (a_neighbours_value, False, "instead of returned"),
    (never_in_doubt, False, "no record shows that it was in doubt"),
]


@pytest.mark.parametrize(("planted", "stopped", "said"), PLANTED, ids=[planted.__name__ for planted, _, _ in PLANTED])
@pytest.mark.scorecard(3, planted=True)
def test_a_planted_bug_is_caught(crash, planted, stopped, said):
    report = crash(planted, stopped=stopped)
    assert not report.ok
    assert said in str(report), report


@pytest.mark.parametrize("workflow", [three_steps, three_in_order])
@pytest.mark.parametrize("stopped", [False, True])
def test_without_the_planted_bug_the_same_workflow_is_fine(crash, workflow, stopped):
    report = crash(workflow, stopped=stopped)
    assert report.ok, report


WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None  # as where it is not installed
from tenuto import Tenuto
from tenuto.testing.crash import killed_everywhere

def pays(crash):
    with Tenuto("shop", crash.url) as agent, agent.run("order-1") as run:
        run.step("pay", crash.effect, "paid")

print(killed_everywhere(pays).twice[0].effect)
"""


def test_a_program_without_pytest_can_kill_its_workflow_everywhere() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYTEST], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("paid\n", 0), done.stderr

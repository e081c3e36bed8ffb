"""Once, workflows and workers across real processes, on every store that several processes can share."""

import contextlib
import json
import signal
import statistics
import time

import pytest
from crash_harness import Child, run, wait_until
from support.long import size

from tenuto import Happened, Tenuto

CALLS, PROCESSES = size((40, 4), (125, 8))
STORES, HOW = ("sqlite", "postgres", "valkey", "cluster", "http"), ("idempotent", "once", "verified")
SHORT = [*(("sqlite", how) for how in HOW), *((store, "once") for store in STORES[1:])]


@pytest.mark.slow
@pytest.mark.timeout(size(180, 600))
def test_many_callers_in_several_processes_share_one_execution(shared_url, tmp_path):
    # given several processes with many threads each: a thousand callers in the long form
    outside = tmp_path / "effects"
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(Child("worker_once.py", shared_url, outside, CALLS)) for _ in range(PROCESSES)]
        for caller in callers:
            assert caller.says() == "ready"
        # when all of them ask for the same at once
        began = time.monotonic()
        for caller in callers:
            caller.tell()
        told = [json.loads(caller.says()) for caller in callers]
        took = time.monotonic() - began
        complaints = [caller.ends()[1] for caller in callers]
    # then it is done once, and everybody has the same result
    results = {result for _, found in told for result in found}
    print(f"{sum(count for count, _ in told):,} calls of once: {outside.stat().st_size} executions, {took:.1f} s")
    assert complaints == [""] * PROCESSES
    assert sum(count for count, _ in told) == CALLS * PROCESSES
    assert outside.read_bytes() == b"$"
    assert len(results) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shared_url", "how"), size(SHORT, [(store, how) for store in STORES for how in HOW]), indirect=["shared_url"]
)
def test_a_workflow_killed_in_its_third_step_goes_on_in_another_process(shared_url, tmp_path, how):
    # given a process that dies in step 3, after the effect and before anybody knows
    outside = tmp_path / "effects"
    died = run("worker_workflow.py", shared_url, outside, how, "die")
    assert died.returncode == -signal.SIGKILL, died.stderr
    with Tenuto("reader", shared_url) as agent:
        left = agent.workflows.get("competitor-analysis").next_incomplete_step()
        assert (left.step, left.action, left.status) == (3, "compare_pricing", "in_progress")
        # when another process resumes it
        second = run("worker_workflow.py", shared_url, outside, how, "live")
        assert second.returncode == 0, second.stderr
        told, steps = json.loads(second.stdout)
        effects = [line.split() for line in outside.read_text().splitlines()]
        keys = {key for name, key in effects if name == "compare_pricing"}
        count = {name: sum(one == name for one, _ in effects) for name, _ in effects}
        # then steps 1 and 2 are untouched, whatever was declared
        assert steps[:2] == [["completed", f"{name} by die", 1] for name in ("scrape_websites", "extract_features")]
        assert count["scrape_websites"] == count["extract_features"] == 1
        # and 3 is handled as declared, and 4 runs once
        if how == "idempotent":
            assert (told, steps[2]) == ("done", ["completed", "compare_pricing by live", 2])
            assert count["compare_pricing"] == 2
            assert len(keys) == 1, "the repeat has the same idempotency key"
        elif how == "verified":
            assert (told, steps[2][:2]) == ("done", ["completed", "found outside"])
            assert count["compare_pricing"] == 1
        else:
            assert (told, steps[2][0], steps[3][0]) == ("in doubt", "in_progress", "pending")
            assert "generate_report" not in count
            (question,) = agent.inbox.list()
            agent.inbox.answer(question.id, Happened("seen by ann"))
            told, steps = json.loads(run("worker_workflow.py", shared_url, outside, how, "live").stdout)
            assert (told, steps[2][:2]) == ("done", ["completed", "seen by ann"])
            effects = [line.split()[0] for line in outside.read_text().splitlines()]
            count = {name: effects.count(name) for name in effects}
            assert count["compare_pricing"] == 1
        assert steps[3] == ["completed", "generate_report by live", 1]
        assert count["generate_report"] == 1
        assert agent.runs.get("workflow:competitor-analysis").status == "completed"


@pytest.mark.slow
def test_a_worker_stops_gracefully_on_sigterm(shared_url):
    with Tenuto("enqueuer", shared_url) as agent, Child("worker_queue.py", shared_url, 0.3) as worker:
        assert worker.says() == "ready"
        ids = [one.id for one in agent.tasks.enqueue_many("q", range(6))]
        begun = {worker.says().split()[0], worker.says().split()[0]}
        worker.signal(signal.SIGTERM)
        rest, complaints = worker.ends()
        # then what it had in hand is whole, and the rest waits for others, in nobody's hands
        assert (rest.strip(), complaints) == ("stopped after 2", "")
        assert {one for one in ids if agent.tasks.is_completed(one)} == begun
        assert agent.tasks.counts("q") == {"ready": 4, "later": 0, "running": 0, "dead": 0}


@pytest.mark.slow
def test_an_idle_worker_of_another_process_begins_soon(shared_url):
    # given a worker that has been idle for a while
    with Tenuto("enqueuer", shared_url) as agent, Child("worker_queue.py", shared_url, 0.0) as worker:
        assert worker.says() == "ready"
        time.sleep(2.5)  # until it listens, and looks rarely
        waits = []
        for n in range(size(10, 50)):
            began = time.time()
            agent.tasks.enqueue("q", n)
            waits.append(float(worker.says().split()[1]) - began)
            time.sleep(0.05)
        print(
            f"from enqueue to handler: median {1e3 * statistics.median(waits):.1f} ms, worst {1e3 * max(waits):.1f} ms"
        )
        assert statistics.median(waits) < 0.2
        wait_until(lambda: agent.tasks.counts("q")["running"] == 0)
        worker.signal(signal.SIGTERM)
        worker.ends()


def test_a_task_of_a_killed_worker_is_taken_over_at_once(path):
    with Tenuto("overseer", path) as agent:
        task = agent.tasks.enqueue("q", 1)
        with Child("worker_queue.py", path, 60) as worker:
            assert worker.says() == "ready"
            assert worker.says().split()[0] == task.id
            assert agent.tasks.claim("q") is None
            worker.signal(signal.SIGKILL)
            worker.process.wait()
        began = time.monotonic()
        taken = wait_until(lambda: agent.tasks.claim("q"))
        print(f"taken over after {time.monotonic() - began:.3f} s")
        assert (taken.id, taken.redelivered, taken.attempt) == (task.id, True, 2)

"""Tasks, workflows and questions as a type checker sees them; never run."""

import json
from dataclasses import dataclass
from typing import Any, Literal, assert_type

from tenuto import AsyncTenuto, Checkpoint, Question, Retry, Run, Task, TaskInfo, Tenuto
from tenuto.aio import AsyncTask, AsyncWorkflow
from tenuto.capabilities.context import Sign
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.tasks import ScheduleInfo
from tenuto.capabilities.workflows import Workflow, WorkflowEvent, WorkflowInfo, WorkflowStep


@dataclass
class Plan:
    city: str


def blocking(agent: Tenuto) -> None:
    info = agent.tasks.enqueue("reviews", {"file": 31}, key="pr-9/31", delay="1m", priority=2, user="u", retry=Retry())
    assert_type(info, TaskInfo)
    assert_type(info.status, Literal["waiting", "running", "completed", "dead", "cancelled"])
    assert_type(agent.tasks.enqueue_many("reviews", [1, 2]), list[TaskInfo])
    task = agent.tasks.claim("reviews", lease=30, wait="5s")
    assert_type(task, Task | None)
    if task is not None:
        agent.state.set("s", "k", 1, fence=task)
        task.extend("1m")
        task.complete({"ok": True})
        task.fail("why", retry_in=60)
        task.release()
        assert_type(task.token, int)
        assert_type(task.lost, bool)
    assert_type(agent.tasks.work("reviews", lambda one: one.payload, concurrency=2, until_empty=True), int)
    assert_type(agent.tasks.pending("reviews"), list[TaskInfo])
    assert_type(agent.tasks.running("reviews"), list[TaskInfo])
    assert_type(agent.tasks.dead("reviews"), list[TaskInfo])
    assert_type(agent.tasks.counts("reviews"), dict[str, int])
    assert_type(agent.tasks.get("id"), TaskInfo)
    assert_type(agent.guard("t-1", user="u").scan(), list[Sign])
    assert_type(agent.tasks.is_completed("id"), bool)
    assert_type(agent.tasks.mark_completed("id", 3), bool)
    agent.tasks.result("id", wait="1m")
    assert_type(agent.tasks.cancel("id"), bool)
    agent.tasks.retry("id")
    agent.tasks.every("report", "reviews", cron="0 9 * * *")
    assert_type(agent.tasks.recurring("reviews"), list[ScheduleInfo])
    assert_type(agent.tasks.stop_recurring("report", "reviews"), bool)
    assert_type(agent.tasks.fire("reviews"), int)

    wf = agent.workflows.create("analysis", ["scrape", {"step": 2, "action": "compare"}], user="u")
    assert_type(wf, Workflow)
    assert_type(agent.workflows.get("analysis"), Workflow)
    assert_type(agent.workflows.list(status="active", user="u"), list[Workflow])
    assert_type(wf.status, Literal["pending", "in_progress", "completed", "failed", "blocked"])
    assert_type(wf.next_incomplete_step(), WorkflowStep | None)
    assert_type(wf.start(1), WorkflowStep)
    assert_type(wf.complete(1, result=3), WorkflowStep)
    assert_type(wf.fail(2, error="why"), WorkflowStep)
    assert_type(wf.block(2, reason="why"), WorkflowStep)
    assert_type(wf.unblock(2), WorkflowStep)
    assert_type(wf.skip(2), WorkflowStep)
    assert_type(wf.step(2), WorkflowStep)
    assert_type(wf.edit(["scrape"]), Workflow)
    assert_type(wf.refresh(), Workflow)
    assert_type(wf.resume(wait="1m"), Workflow)
    assert_type(wf.history(), list[WorkflowEvent])
    assert_type(wf.info(), WorkflowInfo)
    assert_type(wf.as_dict(), dict[str, Any])
    assert_type(agent.workflows.delete("analysis"), bool)
    assert_type(agent.full_context("u", "t"), dict[str, Any])

    assert_type(agent.inbox.list(to="finance"), list[Question])
    assert_type(agent.inbox.get("q"), Question)
    assert_type(agent.inbox.answer("q", "yes", by="ann"), Question)
    assert_type(agent.inbox.cancel("q"), Question)
    assert_type(agent.checkpoint.get("a"), Checkpoint | None)
    assert_type(agent.checkpoint.delete("a"), int)
    assert_type(agent.checkpoint.every(3).ticks(), int)
    assert_type(agent.store.backup("copy.db"), int)
    assert_type(agent.state.last("s"), int)
    assert_type(agent.open(), Tenuto)
    agent.close()
    assert_type(agent.once("k", len, "abc", wait="1m"), int)
    assert_type(agent.once("k", json.loads, "{}", schema=Plan), Plan)
    assert_type(agent.state.transaction("s").commit(), int)
    assert_type(agent.lease("l").acquire(), Lease)
    assert_type(agent.lease("l").renew(), bool)
    assert_type(agent.thread("t").take_back(), dict[str, Any] | None)
    assert_type(agent.runs.recover(), dict[str, str])

    @agent.action("compare", effect="idempotent")
    def compare(step: WorkflowStep) -> str:
        return step.action

    @agent.durable
    def deploy(run: Run, version: str) -> int:
        run.emit(version)
        run.heartbeat("half")
        run.usage("model", input_tokens=3, cost=0.1)
        run.remember("Ann likes tea", user="ann", kind="preference")
        return len(version)

    assert_type(compare(wf.step(1)), str)
    assert_type(deploy.using(user="u").run("d", "1.2"), int)


async def awaited(agent: AsyncTenuto) -> None:
    assert_type(await agent.tasks.enqueue("reviews", {"file": 31}), TaskInfo)
    task = await agent.tasks.claim("reviews")
    assert_type(task, AsyncTask | None)
    if task is not None:
        await task.complete()
    wf = await agent.workflows.create("analysis", ["scrape"])
    assert_type(wf, AsyncWorkflow)
    assert_type(await wf.complete(1), WorkflowStep)
    assert_type(await wf.resume(), AsyncWorkflow)
    assert_type(await agent.inbox.answer("q", "yes"), Question)

"""Tasks: durable queues, workers and recurring tasks."""

from tenuto.capabilities._core.schedules import Missed, ScheduleInfo
from tenuto.capabilities.tasks.claimed import Task, is_gone, owner
from tenuto.capabilities.tasks.records import OVER, TaskInfo, TaskStatus, dead_tasks, task_of
from tenuto.capabilities.tasks.tasks import Handler, Tasks

__all__ = [
    "OVER",
    "Handler",
    "Missed",
    "ScheduleInfo",
    "Task",
    "TaskInfo",
    "TaskStatus",
    "Tasks",
    "dead_tasks",
    "is_gone",
    "owner",
    "task_of",
]  # fmt: skip

"""Tasks: durable queues, workers and recurring tasks."""

from tenuto.capabilities._core.schedules import Missed, ScheduleInfo
from tenuto.capabilities.tasks.claimed import Task, is_gone, owner
from tenuto.capabilities.tasks.records import TaskInfo, TaskStatus
from tenuto.capabilities.tasks.tasks import Handler, Tasks

__all__ = [
    "Handler", "Missed", "ScheduleInfo", "Task", "TaskInfo", "TaskStatus", "Tasks", "is_gone",
    "owner",
]  # fmt: skip

"""Workflows: documented procedures, executed step by step."""

from tenuto.capabilities.workflows.actions import register_action
from tenuto.capabilities.workflows.document import WorkflowInfo, WorkflowStatus, WorkflowStep, WorkflowStepStatus
from tenuto.capabilities.workflows.queued import BUSY, queue_workflow, queued_for, resuming, workflow_of
from tenuto.capabilities.workflows.workflows import Action, Actions, Workflow, WorkflowEvent, Workflows

__all__ = [
    "BUSY", "Action", "Actions", "Workflow", "WorkflowEvent", "WorkflowInfo", "WorkflowStatus", "WorkflowStep",
    "WorkflowStepStatus", "Workflows", "queue_workflow", "queued_for", "register_action", "resuming", "workflow_of",
]  # fmt: skip

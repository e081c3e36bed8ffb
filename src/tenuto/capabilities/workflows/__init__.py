"""Workflows: documented procedures, executed step by step."""

from tenuto.capabilities.workflows.actions import register_action
from tenuto.capabilities.workflows.document import WorkflowInfo, WorkflowStatus, WorkflowStep, WorkflowStepStatus
from tenuto.capabilities.workflows.workflows import Action, Actions, Workflow, WorkflowEvent, Workflows

__all__ = [
    "Action", "Actions", "Workflow", "WorkflowEvent", "WorkflowInfo", "WorkflowStatus", "WorkflowStep",
    "WorkflowStepStatus", "Workflows", "register_action",
]  # fmt: skip

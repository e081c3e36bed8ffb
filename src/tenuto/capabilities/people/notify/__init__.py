"""Notification: where people hear of questions, an outbox, and the ways to deliver."""

from tenuto.capabilities.people.notify.channels import Channel
from tenuto.capabilities.people.notify.notify import Notify
from tenuto.capabilities.people.notify.outbox import Notice

__all__ = ["Channel", "Notice", "Notify"]

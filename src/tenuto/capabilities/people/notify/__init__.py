"""Notification: where people hear of questions, an outbox, and the ways to deliver."""

from tenuto.capabilities.people.notify.channels import CHANNELS, Channel
from tenuto.capabilities.people.notify.notify import Notify
from tenuto.capabilities.people.notify.outbox import Notice
from tenuto.capabilities.people.notify.outbox import forget as forget_notices

__all__ = ["CHANNELS", "Channel", "Notice", "Notify", "forget_notices"]

"""Threads: durable, ordered conversations."""

from tenuto.capabilities.threads.messages import Message, messages_of
from tenuto.capabilities.threads.repair import Repair, border, leading_instructions
from tenuto.capabilities.threads.thread import News, Seen, Thread
from tenuto.capabilities.threads.threads import ThreadInfo, Threads
from tenuto.capabilities.threads.timeline import Decision, Event, ToolCall
from tenuto.capabilities.threads.turns import Turn, Turns, turns_of
from tenuto.capabilities.threads.writer import INDEX, info_of

__all__ = [
    "INDEX", "Decision", "Event", "Message", "News", "Repair", "Seen", "Thread", "ThreadInfo", "Threads", "ToolCall",
    "Turn", "Turns", "border", "info_of", "leading_instructions", "messages_of", "turns_of",
]  # fmt: skip

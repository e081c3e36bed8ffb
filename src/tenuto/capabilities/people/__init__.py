"""People: questions to them, their answers, escalation, gates."""

from tenuto.capabilities.people.asking import AskOptions, new_question
from tenuto.capabilities.people.due import fire_due
from tenuto.capabilities.people.escalation import Rung
from tenuto.capabilities.people.inbox import Inbox
from tenuto.capabilities.people.milestones import Milestone, Milestones, MilestoneStatus
from tenuto.capabilities.people.notify import CHANNELS, Channel, Notice, Notify, forget_notices
from tenuto.capabilities.people.questions import (
    HAPPENED,
    NOT_HAPPENED,
    Answer,
    Happened,
    Level,
    NoAnswer,
    NotHappened,
    Question,
    QuestionEvent,
    QuestionStatus,
    Unknown,
    Vote,
    is_open_question,
    question_key,
    verdict_of,
)
from tenuto.capabilities.people.records import change
from tenuto.capabilities.people.routes import Route, Routes
from tenuto.capabilities.people.times import Calendar, When, WorkingTime
from tenuto.capabilities.people.tokens import SIGNING_KEY, Approval

__all__ = [
    "CHANNELS", "HAPPENED", "NOT_HAPPENED", "SIGNING_KEY", "Answer", "Approval", "AskOptions", "Calendar", "Channel", "Happened", "Inbox",
    "Level", "Milestone", "MilestoneStatus", "Milestones", "NoAnswer", "NotHappened", "Notice", "Notify", "Question",
    "QuestionEvent", "QuestionStatus", "Route", "Routes", "Rung", "Unknown", "Vote", "When", "WorkingTime",
    "change", "fire_due", "forget_notices", "is_open_question", "new_question", "question_key", "verdict_of",
]  # fmt: skip

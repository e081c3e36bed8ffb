"""Messages: what a notification says, for programs (a webhook), for Slack, and as text. Pure functions."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import date, datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities.people.questions import Question
from tenuto.errors import InvalidInput
from tenuto.kernel.durations import moment

_TITLES: Final = {
    "asked": "Question",
    "warned": "Reminder",
    "reminded": "Reminder",
    "escalated": "Escalated to you",
    "overdue": "Overdue",
    "answered": "Answered",
    "expired": "Expired without an answer",
    "cancelled": "Cancelled",
    "test": "Test",
}


class Message(NamedTuple):
    """One notification, ready to send."""

    id: str
    event: str
    question: Question
    details: Any
    buttons: list[tuple[str, str]]
    """The label and address of each button."""

    @property
    def title(self) -> str:
        """Return a short title."""
        return f"{_TITLES.get(self.event, self.event)}: {self.question.text[:150]}"

    @property
    def text(self) -> str:
        """Return the message as text."""
        question = self.question
        lines = [self.title, ""]
        if question.context is not None:
            lines.append(f"Context: {as_json(question.context).decode()}")
        if question.evidence:
            lines.append(f"Evidence: {as_json(question.evidence).decode()}")
        lines += [f"Policy: {question.policy}"] if question.policy else []
        lines += [f"Last time: {as_json(question.last).decode()}"] if question.last else []
        lines += [f"Remembered: {one}" for one in question.remembered]
        lines += [f"Choices: {as_json(question.choices).decode()}"] if question.choices else []
        lines += [f"Due: {question.deadline:%Y-%m-%d %H:%M} UTC"] if question.deadline else []
        if question.open and self.event != "test":
            lines += ["", f"Answer with: tenuto inbox answer {question.id} ANSWER --by YOU"]
            lines += [f"{label}: {address}" for label, address in self.buttons]
        return "\n".join(lines)


def webhook(message: Message, now: float) -> bytes:
    """Return the body of a webhook: `{"type": "question.asked", "timestamp", "data": {…}}`."""
    data = {**message.question.as_interrupt(), "details": message.details}
    return as_json({"type": f"question.{message.event}", "timestamp": moment(now).isoformat(), "data": data})


def slack(message: Message) -> bytes:
    """Return the body for a Slack-compatible incoming webhook: text, and blocks with buttons."""
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "mrkdwn", "text": _escaped(message.text)[:3_000]}},
    ]
    if message.question.open and message.buttons:
        buttons = [
            {"type": "button", "text": {"type": "plain_text", "text": label[:75]}, "url": address}
            for label, address in message.buttons[:25]
        ]
        blocks.append({"type": "actions", "elements": buttons})
    return as_json({"text": _escaped(message.title), "blocks": blocks})


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def signed(secret: str, message_id: str, now: float, body: bytes) -> dict[str, str]:
    """Return the headers of a signed webhook, as Standard Webhooks defines them."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError as error:
        raise InvalidInput('The secret of a webhook must be base64, with or without "whsec_". Correct it.') from error
    content = f"{message_id}.{int(now)}.".encode() + body
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return {"webhook-id": message_id, "webhook-timestamp": str(int(now)), "webhook-signature": f"v1,{signature}"}


def as_json(value: Any) -> bytes:
    """Return a value as JSON; what JSON does not know, as text."""

    def other(one: Any) -> Any:
        return one.isoformat() if isinstance(one, datetime | date) else str(one)

    return json.dumps(value, default=other, ensure_ascii=False).encode()

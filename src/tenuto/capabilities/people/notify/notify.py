"""Notify: channels of people and groups, and the delivery of what the outbox holds."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from tenuto.capabilities._core.base import Context, Timed, must_limit
from tenuto.capabilities.people.groups import members
from tenuto.capabilities.people.inbox import Inbox
from tenuto.capabilities.people.notify import outbox
from tenuto.capabilities.people.notify.channels import (
    Channel,
    channel_key,
    channels_of,
    encoded,
    new_channel,
    without_secrets,
)
from tenuto.capabilities.people.notify.messages import Message
from tenuto.capabilities.people.notify.outbox import Notice
from tenuto.capabilities.people.questions import Question
from tenuto.errors import Closed, NotFound, StorageUnavailable, TenutoError
from tenuto.kernel.contract import Delete, Put, Write
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Call, Store, Work, on_caller, on_store

_LINK_LIFE: Final = "7d"


class Notify(Timed):
    """Where people are notified of questions and escalations, and what waits for delivery."""

    def __init__(self, context: Context, inbox: Inbox) -> None:
        self._context = context
        self._kernel = context.kernel
        self._inbox = inbox
        inbox._notices = self._notices

    def _notices(self, question: Question, event: str, names: Sequence[str], details: Any) -> list[Write]:
        teams = {name: members(self._kernel, name) for name in names}
        return outbox.notices(self._context, question, event, names, details, teams)

    @on_store
    def to(
        self,
        name: str,
        url: str,
        *,
        secret: str | None = None,
        kind: str | None = None,
        rate: str | None = None,
        links: str | None = None,
    ) -> Work[Channel]:
        """Notify a person or group at this URL from now on, durably: a webhook, Slack, e-mail or an apprise URL.

        Secrets are not stored: `secret="env:NAME"` names an environment variable of the delivering process, and the URL
        may contain `${NAME}`. `kind` is "webhook", "slack", "email" or "apprise" where the URL does not show it. `rate`
        is the most notifications in a time, "10/m". `links` is the address of the server whose pages take answers.
        """
        channel = new_channel(name, url, kind=kind, secret=secret, rate=rate, links=links)
        yield from commit_once(self._kernel, [], [Put(channel_key(channel), encoded(channel))])
        return channel

    @on_store
    def remove(self, name: str, url: str | None = None) -> Work[int]:
        """Remove the channel of a person or group, or all of them, durably; return how many."""
        gone = [one for one in channels_of(self._kernel, name) if url in (None, one.url)]
        if gone:
            yield from commit_once(self._kernel, [], [Delete(channel_key(one)) for one in gone])
        return len(gone)

    def channels(self, name: str | None = None) -> list[Channel]:
        """Return the channels of a person or group, or all."""
        return channels_of(self._kernel, name)

    def outbox(self) -> list[Notice]:
        """Return the notifications that wait for delivery, the earliest first, with their last errors."""
        return outbox.waiting(self._kernel)

    def dead(self) -> list[Notice]:
        """Return the notifications that were given up after their last attempt."""
        return outbox.dead(self._kernel)

    @on_store
    def retry(self, notice_id: str) -> Work[None]:
        """Put a dead notification back into the outbox durably, with all its attempts."""
        yield from outbox.revive(self._context, notice_id)

    @on_caller
    def test(self, name: str) -> Work[list[str]]:
        """Send a test message to each channel of a person or group now; return the problems, none if all arrived."""
        found = yield Store(lambda: channels_of(self._kernel, name))
        if not found:
            raise NotFound(f"{name!r} has no channel. Add one with agent.notify.to({name!r}, URL).")
        wrong: list[str] = []
        for channel in found:
            problem = yield from _sent(channel, _test_message(channel))
            wrong += [f"{channel.kind} {channel.id}: {problem}"] if problem is not None else []
        return wrong

    @on_caller
    def deliver(self, *, limit: int = 100) -> Work[int]:
        """Deliver notifications that are due, up to `limit`, each by one replica; return how many arrived.

        Workers do this too. A failed one is retried after 10 s, then after twice as long each time up to an hour, and is
        dead after 12 attempts.
        """
        must_limit(limit)
        return (yield from self._delivering(limit, math.inf))

    def _delivering(self, limit: int, patience: float) -> Work[int]:
        """Deliver what is due, for about `patience` seconds; a channel that fails gets no other message in this call.

        One that cannot be read keeps no other one waiting: the first error is raised after the others.
        """
        count, down = 0, set[str]()
        broken: TenutoError | None = None
        until = time.monotonic() + patience
        found = yield Store(lambda: outbox.due(self._kernel, self._kernel.now(), limit))
        for record in found:
            if time.monotonic() >= until:
                break
            try:
                notice = outbox.notice_of(record)
                taken = yield Store(self._claimed(notice, record.version, wait=notice.channel in down))
            except (Closed, StorageUnavailable):
                raise
            except TenutoError as error:
                broken = broken or error
                continue
            if taken is None:
                continue
            mine, held, channel, message = taken
            problem = "the channel was removed" if channel is None else (yield from _sent(channel, message))
            if problem is None:
                yield Store(outbox.sent(self._context, mine, held))
                count += 1
            else:
                down.add(notice.channel)
                yield Store(outbox.failed(self._context, mine, held, problem))
        if broken is not None:
            raise broken
        return count

    def _claimed(
        self, notice: Notice, version: int, *, wait: bool
    ) -> Work[tuple[Notice, int, Channel | None, Message] | None]:
        question, _ = self._inbox._look(notice.question)
        if question is None:  # it was forgotten
            yield from outbox.dropped(self._context, notice, version)
            return None
        channels = channels_of(self._kernel, notice.name)
        channel = next((one for one in channels if one.id == notice.channel), None)
        claimed = yield from outbox.claim(self._context, notice, version, channel, wait=wait)
        if claimed is None:
            return None
        buttons: list[tuple[str, str]] = []
        person = not members(self._kernel, notice.name)  # a link is for one person, not for a group
        if channel is not None and channel.links is not None and question.open and person:
            token = yield from self._inbox._token(question.id, notice.name, _LINK_LIFE)
            page = f"{channel.links.rstrip('/')}/answer/{token}"
            choices = question.choices or []
            buttons = [(str(one), f"{page}?answer={quote(str(one))}") for one in choices] or [("Answer", page)]
        return *claimed, channel, Message(notice.id, notice.event, question, notice.details, buttons)


def _sent(channel: Channel, message: Message) -> Work[str | None]:
    """Send a message; return the problem, or None if it arrived."""
    from tenuto.capabilities.people.notify.senders import send  # noqa: PLC0415 - it brings HTTP, TLS and SMTP

    try:
        yield Call(send, (channel, message), nullcontext, f"The delivery to {channel.name!r}")
    except Exception as error:  # noqa: BLE001 - it is recorded with the notification
        return without_secrets(channel, f"{type(error).__name__}: {error}")
    return None


def _test_message(channel: Channel) -> Message:
    now = datetime.now(UTC)
    text = f"A test of the channel of {channel.name}. You need not answer."
    question = Question("test", text, channel.name, None, None, None, None, "pending", None, None, now, None, None)
    return Message(f"msg_test_{time.time_ns()}", "test", question, None, [])

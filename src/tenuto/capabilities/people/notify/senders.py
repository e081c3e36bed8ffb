"""Senders: deliver one message to one channel, or raise. They touch the network and never the store."""

from __future__ import annotations

import http.client
import smtplib
import ssl
import threading
import time
import urllib.error
import urllib.request
from email.message import EmailMessage
from typing import Any, Final

from tenuto.capabilities.people.notify import messages
from tenuto.capabilities.people.notify.channels import Channel, expanded, from_environment, mail_of
from tenuto.capabilities.people.notify.messages import Message
from tenuto.errors import MissingDriver

_PATIENCE: Final = 10.0
"""Seconds without a byte from a receiver."""
_WHOLE: Final = 30.0
"""Seconds for one delivery, less than its lease: a receiver that sends a byte now and then would hold the worker for minutes."""


class NotDelivered(Exception):
    """A channel refused a message."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would turn the POST into a GET, or take the message to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def send(channel: Channel, message: Message) -> None:
    """Deliver a message, or raise an error that says why not, within `_WHOLE` seconds.

    A delivery that takes longer is given up: its thread ends when the receiver does.
    """
    ended: list[BaseException | None] = []

    def deliver() -> None:
        try:
            _SENDERS[channel.kind](channel, message)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=deliver, name="tenuto-delivery", daemon=True)
    thread.start()
    thread.join(_WHOLE)
    if not ended:
        raise NotDelivered(f"it took longer than {_WHOLE:g} s")
    if ended[0] is not None:
        raise ended[0]


def _webhook(channel: Channel, message: Message) -> None:
    now = time.time()  # the receiver compares it with its own clock
    body = messages.webhook(message, now)
    secret = from_environment(channel.secret or "")
    _post(expanded(channel.url), body, messages.signed(secret, message.id, now, body))


def _slack(channel: Channel, message: Message) -> None:
    _post(expanded(channel.url), messages.slack(message), {})


def _post(url: str, body: bytes, headers: dict[str, str]) -> None:
    if not url.startswith(("http://", "https://")):
        raise NotDelivered("the address is neither http nor https")
    request = urllib.request.Request(  # noqa: S310 - http and https alone
        url, body, {"content-type": "application/json", "user-agent": "tenuto", **headers}, method="POST"
    )
    try:
        _OPENER.open(request, timeout=_PATIENCE).close()  # the body says nothing, and a slow one would take for ever
    except urllib.error.HTTPError as error:
        with error:
            raise NotDelivered(f"HTTP {error.code}") from error
    except OSError as error:
        raise NotDelivered(f"{type(error).__name__}: {getattr(error, 'reason', error)}") from error
    except (http.client.HTTPException, ValueError) as error:  # its text may be the address
        raise NotDelivered(f"{type(error).__name__}: the address is invalid, or the answer is no HTTP") from error


def _email(channel: Channel, message: Message) -> None:
    mail = mail_of(expanded(channel.url))
    letter = EmailMessage()
    letter["From"], letter["To"] = mail.sender, ", ".join(mail.to)
    letter["Subject"] = " ".join(message.title.split())[:200]
    letter["Message-ID"] = f"<{message.id}@tenuto>"  # the same at each attempt, so that readers can drop a second one
    letter.set_content(message.text)
    try:
        with _connected(mail.host, mail.port, tls=mail.tls) as server:
            if mail.starttls:
                server.starttls(context=ssl.create_default_context())
            if mail.user is not None and channel.secret is not None:
                server.login(mail.user, from_environment(channel.secret))
            server.send_message(letter)
    except (OSError, smtplib.SMTPException) as error:
        raise NotDelivered(f"{type(error).__name__}: {error}") from error


def _connected(host: str, port: int, *, tls: bool) -> smtplib.SMTP:
    if tls:
        return smtplib.SMTP_SSL(host, port, timeout=_PATIENCE, context=ssl.create_default_context())
    return smtplib.SMTP(host, port, timeout=_PATIENCE)


def _apprise(channel: Channel, message: Message) -> None:
    try:
        import apprise  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingDriver('This channel needs apprise. Install it with: pip install "tenuto[notify]"') from error
    target = apprise.Apprise()
    if not target.add(expanded(channel.url)):
        raise NotDelivered("apprise does not know this URL")
    if not target.notify(title=message.title, body=message.text):
        raise NotDelivered("apprise could not deliver it")


_SENDERS: Final = {"webhook": _webhook, "slack": _slack, "email": _email, "apprise": _apprise}

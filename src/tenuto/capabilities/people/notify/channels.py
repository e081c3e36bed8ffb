"""Channels: where a person or group is notified.

Key, below the tenant: `("notify", "channel", name, id)` is a channel of a person or group. Secrets are not stored: a channel
names the environment variable that holds its secret, and its URL may contain `${NAME}`.
"""

from __future__ import annotations

import hashlib
import os
import re
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tenuto.capabilities._core.base import scan_all
from tenuto.errors import InvalidInput, MissingDriver
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Backend, Record
from tenuto.kernel.durations import seconds

Kind = Literal["webhook", "slack", "email", "apprise"]
CHANNELS: Final = keys.pack("notify", "channel")
_ENV: Final = re.compile(r"\$\{(\w+)\}")
_RATE: Final = re.compile(r"(\d+)/(\w+)")


class Channel(NamedTuple):
    """A place where a person or group is notified."""

    name: str
    url: str
    kind: Kind
    secret: str | None = None
    """The name of the environment variable that holds the secret."""
    rate: str | None = None
    """The most notifications in a time: "10/m"."""
    links: str | None = None
    """The address of the server whose pages take answers, for buttons."""

    @property
    def id(self) -> str:
        """Return an id made of name and URL."""
        return hashlib.sha256(f"{self.name}\0{self.url}".encode()).hexdigest()[:12]


def new_channel(
    name: str, url: str, *, kind: str | None, secret: str | None, rate: str | None, links: str | None
) -> Channel:
    """Return a channel, validated; `InvalidInput` for one of an unknown kind."""
    _must_be_texts(url=url or None, kind=kind, secret=secret, rate=rate, links=links)
    found = kind or _kind_of(url)
    if found not in get_args(Kind):
        raise InvalidInput(
            f"{url!r:.80} is an unknown channel; nothing was stored. Use https:, smtp: or an apprise URL."
        )
    if found in ("webhook", "slack") and not _ENV.search(url) and urlsplit(url).scheme not in ("http", "https"):
        raise InvalidInput(f"A {found} needs an http or https URL, not {url!r:.80}; nothing was stored.")
    if secret is not None and not secret.startswith("env:"):
        raise InvalidInput('Secrets are not stored. Put it into an environment variable, and pass secret="env:NAME".')
    if found == "webhook" and secret is None:
        raise InvalidInput('A webhook is signed. Pass secret="env:NAME"; the variable holds a "whsec_…" secret.')
    if rate is not None:
        limit_of(rate)
    if found == "email" and mail_of(url).user is not None and (secret is None or urlsplit(url).password is not None):
        raise InvalidInput(
            'The password of an e-mail channel is not part of its URL. Pass secret="env:NAME"; nothing was stored.'
        )
    if found in ("slack", "apprise") and secret is not None:
        raise InvalidInput(
            f"A channel of {found} has no secret; put ${{NAME}} into its URL instead. Nothing was stored."
        )
    if found == "apprise" and not _ENV.search(url):
        _must_know(url)
    return Channel(keys.name(name, "name"), url, found, secret and secret[4:], rate, links)  # type: ignore[arg-type]


def _must_be_texts(*, url: Any, links: Any, **others: Any) -> None:
    """Raise `InvalidInput` for what is no text, or no address."""
    for what, value in {"links": links, **others}.items():
        if value is not None and not isinstance(value, str):
            raise InvalidInput(f"{what} must be a text, not {value!r:.80}; nothing was stored.")
    if not isinstance(url, str):
        raise InvalidInput("A channel needs a URL.")
    try:
        urlsplit(url)
    except ValueError as error:
        raise InvalidInput(f"{url!r:.80} is not a URL: {error}; nothing was stored. Correct it.") from error
    if links is not None and not links.startswith(("http://", "https://")):
        raise InvalidInput(f"links must be the http or https address of a server, not {links!r:.80}.")


def _kind_of(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return "slack" if parts.hostname == "hooks.slack.com" else "webhook"
    if parts.scheme in ("smtp", "smtps"):
        return "email"
    return "apprise" if parts.scheme and "://" in url else None


def _must_know(url: str) -> None:
    """Raise `InvalidInput` for a URL that apprise does not know."""
    try:
        import apprise  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingDriver('This channel needs apprise. Install it with: pip install "tenuto[notify]"') from error
    if not apprise.Apprise().add(url):
        raise InvalidInput(f"{url!r:.80} is an unknown channel: apprise does not know it. Nothing was stored.")


def limit_of(rate: str) -> tuple[int, float]:
    """Return how many notifications in how many seconds."""
    found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if found is None or int(found[1]) < 1:
        raise InvalidInput(f'A rate must be a number in a time, for example "10/m", not {rate!r}.')
    unit = found[2] if found[2][0].isdigit() else f"1{found[2]}"
    return int(found[1]), seconds(unit, "rate")


class Mail(NamedTuple):
    """The parts of an e-mail channel's URL: `smtp://user@host:587/?from=…&to=…&starttls=1`."""

    host: str
    port: int
    user: str | None
    sender: str
    to: list[str]
    tls: bool
    starttls: bool


def mail_of(url: str) -> Mail:
    """Return the parts of an e-mail channel's URL."""
    parts = urlsplit(url)
    asked = parse_qs(parts.query)
    try:
        sender, to = asked["from"][0], asked["to"]
        port = parts.port or (465 if parts.scheme == "smtps" else 25)
    except (KeyError, ValueError) as error:
        raise InvalidInput("An e-mail channel is smtp://user@host:port/?from=a@b&to=c@d.") from error
    if any(not one.strip() or len(one.split()) > 1 for one in (sender, *to)):
        raise InvalidInput("An e-mail address must not be empty or contain spaces or newlines; nothing was stored.")
    if not parts.hostname:
        raise InvalidInput("An e-mail channel needs a host: smtp://host/?from=a@b&to=c@d.")
    starttls = asked.get("starttls", ["0"])[0] not in ("0", "")
    user = None if parts.username is None else unquote(parts.username)
    return Mail(parts.hostname, port, user, sender, to, parts.scheme == "smtps", starttls)


def from_environment(name: str) -> str:
    """Return an environment variable; `InvalidInput` that names it if it is not set, or is not for channels.

    Who writes a channel chooses where its values are sent. So tenuto's own variables, such as the URL of the store, are
    never used, and `$TENUTO_NOTIFY_VARIABLES` limits the others to patterns: "SLACK_*,MAIL_PASSWORD".
    """
    permitted = os.environ.get("TENUTO_NOTIFY_VARIABLES", "*").split(",")
    if name.startswith("TENUTO_") or not any(fnmatchcase(name, one.strip()) for one in permitted):
        raise InvalidInput(
            f"The environment variable {name} is not for channels; nothing was sent. Use one without TENUTO_ in front "
            "that $TENUTO_NOTIFY_VARIABLES permits."
        )
    found = os.environ.get(name, "").strip()  # a secret from a file often ends with a newline
    if not found:
        raise InvalidInput(f"The environment variable {name} is not set in this process. Set it, then retry.")
    return found


def expanded(url: str) -> str:
    """Return a URL with its environment variables filled in."""
    return _ENV.sub(lambda one: from_environment(one[1]), url)


def without_secrets(channel: Channel, text: str) -> str:
    """Return a text with the values of the channel's environment variables replaced by their names."""
    for name in [*_ENV.findall(channel.url), *([channel.secret] if channel.secret else [])]:
        value = os.environ.get(name, "").strip()
        for form in {value, quote(value, safe=""), unquote(value)} - {""}:
            text = text.replace(form, f"${{{name}}}")
    return text


def channel_key(channel: Channel) -> bytes:
    """Return the key of a channel."""
    return CHANNELS + keys.pack(channel.name, channel.id)


def encoded(channel: Channel) -> bytes:
    """Return the stored form of a channel."""
    return codec.encode(list(channel))


def channel_of(record: Record) -> Channel:
    """Return the channel of a record."""
    stored: list[Any] = codec.decode(record.value)
    return Channel(*stored)


def channels_of(kernel: Backend, name: str | None = None) -> list[Channel]:
    """Return the channels of a person or group, or all."""
    prefix = CHANNELS if name is None else CHANNELS + keys.pack(name)
    return [channel_of(record) for record in scan_all(kernel, prefix)]

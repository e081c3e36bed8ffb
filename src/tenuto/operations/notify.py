"""Operations on notifications: channels and the outbox."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from tenuto.capabilities.people import Channel, Notice
from tenuto.client import Tenuto
from tenuto.operations.table import Done, Number, operation

Name = Annotated[str, "Person or group"]


class Problem(NamedTuple):
    """A channel that a test message did not reach."""

    problem: str


@operation("notify to", writes=True)
def notify_to(
    agent: Tenuto,
    name: Name,
    address: Annotated[str, "Where to notify: https, smtp or an apprise URL; ${NAME} is taken from the environment"],
    *,
    secret: Annotated[str | None, "Environment variable with the secret, as env:NAME"] = None,
    kind: Annotated[str | None, "webhook, slack, email or apprise, if the URL does not show it"] = None,
    rate: Annotated[str | None, 'Most notifications in a time, e.g. "10/m"'] = None,
    links: Annotated[str | None, "Address of the server whose pages take answers"] = None,
) -> Channel:
    """Notify a person or group at this address from now on."""
    return agent.notify.to(name, address, secret=secret, kind=kind, rate=rate, links=links)


@operation("notify channels", "name", "kind", "url", "secret", "rate")
def notify_channels(agent: Tenuto) -> list[Channel]:
    """List the channels of people and groups."""
    return agent.notify.channels()


@operation("notify remove", asks="Remove the channels of {name!r}?")
def notify_remove(agent: Tenuto, name: Name) -> Done:
    """Remove the channels of a person or group."""
    return Done(agent.notify.remove(name) > 0)


@operation("notify test", "problem", local=True)
def notify_test(agent: Tenuto, name: Name) -> list[Problem]:
    """Send a test message to each channel of a person or group; list the problems."""
    return [Problem(one) for one in agent.notify.test(name)]


@operation("notify outbox", "id", "name", "event", "question", "due", "attempts", "error")
def notify_outbox(
    agent: Tenuto, *, dead: Annotated[bool, "List those that were given up instead"] = False
) -> list[Notice]:
    """List the notifications that wait for delivery."""
    return agent.notify.dead() if dead else agent.notify.outbox()


@operation("notify deliver", local=True)
def notify_deliver(agent: Tenuto) -> Number:
    """Deliver the notifications that are due now; a worker does this by itself."""
    return Number(agent.notify.deliver())


@operation("notify retry", writes=True)
def notify_retry(agent: Tenuto, notice: Annotated[str, "Notification id"]) -> Done:
    """Put a notification that was given up back into the outbox."""
    agent.notify.retry(notice)
    return Done(changed=True)

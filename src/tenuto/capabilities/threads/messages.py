"""Messages: the stored form of the dicts and objects of providers. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenuto.capabilities._core.values import NO_OBJECTS, plain, to_dict
from tenuto.errors import NotStorable

Message = dict[str, Any]


def messages_of(objects: Sequence[Any], *, deep: bool = False) -> list[Message]:
    """Return each message as a dict to store; objects are converted, with `deep` also those inside dicts."""
    return [
        item if type(item) is dict and not deep else _message(item, f"messages[{at}]")
        for at, item in enumerate(objects)
    ]


def _message(value: Any, path: str) -> Message:
    # Convert also registered types: every reader of the thread must understand a message.
    given = value if type(value) in NO_OBJECTS else to_dict(value, path)
    found = plain(given, path)
    if type(found) is not dict:
        raise NotStorable(
            f"{path} is of type {type(value).__name__}, not a message. Pass a dict such as "
            '{"role": "user", "content": "…"}, or an object that converts to one.',
            path,
        )
    return found

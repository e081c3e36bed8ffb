"""The window of a conversation that fits a budget: what is masked, what is summarised, what is shown verbatim.

Pure functions. A window only moves forward, in large strides: it makes room for more than the next turn, so that most turns
leave everything before them unchanged, and a provider's prompt cache hits. Masking changes no message twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tenuto.capabilities.context import masking, summaries
from tenuto.capabilities.context.tokens import Tokens
from tenuto.capabilities.threads import Message, border, leading_instructions

Frame = tuple[int, int, int]
_FULL: Final = 0.7
"""If older turns take more than this part of the room after masking, some are summarised."""
_TARGET: Final = 0.5
"""The part of the room that they take after a summary, so that the next turns fit without one."""
_SUMMARY: Final = 0.15
"""The part of the room that a summary may take."""
_HANDED: Final = 0.5
"""The part that a summary of the whole conversation may take."""
_LEAST: Final = 200
"""The fewest characters to which a tool result of the current exchange is cut."""
_HOPELESS: Final = 12
"""More characters than this per token of room cannot fit: long results are masked before anything is counted."""


class Shown(NamedTuple):
    """A message as the model sees it, with its number in the thread and its tokens."""

    number: int
    tokens: int
    message: Message
    left: int = 0
    """About how many tokens of it are masked or cut."""

    def scaled(self, ratio: float) -> Shown:
        """Return the message with its tokens multiplied."""
        return self._replace(tokens=math.ceil(self.tokens * ratio))


class Window(NamedTuple):
    """The stored part of a window: everything up to `masked_through` in its shown form."""

    frame: Frame
    """What it was computed from; with another, it is computed anew."""
    head: list[Shown] = []  # noqa: RUF012 - a tuple's default, never changed
    """The thread's own instructions, which are always shown."""
    through: int = 0
    """The number of the last message that the summary covers."""
    summary: str = ""
    covered: int = 0
    """The tokens of the messages that the summary covers."""
    last: Shown | None = None
    """The last message of the user, if the summary covers its place: it is shown all the same."""
    masked_through: int = 0
    masked: list[Shown] = []  # noqa: RUF012 - the same
    """The messages after `through` up to `masked_through`."""
    factor: float = 1.0
    """The factor of the tokens in it."""
    summary_tokens: int = 0
    """The tokens of the summary; 0 if they were not stored."""

    def scaled(self, factor: float) -> Window:
        """Return the window with its tokens counted by another factor: a model's calibration has moved."""
        if factor == self.factor or not self.factor:
            return self._replace(factor=factor)
        ratio = factor / self.factor
        head, masked = ([one.scaled(ratio) for one in many] for many in (self.head, self.masked))
        last = None if self.last is None else self.last.scaled(ratio)
        summarised = math.ceil(self.summary_tokens * ratio)
        return self._replace(head=head, masked=masked, last=last, factor=factor, summary_tokens=summarised)

    def stored(self) -> list[Any]:
        """Return the stored form."""
        frame, head, through, summary, covered, last, masked_through, masked, *numbers = self
        kept = None if last is None else list(last)
        return [
            list(frame), list(map(list, head)), through, summary, covered, kept, masked_through, list(map(list, masked)),
            *numbers,
        ]  # fmt: skip


def loaded(data: Sequence[Any]) -> Window:
    """Return a window from its stored form."""
    frame, head, through, summary, covered, last, masked_through, masked, *more = data
    return Window(
        tuple(frame),
        [Shown(*one) for one in head],
        through,
        summary,
        covered,
        None if last is None else Shown(*last),
        masked_through,
        [Shown(*one) for one in masked],
        *(more or [0.0]),  # stored before models were calibrated
    )


class Fitted(NamedTuple):
    """What of a conversation is shown."""

    window: Window
    shown: list[Shown]
    """The messages after the summary, in order."""
    older: list[Message]
    """The messages that have to be summarised before this can be shown; the earlier summary is the first."""
    reserved: int
    """The tokens that the summary may take."""
    rewritten: bool
    """Whether messages before the previous turn were masked, or older ones have to be summarised."""


class Fitting:
    """One fitting of a conversation into a room of so many tokens."""

    def __init__(
        self,
        window: Window,
        recent: Sequence[tuple[int, Message]],
        tokens: Tokens,
        room: int,
        *,
        mask: bool,
        whole: bool = False,
    ) -> None:
        self._tokens = tokens
        self._whole = whole
        self._room = room
        self._rewritten = False
        fresh = list(recent)
        if not window.masked_through and not window.through:
            count = leading_instructions([message for _, message in fresh])
            window = window._replace(head=[self._counted(*one) for one in fresh[:count]])
            fresh = fresh[count:]
        self.window = window
        self._room -= sum(one.tokens for one in window.head)
        self._over = False
        known, messages = len(window.masked), [*(one.message for one in window.masked), *(one for _, one in fresh)]
        current = _current(messages)
        self._previous = next((at for at in range(current - 1, 0, -1) if is_written(messages[at])), 0)
        hopeless = sum(map(masking.length_of, messages[known:current])) > max(room, 0) * _HOPELESS
        if mask and hopeless:  # counting megabytes of tokens, only to leave them out, takes seconds
            names = _names(messages)
            found = [self._masked(at, *one, names) for at, one in enumerate(fresh[: max(current - known, 0)], known)]
            found += [self._counted(*one) for one in fresh[max(current - known, 0) :]]
        else:
            found = [self._counted(*one) for one in fresh]
        self._items = [*window.masked, *found]
        self._current = current
        if window.last is not None and any(map(is_written, messages)):
            self.window = window._replace(last=None)
        if hopeless or whole or self._total() > self._room:
            self._over = True
            if mask:
                self._mask()

    def fit(self) -> Fitted:
        """Return what is shown within the room; a summary that is missing is asked for by `older`."""
        older: list[Message] = []
        reserved = self._summary_cost()
        most = 0 if self._whole else min(self._room * _FULL, self._room - self._least())
        if self._over and self._older() - (self._summary_cost() if self._whole else 0) > most:
            free = self._room - self._least() - self._kept()
            reserved = max(min(int(self._room * (_HANDED if self._whole else _SUMMARY)), free), 0)
            older = self._advance(reserved)
        spent = (reserved if older else self._summary_cost()) + (self.window.last.tokens if self.window.last else 0)
        if spent + sum(one.tokens for one in self._items) > self._room:
            self._cut(self._room - spent)
        return Fitted(self.window, self._items, older, reserved, self._rewritten)

    def _counted(self, number: int, message: Message) -> Shown:
        return Shown(number, self._tokens.message(message), message)

    def _masked(self, at: int, number: int, message: Message, names: dict[str, str]) -> Shown:
        new = masking.masked(message, number, names)
        left = (masking.length_of(message) - masking.length_of(new)) // 3
        self._rewritten |= new is not message and at < self._previous
        return Shown(number, self._tokens.message(new), new, left)

    def _total(self) -> int:
        last = self.window.last
        return sum(one.tokens for one in self._items) + self._summary_cost() + (last.tokens if last else 0)

    def _older(self) -> int:
        """Return the tokens before the current exchange."""
        return self._total() - sum(one.tokens for one in self._items[self._current :])

    def _least(self) -> int:
        """Return the fewest tokens that the current exchange takes, its tool results cut."""
        return sum(self._shortened(one, _LEAST).tokens for one in self._items[self._current :])

    def _kept(self) -> int:
        """Return the tokens of the user's last message, if it stands before the current exchange."""
        at = next((at for at in range(len(self._items) - 1, -1, -1) if is_written(self._items[at].message)), None)
        if at is None:
            return self.window.last.tokens if self.window.last else 0
        return self._items[at].tokens if at < self._current else 0

    def _summary_cost(self) -> int:
        return tokens_of_summary(self.window, self._tokens)

    def _mask(self) -> None:
        """Mask the tool output before the current exchange, and let the window remember it."""
        names, done = _names([one.message for one in self._items]), self.window.masked_through
        before = [
            one if one.number <= done or one.left else self._masked(at, one.number, one.message, names)
            for at, one in enumerate(self._items[: self._current])
        ]
        self._items[: self._current] = before
        if before:
            self.window = self.window._replace(masked_through=max(before[-1].number, done), masked=before)

    def _advance(self, reserved: int) -> list[Message]:
        """Move the window forward; return the messages that have to be summarised, an earlier summary first."""
        count = self._summarised(reserved)
        if not count:
            return []
        gone, self._items = self._items[:count], self._items[count:]
        older = [one.message for one in gone]
        if self.window.summary:
            older.insert(0, summary_message(self.window.summary))
        through = gone[-1].number
        written = [one for one in gone if is_written(one.message)]
        shown = any(is_written(one.message) for one in self._items)
        self.window = self.window._replace(
            through=through,
            covered=self.window.covered + sum(one.tokens + one.left for one in gone),
            last=None if shown else written[-1] if written else self.window.last,
            masked_through=max(self.window.masked_through, through),
            masked=[one for one in self.window.masked if one.number > through],
        )
        self._rewritten = True
        return older

    def _summarised(self, reserved: int) -> int:
        """Return how many messages to summarise, without separating a tool call from its result."""
        if self._whole:
            return border([one.message for one in self._items], self._current)
        target, need = min(self._room * _TARGET, self._room - self._least()) - reserved, 0
        target -= self._kept()
        left = self._older() - self._summary_cost()
        while need < self._current and left > target:
            left -= self._items[need].tokens
            need += 1
        messages = [one.message for one in self._items]
        for wanted in range(need, self._current + 1):
            found = border(messages, wanted)
            if found >= need:
                return found
        return border(messages, self._current)

    def _cut(self, room: int) -> None:
        """Cut the tool results that are still whole, the longest of them most, until everything fits."""
        whole = self._items
        most = max((masking.length_of(one.message) for one in whole), default=0)
        while sum(one.tokens for one in self._items) > room and most > _LEAST:
            most = max(_LEAST, most * 2 // 3)
            self._items = [self._shortened(one, most) for one in whole]

    def _shortened(self, one: Shown, most: int) -> Shown:
        new = masking.cut(one.message, one.number, most)
        if new is one.message:
            return one
        left = one.left + (masking.length_of(one.message) - masking.length_of(new)) // 3
        return Shown(one.number, self._tokens.message(new), new, left)


def _names(messages: Sequence[Message]) -> dict[str, str]:
    return {call.id: call.name for message in messages for call in masking.calls_of(message)}


def is_written(message: Message) -> bool:
    """Return whether the user wrote a message; tool results have the role of the user in some formats."""
    return message.get("role") == "user" and not masking.results_of(message)


def _current(messages: Sequence[Message]) -> int:
    """Return the index of the newest exchange: the last message of the user, or the last tool call if it is later."""
    for at in range(len(messages) - 1, 0, -1):
        if is_written(messages[at]) or masking.calls_of(messages[at]):
            return at
    return 0


def tokens_of_summary(window: Window, tokens: Tokens) -> int:
    """Return the tokens of a window's summary; 0 without one."""
    return window.summary_tokens or (tokens.message(summary_message(window.summary)) if window.summary else 0)


def summary_message(text: str) -> Message:
    """Return a summary as a message."""
    return {"role": "user", "content": f"{summaries.HEADING}:\n{text}"}

"""Alerts: rules on figures, looked at by workers; one that holds long enough asks people, through the notification outbox.

Keys, below the tenant:

- `("alert", "rule", name)`: the condition and who is asked.
- `("alert", "state", name)`: since when the condition holds, and the question that was asked about it.

An alert is a question in the inbox, so it has all that questions have: channels, groups, acknowledgement, history. Its key
has the time since when the condition holds, so of any number of replicas one asks. A crash between the question and the
state asks nothing twice: the next look finds the question by its key. When the condition ends, the question is cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, Timed, scan_all
from tenuto.capabilities.alerts.conditions import Condition, condition_of
from tenuto.capabilities.alerts.figures import ABOUT, Figures
from tenuto.capabilities.alerts.growth import Growth, growth_of, sampled
from tenuto.capabilities.people import Inbox
from tenuto.errors import Conflict, InvalidInput, NotFound, StateConflict
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Check, Delete, Put, Record
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work, on_store, work_of

_RULE: Final = keys.pack("alert", "rule")
_STATE: Final = keys.pack("alert", "state")
_EVERY: Final = 10.0
"""Seconds between two looks of one process."""


class Alert(NamedTuple):
    """An alert rule, and whether its condition holds."""

    name: str
    when: str
    to: list[str]
    since: datetime | None = None
    """Since when the condition holds without a break."""
    question: str | None = None
    """The open question about it; None while it has not held long enough."""


class Alerts(Timed):
    """Conditions on the figures of a store, and who is notified."""

    def __init__(self, context: Context, runs: Any, inbox: Inbox, notify: Any, audits: Any) -> None:
        self._context = context
        self._kernel = context.kernel
        self._inbox = inbox
        self.figures = Figures(context, runs, inbox, notify, audits)
        """What can be alerted on: `agent.alerts.figures.now()`."""
        self._looked = 0.0

    @on_store
    def add(self, when: str, to: str | Sequence[str], *, name: str | None = None) -> Work[Alert]:
        """Add an alert durably: `add(when="lookup.p95 > 100ms for 5m", to="ops")`; the same name replaces it.

        When the condition has held for that long, `to` are asked through their channels, once, with the figures. When it
        ends the question is cancelled. Workers look every ten seconds. The default name is the condition.
        """
        condition_of(when)
        people = [to] if isinstance(to, str) else list(to)
        if not people:
            raise InvalidInput("An alert needs a person or group in to=. Nothing was stored.")
        rule = Alert(keys.name(name or when, "name"), when, [keys.name(one, "name") for one in people])
        yield from commit_once(
            self._kernel, [], [Put(_RULE + keys.pack(rule.name), codec.encode([rule.when, rule.to]))]
        )
        return rule

    @on_store
    def remove(self, name: str) -> Work[bool]:
        """Remove an alert durably and cancel its question; return whether it existed."""
        found = next((one for one in self.list() if one.name == name), None)
        if found is None:
            return False
        yield from commit_once(self._kernel, [], [Delete(_RULE + keys.pack(name)), Delete(_STATE + keys.pack(name))])
        yield from self._cancel(found.question)
        return True

    def list(self) -> list[Alert]:
        """Return all alerts, with what holds now as of the last look of a worker."""
        states = {record.key[len(_STATE) :]: codec.decode(record.value) for record in scan_all(self._kernel, _STATE)}
        found = []
        for record in scan_all(self._kernel, _RULE):
            name = str(keys.unpack(record.key[len(_RULE) :])[0])
            when, to = codec.decode(record.value)
            since, question = states.get(record.key[len(_RULE) :], (None, None))
            found.append(Alert(name, when, to, None if since is None else moment(since), question))
        return found

    @on_store
    def sample(self) -> Work[bool]:
        """Record the size of the store for `growth`, at most once an hour; return whether it was. Workers do this."""
        return (yield from sampled(self._context))

    def growth(self, limit: int = 50 * 1024**3) -> Growth:
        """Return how the store grows by its samples, and when it reaches `limit` bytes."""
        return growth_of(self._context, limit)

    @on_store
    def check(self) -> Work[int]:
        """Look at all conditions now; return how many questions were asked or cancelled. Workers do this."""
        rules = self.list()
        if not rules:
            return 0
        values = self.figures.now({condition_of(one.when).figure for one in rules})
        changed = 0
        for one in rules:
            changed += yield from self._look(one, condition_of(one.when), values)
        return changed

    def _due(self) -> Work[int]:
        """Look if the last look of this process was a while ago; the chores of workers call it all the time."""
        now = self._kernel.now()
        if 0 <= now - self._looked < _EVERY:
            return 0
        self._looked = now
        yield from sampled(self._context)
        return (yield from work_of(self.check)())

    def _look(self, rule: Alert, condition: Condition, values: dict[str, float]) -> Work[int]:
        key = _STATE + keys.pack(rule.name)
        record = self._kernel.read([key])[0]
        since, question = codec.decode(record.value) if record is not None else (None, None)
        value = values.get(condition.figure)
        if value is None or not condition.holds(value):
            if record is None:
                return 0
            ended = yield from self._put(record, Delete(key))
            if ended:
                yield from self._cancel(question)
            return int(ended and question is not None)
        now = self._kernel.now()
        if since is None:
            since = now
            if not (yield from self._put(None, Put(key, codec.encode([since, None])))):
                return 0
            record = self._kernel.read([key])[0]
        if question is not None or now - since < condition.seconds or record is None:
            return 0
        asked = yield from self._ask(rule, condition, value, since, values)
        return int((yield from self._put(record, Put(key, codec.encode([since, asked])))))

    def _ask(
        self, rule: Alert, condition: Condition, value: float, since: float, values: dict[str, float]
    ) -> Work[str]:
        text = f"Alert {rule.name}: {condition.figure} is {value:.6g}, since {moment(since):%Y-%m-%d %H:%M:%S} UTC"
        context: dict[str, Any] = {"when": rule.when, "value": value, "limit": condition.limit, "figures": values}
        question = yield from self._inbox._ask(
            text,
            {
                "to": rule.to,
                "about": ABOUT,
                "context": context,
                "key": f"alert:{rule.name}:{since}",
                "choices": ["seen"],
                "remember": False,
            },
        )
        return question.id

    def _put(self, record: Record | None, write: Put | Delete) -> Work[bool]:
        try:
            yield from commit_once(self._kernel, [Check(write.key, 0 if record is None else record.version)], [write])
        except Conflict:
            return False  # another replica was first
        return True

    def _cancel(self, question: str | None) -> Work[None]:
        if question is not None:
            try:
                yield from work_of(self._inbox.cancel)(question, by="tenuto")
            except (NotFound, StateConflict, Conflict, InvalidInput):
                return  # answered meanwhile

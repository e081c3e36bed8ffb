"""Routes: who is asked about what. A route fills in what a question leaves out.

Key, below the tenant: `("routes", "route", pattern)` is a route. A question about "invoice:881" takes the most specific
matching pattern: the one with the most characters that are no wildcards. What the asker passed wins over the route.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, cast

from tenuto.capabilities._core.base import Context, Timed, scan_all
from tenuto.capabilities.people.asking import AskOptions, Escalate, new_question
from tenuto.capabilities.people.escalation import people_of, rungs_of
from tenuto.capabilities.people.inbox import Inbox
from tenuto.errors import InvalidInput
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Delete, Put
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work, on_store

_ROUTE: Final = keys.pack("routes", "route")


class Route(NamedTuple):
    """A rule that sends questions to their owner."""

    about: str
    to: list[str]
    escalate: list[dict[str, Any]]
    deadline: float | None
    """Seconds."""
    policy: str | None


class Routes(Timed):
    """The routes of a tenant, by what questions are about."""

    def __init__(self, context: Context, inbox: Inbox) -> None:
        self._context = context
        self._kernel = context.kernel
        inbox._routed = self._routed

    @on_store
    def add(
        self,
        *,
        about: str,
        to: str | Sequence[str],
        escalate: Sequence[Escalate] = (),
        deadline: Duration | None = None,
        policy: str | None = None,
    ) -> Work[Route]:
        """Send questions about this subject to their owner from now on, durably; replace the route of the same pattern.

        `about` is a pattern: "invoice:*". The route fills in what a question leaves out: whom to ask, the deadline, the
        levels of escalation, and the policy that applies.
        """
        people = people_of(to)
        if not people:
            raise InvalidInput("A route must name people or groups: to=.")
        levels = [
            {"to": people_of(one.to, "level of escalate"), **_times(one.after, one.repeat)}
            for one in rungs_of(escalate)
        ]
        route = Route(
            keys.name(about, "about"), people, levels, None if deadline is None else seconds(deadline), policy
        )
        new_question("route", "A question", self._kernel.now(), **self._options(route))  # validates
        yield from commit_once(self._kernel, [], [Put(_ROUTE + keys.pack(about), codec.encode(list(route)))])
        return route

    @on_store
    def remove(self, about: str) -> Work[bool]:
        """Remove the route of a pattern durably; return whether there was one."""
        where = _ROUTE + keys.named(about, "about")
        if self._kernel.read([where])[0] is None:
            return False
        yield from commit_once(self._kernel, [], [Delete(where)])
        return True

    def list(self) -> list[Route]:
        """Return all routes, by pattern."""
        return [Route(*codec.decode(record.value)) for record in scan_all(self._kernel, _ROUTE)]

    def find(self, *subjects: str) -> Route | None:
        """Return the route of a question about these subjects, or None."""
        people_of(subjects, "subject")  # validates
        found = [one for one in self.list() if any(fnmatchcase(subject, one.about) for subject in subjects)]
        return max(found, key=lambda one: (sum(char not in "*?" for char in one.about), one.about), default=None)

    def _routed(self, subjects: Sequence[str], options: AskOptions) -> AskOptions:
        """Add to the options of a question what its route says."""
        route = self.find(*subjects) if subjects else None
        if route is None:
            return options
        given = {name: value for name, value in options.items() if value is not None}
        if options.get("to"):  # to others than the route says: the policy still applies
            return cast("AskOptions", {"policy": route.policy, **given})
        return cast("AskOptions", {**self._options(route), **given})

    def _options(self, route: Route) -> AskOptions:
        options: AskOptions = {"to": route.to, "escalate": route.escalate}
        if route.deadline is not None:
            options["deadline"] = route.deadline
        if route.policy is not None:
            options["policy"] = route.policy
        return options


def _times(after: Duration | None, repeat: Duration | None) -> dict[str, Any]:
    given = {"after": after, "repeat": repeat}
    return {name: seconds(value, name) for name, value in given.items() if value is not None}

"""The inbox: questions to people, asked by agents and runs, answered once.

Each method is one commit (`records`) that checks the question's version. On a conflict it looks again: a closed question
is a `Conflict` that says who closed it and when; otherwise it tries again. So of two answers at the same moment one
counts, and a timer fires once across replicas.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tenuto.capabilities._core.base import Context, Timed, must_limit, page_after, scan_all
from tenuto.capabilities._core.firing import fire_each
from tenuto.capabilities._core.gates import QUESTION
from tenuto.capabilities._core.schemas import same
from tenuto.capabilities._core.values import plain
from tenuto.capabilities.people import groups, records
from tenuto.capabilities.people.asking import AskOptions, must_fit, new_question, subjects_of
from tenuto.capabilities.people.escalation import acknowledged, fired
from tenuto.capabilities.people.questions import (
    OPEN,
    STATUSES,
    Happened,
    Question,
    QuestionEvent,
    QuestionStatus,
    Vote,
    question_key,
    question_of,
    said,
    stored_answer,
)
from tenuto.capabilities.people.times import counted
from tenuto.capabilities.people.tokens import Approval, new_token, read_token
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Check, Put, Record, Write
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work, on_store

Notices = Callable[[Question, str, Sequence[str], Any], list[Write]]
"""Returns the outbox entries that tell people about a change of a question."""
Routed = Callable[[Sequence[str], AskOptions], AskOptions]
"""Adds to the options of a question what the route for its subjects says."""


class _Change(NamedTuple):
    """What a method makes of a question, and what must still hold when that is committed."""

    question: Question
    what: str
    details: Any
    checks: Sequence[AnyCheck] = ()


class Inbox(Timed):
    """The questions of a tenant. Every method is atomic, durable when it returns, and thread-safe."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kernel = context.kernel
        self._notices: Notices = lambda *_: []
        self._routed: Routed = lambda _, options: options
        self._recalled: Callable[[str, Sequence[str]], Sequence[str]] = lambda _text, _subjects: ()
        """Returns what memory says about the subjects of a question; set by the client."""
        self._learned: Callable[[Question], tuple[Sequence[AnyCheck], Sequence[Write]]] = lambda _: ((), ())
        """Returns what makes an answer a memory; set by the client, as are the next two."""
        self._waking: Callable[[str, str], Sequence[Write]] = lambda _run, _why: ()
        """Returns the writes that make a run due."""
        self._due: Callable[[Sequence[str]], Mapping[str, str]] = lambda _runs: {}
        """Returns which of these runs can continue and were not taken by a worker."""

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self, text: str, options: AskOptions) -> Work[Question]:
        """Ask a question durably, in one commit with its timers, its gate and its notifications."""
        question_id = options.get("key") or f"{int(self._kernel.now() * 1000):013d}-{secrets.token_hex(6)}"
        delays = backoff()
        while True:
            question, checks, writes = self._opening(question_id, text, options)
            if not writes:
                return question
            try:
                yield from commit_once(self._kernel, checks, writes)
            except Conflict:
                yield Sleep(next(delays))  # the key, or the gate of the resource, has just changed
            else:
                return question

    def _opening(
        self, question_id: str, text: str, options: AskOptions, *, run: str | None = None, step: str | None = None
    ) -> tuple[Question, list[AnyCheck], list[Write]]:
        """Return a new question and what asks it; without writes if its key was asked before."""
        if options.get("key") is not None:
            known, version = self._look(keys.name(question_id, "key"))
            if known is not None and known.text != text:
                raise Conflict(
                    f"The key {question_id!r} belongs to another question: {known.text!r:.200}. Use another key.",
                    [question_key(question_id)],
                )
            if known is not None and run is not None and known.open and run not in (known.run, *known.runs):
                waiting = known._replace(runs=[*known.runs, run])  # so that the answer wakes this run too
                return waiting, [Check(question_key(known.id), version)], [records.put(waiting)]
            if known is not None:
                return known, [], []
        routed = self._routed(subjects_of(options.get("about"), options.get("blocks")), options)
        subjects = subjects_of(routed.get("about"), routed.get("blocks"))
        question = new_question(
            question_id,
            text,
            self._kernel.now(),
            run=run,
            step=step,
            asked_by=self._context.writer,
            last=self._last(subjects),
            remembered=self._recalled(text, subjects) if subjects else (),
            **routed,
        )
        if question.quorum > 1:
            people = [*question.assignees, *(name for level in question.levels for name in level.to)]
            groups.must_reach(self._kernel, list(dict.fromkeys(people)), question.quorum)
        more = self._notices(question, "asked", question.assignees, None)
        details = {"to": question.assignees, "text": text, "blocks": question.blocks}
        checks, writes = records.change(self._context, None, 0, question, "asked", details=details, more=more)
        return question, checks, writes

    def _last(self, subjects: Sequence[str]) -> dict[str, Any] | None:
        """Return the newest question about one of these subjects that is closed, with its outcome."""
        for question_id in records.earlier(self._kernel, subjects):
            found, _ = self._look(question_id)
            if found is not None and not found.open:
                return {
                    "id": found.id, "text": found.text, "about": found.about, "status": found.status,
                    "answer": found.answer, "by": found.by, "at": found.answered_at,
                }  # fmt: skip
        return None

    # -- reading ---------------------------------------------------------------------------------------------------

    def list(
        self,
        to: str | None = None,
        status: QuestionStatus | None = "pending",
        *,
        run: str | None = None,
        blocks: str | None = None,
        limit: int = 1_000,
        after: str | None = None,
    ) -> list[Question]:
        """Return up to `limit` questions, oldest first; by default those without an answer, acknowledged ones included.

        They start after the question with the id `after`. `status` selects another status, or all (None). `to` is a person or group that is asked now, or a member of such
        a group; `run` is the run that asked; `blocks` is a resource.
        """
        must_limit(limit)
        if status is not None and status not in STATUSES:
            raise InvalidInput(f"status must be one of {', '.join(STATUSES)}, or None; not {status!r}.")
        wanted = None if status is None else OPEN if status == "pending" else (status,)
        names = (
            set()
            if to is None
            else {keys.name(to, "person"), *(name for name, people in self.groups().items() if to in people)}
        )
        found: list[Question] = []
        for record in self._records(listed=status in OPEN):
            question = question_of(record)
            if wanted is not None and question.status not in wanted:
                continue
            if names and names.isdisjoint(question.assignees):
                continue
            if run in (None, question.run, *question.runs) and blocks in (None, question.blocks):
                found.append(question)
        found.sort(key=lambda one: (one.asked_at, one.id))
        return [*self._with_due(page_after(found, lambda one: one.id, after, limit))]

    def _records(self, *, listed: bool) -> Sequence[Record]:
        if not listed:
            return [*scan_all(self._kernel, QUESTION)]
        ids = [str(keys.unpack(one.key)[-1]) for one in records.pending(self._kernel)]
        found: list[Record] = []
        for at in range(0, len(ids), 1_000):
            read = self._kernel.read([question_key(one) for one in ids[at : at + 1_000]])
            found += [one for one in read if one is not None]
        return found

    def get(self, question_id: str) -> Question:
        """Return a question; `NotFound` if there is none."""
        return self._with_due([self._found(question_id)[0]])[0]

    def _with_due(self, questions: Sequence[Question]) -> Sequence[Question]:
        """Return the questions, and for those that are over whether their run has not been taken yet."""
        runs = {one.run for one in questions if one.run is not None and not one.open}
        due = self._due(sorted(runs)) if runs else {}
        return [
            one._replace(due=f"{one.status}, due, no worker") if one.run in due and not one.open else one
            for one in questions
        ]

    def history(self, question_id: str) -> Sequence[QuestionEvent]:
        """Return everything that happened to a question, oldest first: asked, warned, escalated, notified, answered."""
        self._found(question_id)
        return records.history(self._kernel, question_id)

    # -- answering -------------------------------------------------------------------------------------------------

    @on_store
    def answer(self, question_id: str, answer: Any, *, by: str | None = None) -> Work[Question]:
        """Answer a question durably and wake the run that asked; `Conflict` if the question is no longer open.

        `by` is the person who answers; a question to named people needs it. With a quorum, the question is answered when
        that many people have given the same answer; until then a person's second answer replaces the first. For a step
        in doubt, answer `Happened(result)` or "happened", `NotHappened()` or "not happened".
        """
        return (yield from self._answer(question_id, answer, by))

    def _answer(
        self, question_id: str, answer: Any, by: str | None, approval: Approval | None = None
    ) -> Work[Question]:
        stored = plain(stored_answer(answer), "answer")

        def answered(question: Question, now: float) -> _Change:
            self._must_be_open(question)
            if approval is not None and self._kernel.read([approval.used_key])[0] is not None:
                raise Conflict("This approval link was already used; nothing was written. Ask for a new one.")
            if not (isinstance(answer, Happened) and question.step is not None):
                must_fit(question, stored, "The answer")
            allowed = self._may_decide(question, by)
            votes = [one for one in question.votes if one.by != by] + [Vote(by or "", stored, moment(now))]
            voted = question._replace(votes=votes)
            # The vote of someone who has left the group meanwhile no longer counts.
            if sum(allowed.have(one.by) and same(one.answer, stored) for one in votes) < question.quorum:
                return _Change(voted, "voted", {"answer": stored}, allowed.checks)
            done = voted._replace(
                status="answered", answer=stored, by=by, answered_at=moment(now), timers=[], expires_at=None
            )
            return _Change(done, "answered", {"answer": stored}, allowed.checks)

        return (yield from self._change(question_id, answered, by, approval))

    @on_store
    def acknowledge(self, question_id: str, *, by: str) -> Work[Question]:
        """Record durably that a person looks after a question: it is not escalated any further."""
        keys.name(by, "by")

        def taken(question: Question, now: float) -> _Change:
            self._must_be_open(question)
            allowed = self._may_decide(question, by)
            return _Change(acknowledged(question, by, now), "acknowledged", None, allowed.checks)

        return (yield from self._change(question_id, taken, by))

    @on_store
    def cancel(self, question_id: str, *, by: str | None = None) -> Work[Question]:
        """Cancel a question durably and open its gate. The run that asked gets `Conflict`, which it may handle.

        An expired question whose gate is still closed can be cancelled too.
        """

        def cancelled(question: Question, now: float) -> _Change:
            if question.blocking is None:
                self._must_be_open(question)
            ended = question._replace(
                status="cancelled", by=by, answered_at=moment(now), timers=[], expires_at=None, answer=None
            )
            return _Change(ended, "cancelled", None)

        return (yield from self._change(question_id, cancelled, by))

    def _change(
        self,
        question_id: str,
        decide: Callable[[Question, float], _Change],
        by: str | None,
        approval: Approval | None = None,
    ) -> Work[Question]:
        """Change a question in one commit; decide again if it has changed meanwhile."""
        delays = backoff()
        while True:
            old, version = self._found(question_id)
            new, what, details, guards = decide(old, self._kernel.now())
            new = new._replace(changes=old.changes + 1)
            ended = [] if new.open else [*self._notices(new, what, new.assignees, details), *self._resuming(new)]
            checks, writes = records.change(self._context, old, version, new, what, by=by, details=details, more=ended)
            more_checks, learned = self._learned(new)
            checks, writes = [*checks, *guards, *more_checks], [*writes, *learned]
            if approval is not None:
                checks.append(Check(approval.used_key, 0))
                left = approval.expires_at.timestamp() - self._kernel.now()  # after that it is refused anyway
                writes.append(Put(approval.used_key, codec.encode(None), max(left, 0.0) + 3_600.0))
            try:
                yield from commit_once(self._kernel, checks, writes)
            except Conflict:
                yield Sleep(next(delays))
            else:
                return new

    def _resuming(self, question: Question) -> Sequence[Write]:
        """Return the writes that make the runs due that wait for a closed question."""
        waiting = [*([question.run] if question.run is not None else []), *question.runs]
        woken = [write for run in waiting for write in self._waking(run, question.status)]
        return list({write[0]: write for write in reversed(woken)}.values())  # of two runs with one parent

    def _may_decide(self, question: Question, by: str | None) -> groups.Deciders:
        """Raise unless this person may answer: the members of a group that has members, or anyone."""
        if by is None and not question.assignees and question.quorum == 1:
            return groups.Deciders(None, [])
        if by is None:
            raise InvalidInput(
                f"The question {question.id!r} needs to know who answers; nothing was written. Pass by=, a person's name."
            )
        keys.name(by, "by")
        allowed = groups.deciders(self._kernel, question.assignees)
        if not allowed.have(by):
            raise InvalidInput(
                f"{by!r} may not answer the question {question.id!r}; nothing was written. It is asked of "
                f"{', '.join(sorted(allowed.names or ()))}."
            )
        return allowed

    # -- approval links --------------------------------------------------------------------------------------------

    @on_store
    def token(self, question_id: str, *, by: str, expires: Duration = "24h") -> Work[str]:
        """Return a signed token with which one person may answer a question once, until it expires; for a link."""
        self._found(question_id)
        return (yield from self._token(question_id, by, expires))

    def _token(self, question_id: str, by: str, expires: Duration) -> Work[str]:
        until = counted(self._kernel.now(), seconds(expires, "expires"), None)
        return (yield from new_token(self._context, question_id, keys.name(by, "by"), until))

    def approval(self, token: str) -> Approval:
        """Return what a token allows, without using it; `InvalidInput` if it is forged or expired."""
        return read_token(self._context, token)

    @on_store
    def redeem(self, token: str, answer: Any) -> Work[Question]:
        """Answer with a token, as the person it was made for; it is used up in the commit of the answer."""
        allowed = read_token(self._context, token)
        return (yield from self._answer(allowed.question, answer, allowed.by, allowed))

    # -- timers ----------------------------------------------------------------------------------------------------

    @on_store
    def fire(self, *, limit: int = 100) -> Work[int]:
        """Fire timers that are due, up to `limit`, each once across replicas; return how many. Workers do this too."""
        must_limit(limit)
        ids = records.due(self._kernel, self._kernel.now(), limit)
        random.shuffle(ids)  # replicas that look at the same time begin with different ones
        return (yield from fire_each(ids, self._fire))

    def _fire(self, question_id: str) -> Work[int]:
        """Fire the timers of one question that are due; return 1 if any was."""
        found, version = self._look(question_id)
        done = None if found is None else fired(found, self._kernel.now())
        if found is None or done is None:
            return 0
        new = done.question._replace(changes=found.changes + 1)
        more = [*self._notices(new, done.what, done.notify, done.details), *([] if new.open else self._resuming(new))]
        checks, writes = records.change(self._context, found, version, new, done.what, details=done.details, more=more)
        try:
            yield from commit_once(self._kernel, checks, writes)
        except Conflict:
            return 0  # another replica fired it, or it was answered
        return 1

    # -- groups ----------------------------------------------------------------------------------------------------

    @on_store
    def group(self, name: str, members: Sequence[str]) -> Work[None]:
        """Set the members of a group durably: only they may answer its questions. Without members, anyone may."""
        yield from commit_once(self._kernel, [], [groups.changed(name, members)])

    def groups(self) -> dict[str, Sequence[str]]:
        """Return the members of each group, by name."""
        return groups.all_groups(self._kernel)

    # -- shared ----------------------------------------------------------------------------------------------------

    def _found(self, question_id: str) -> tuple[Question, int]:
        found, version = self._look(keys.name(question_id, "question id"))
        if found is None:
            raise NotFound(f"There is no question {question_id!r}. List the open ones with agent.inbox.list().")
        return found, version

    def _look(self, question_id: str) -> tuple[Question | None, int]:
        """Return a question and its version, or None."""
        record = self._kernel.read([question_key(question_id)])[0]
        return (None, 0) if record is None else (question_of(record), record.version)

    def _must_be_open(self, question: Question) -> None:
        if not question.open:
            raise Conflict(
                f"The question {question.id!r} was already {said(question)}; nothing was written. "
                f"Read it with agent.inbox.get({question.id!r}).",
                [question_key(question.id)],
            )

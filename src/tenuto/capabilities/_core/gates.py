"""Gates: a resource that an open question blocks, checked in the commit of the write that it guards.

Key, below the tenant: `("inbox", "gate", resource)` lists the ids of the questions that block the resource; without
such a question there is no record. The commits of `people` write it together with the question. A guarded commit checks
that there is no record, so no write can slip in between the look and the write.
"""

from __future__ import annotations

from typing import Any, Final

from tenuto.errors import Blocked
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Backend, Check

QUESTION: Final = keys.pack("inbox", "question")
_GATE: Final = keys.pack("inbox", "gate")


def gate_key(resource: str) -> bytes:
    """Return the key of the gate of a resource."""
    return _GATE + keys.named(resource, "resource")


def gate_check(resource: str) -> Check:
    """Return the check of a guarded commit: no question blocks the resource."""
    return Check(gate_key(resource), 0)


def blocked(kernel: Backend, resource: str) -> Blocked | None:
    """Return the error with the question that blocks a resource, or None if the gate is open."""
    record = kernel.read([gate_key(resource)])[0]
    if record is None:
        return None
    question_id = codec.decode(record.value)[0]
    stored = kernel.read([QUESTION + keys.pack(question_id)])[0]
    asked: dict[str, Any] = {} if stored is None else codec.decode(stored.value)
    to = f" asked of {', '.join(asked['assignees'])}" if asked.get("assignees") else ""
    then = f"Retry when it is answered; see agent.inbox.get({question_id!r})."
    if asked.get("status") == "expired":
        then = f"It expired without an answer; agent.inbox.cancel({question_id!r}) opens the gate."
    return Blocked(
        f"{resource!r} is blocked by the question {question_id!r}{to}: {asked.get('text', '')!r:.200}; nothing was written. "
        f"{then}",
        resource,
        question_id,
        asked.get("context"),
    )

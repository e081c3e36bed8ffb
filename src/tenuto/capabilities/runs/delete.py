"""Deleting a run and its log.

The first commit marks the head as deleting and revokes the lease: from then on the run is absent for every reader.
Further commits remove the lines and their blob references, then the signals and the list of child runs, the last one
the head. After a crash in between, the next call completes the deletion. Child runs are not deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tenuto.capabilities._core.blobs import changes
from tenuto.capabilities.runs.log import Head, RunLog, references, user_key
from tenuto.errors import Conflict, RunBusy
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Check, Delete, Forget, Put, Write
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Sleep, Work

_SOME: Final = 200


def delete_run(
    log: RunLog, held_by: Callable[[], str | None], fence: Callable[[RunLog], Sequence[AnyCheck]], token: bytes
) -> Work[bool]:
    """Delete a run and its log durably; return whether it existed. Raise `RunBusy` while a process executes it."""
    while True:
        head, version = log.head()
        if head is None:
            return False
        if head.status == "deleting":
            yield from clear(log, head, version)
            return True
        holder = held_by()
        if holder is not None:
            raise RunBusy(
                f"The run {log.id!r} is executed by {holder}; nothing was deleted. Wait until it is done, or call "
                f"agent.runs.cancel({log.id!r}) first."
            )
        gone = head._replace(status="deleting", changed=log.context.kernel.now())
        writes: list[Write] = [*log.placed(gone, head), Put(token, codec.encode(None))]
        if head.user is not None:
            writes.append(Delete(user_key(head.user, log.id)))
        try:
            yield from commit_once(log.context.kernel, [Check(log.head_key, version), *fence(log)], writes)
        except Conflict:
            yield Sleep(0.005)


def clear(log: RunLog, head: Head, version: int) -> Work[None]:
    """Complete a deletion."""
    kernel = log.context.kernel
    first = head.first
    while True:
        ends = False
        page = kernel.entries(log.own, after=first - 1, limit=_SOME)
        checks, counted = log.blobs.counted(changes((), (digest for entry in page for digest in references(entry))))
        writes: list[Write] = [*counted]
        if page:
            first = page[-1].number + 1
            writes += [Forget(log.own, page[0].number, page[-1].number), *log.placed(head._replace(first=first))]
        else:
            ours = [one for kind in ("signal", "child") for one in kernel.scan(log.own + keys.pack(kind), limit=_SOME)]
            ends = len(ours) < _SOME  # then both were listed completely
            last = [Delete(log.head_key), Delete(log.live_key), Delete(log.heartbeat_key)] if ends else log.placed(head)
            writes += [*last, *(Delete(one.key) for one in ours)]
        try:
            done = yield from commit_once(kernel, [Check(log.head_key, version), *checks], writes)
        except Conflict:
            yield Sleep(0.005)  # another process deletes it too, or a reference count changed
            again, version = log.head()
            if again is None or again.status != "deleting":
                return
            head, first = again, again.first
            continue
        if ends:
            return
        version = done.versions[len(counted) + len(page[:1])]

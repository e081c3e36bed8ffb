"""The table `requests`: the outcome of each request id, and the row of the last commit.

An id that is not found is answered "never applied" only if its neighbours prove it: a flipped bit can hide a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import apsw
import ormsgpack

from tenuto.backends.sqlite import rows, schema
from tenuto.backends.sqlite.rows import Last
from tenuto.errors import Damaged, RequestExpired, RequestReused
from tenuto.kernel.contract import REQUEST_LIFE, Commit
from tenuto.kernel.transact import request_time

NO_LAST: Final = "The store has lost the record of its last commit. Stop writing to it and restore a backup."
_REQUEST: Final = "SELECT id, at, content, versions, sum FROM requests"
_LAST: Final = f"{_REQUEST} WHERE id = x'{rows.LAST.hex()}'"
_log = logging.getLogger("tenuto.sqlite")


def find_last(connection: apsw.Connection) -> Last:
    """Return the last commit, verified."""
    found: list[Any] = connection.execute(_LAST).fetchall()
    if not found:
        raise Damaged(NO_LAST)
    return rows.verified_last(found[0])


def restore_last(connection: apsw.Connection) -> None:
    """Restart the count of commits if the record of the last one is damaged, so that the rest can be used."""
    try:
        find_last(connection)
    except Damaged as error:
        _log.warning("the store restarts its count of commits: %s", error)
        with schema.transaction(connection):
            connection.execute("DELETE FROM requests WHERE id >= ?", (rows.LAST,))
            connection.execute(schema.ADD_REQUEST, rows.last_row(rows.FIRST))


def find_outcome(run: Callable[..., Any], request: bytes, content: bytes | None, now: float) -> Commit | None:
    """Return the outcome of a request, None if there is none, or raise `RequestReused` or `RequestExpired`."""
    found: list[Any] = run(f"{_REQUEST} WHERE id = ?", (request,)).fetchall()
    if found:
        own, at, known, versions, _ = rows.verified_request(found[0])
        if own != request:
            raise Damaged(rows.REQUEST_DAMAGED)
        if known != content:
            raise RequestReused("This request id was used for another commit. Nothing was written; use a new id.")
        return Commit(tuple(ormsgpack.unpackb(versions)), at, repeated=True)
    _prove_unknown(run, request)
    if now - request_time(request) > REQUEST_LIFE:
        raise RequestExpired(
            "This request id is too old for its outcome to be known. Nothing was written; read what is stored first."
        )
    return None


def _prove_unknown(run: Callable[..., Any], request: bytes) -> None:
    """Raise `Damaged` unless the neighbours of an unknown request prove that it does not exist.

    They must be whole and in order, two on each side: if a page lists another row in place of the request's, that row is
    out of order. And each must find the other next to it: if one page was read in place of another, they do not.
    """
    below, above = _near(run, request, up=False), _near(run, request, up=True)
    ids = [*(row[0] for row in reversed(below)), request, *(row[0] for row in above)]
    if (
        ids != sorted(set(ids))
        or (below and _near(run, below[0][0], up=True)[:1] != above[:1])
        or (above and _near(run, above[0][0], up=False)[:1] != below[:1])
    ):
        raise Damaged(rows.REQUEST_DAMAGED)


def _near(run: Callable[..., Any], request: bytes, *, up: bool) -> list[Any]:
    order = "> ? ORDER BY id" if up else "< ? ORDER BY id DESC"
    return [rows.verified_request(row) for row in run(f"{_REQUEST} WHERE id {order} LIMIT 2", (request,)).fetchall()]

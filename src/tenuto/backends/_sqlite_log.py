"""The log of a SQLite store: a transaction is one row, and the tables follow some hundred rows later.

What a commit would change in the tables lies on many pages; what it says lies on one. So a transaction adds
one row here, which holds its commits whole, and now and then whoever has the lock folds the rows into
the tables, all of them in one transaction, and empties the log. Until then a reader looks into the log first;
`_sqlite_tail` keeps what is in it at hand.

A row is `number`, `chain`, `head`, `body`. The body is what the commits were given, one after the other; the
head is what the store decided of each, with a digest of its part of the body; the chain is a digest of the
head and of the chain before it. So the row of the last commit vouches for all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import apsw
import ormsgpack

from tenuto.backends._sqlite_schema import COUNTER
from tenuto.errors import Damaged
from tenuto.kernel.codec import digest
from tenuto.kernel.contract import AnyCheck, Append, Check, Delete, Forget, Put, Write

_PUT, _DELETE, _APPEND, _FORGET = range(4)
_LAST: Final = (
    "coalesce((SELECT chain FROM log ORDER BY id DESC LIMIT 1), "  # noqa: S608 - constants only, here and below
    f"(SELECT content FROM outcomes WHERE id = x'{COUNTER.hex()}'), zeroblob(16))"
)
ADD: Final = f"INSERT OR IGNORE INTO log VALUES (?1, iif(?5 = {_LAST}, ?2, NULL), ?3, ?4)"  # noqa: S608
"""Writes a row, in a transaction of its own, if the last one is the one that it goes on from; else nothing changes.

A row without a chain is not made. That holds whatever has become of the lock file: SQLite's own lock and this
comparison let no commit get lost. It takes the number, the chain, the head, the body and the chain before.
"""
_SINCE: Final = "SELECT id, chain, head, body FROM log WHERE id > ? ORDER BY id"
_SPAN: Final = "SELECT (SELECT min(id) FROM log), id, chain FROM log ORDER BY id DESC LIMIT 1"
_sha256, _packb = hashlib.sha256, ormsgpack.packb


class Counter(NamedTuple):
    """How many transactions were committed, and a digest of them all."""

    number: int
    chain: bytes


class Decided(NamedTuple):
    """One commit, and what became of it."""

    at: float
    request: bytes | None
    content: bytes
    """A digest of what the commit was given: what its request id is bound to."""
    versions: tuple[int, ...]
    places: tuple[int, ...]
    """For each write: of an append its stream's id, of a delete 1 if there was something to end, else 0."""
    size: int
    """How long its part of the body is."""
    writes: Sequence[Write]


class Logged(NamedTuple):
    """One row of the log."""

    number: int
    chain: bytes
    commits: Sequence[Decided]


class Moment:
    """Lets everything that is read through a connection be of one moment.

    Not a generator: one that Control-C has left in the middle would go on when it is thrown away.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN")

    def __exit__(self, *_: object) -> None:
        if self._connection.in_transaction:  # an error of the disk has ended it already
            self._connection.execute("ROLLBACK")


def packed(checks: Sequence[AnyCheck], writes: Sequence[Write]) -> tuple[bytes, bool]:
    """Return what a commit was given, as bytes, and whether it forgets. A value that two writes share is in it once."""
    told: list[Any] = []
    shared: bytes | None = None
    at, forgets = 0, False
    for write in writes:
        if type(write) is Put:
            key, value, ttl = write
            if value == shared:
                told.append((_PUT, key, at, ttl))
            else:
                shared, at = value, len(told)
                told.append((_PUT, key, value, ttl))
        elif type(write) is Append:
            key, value = write
            if value == shared:
                told.append((_APPEND, key, at))
            else:
                shared, at = value, len(told)
                told.append((_APPEND, key, value))
        elif type(write) is Delete:
            told.append((_DELETE, *write))
        else:
            forgets = True
            told.append((_FORGET, *write))
    given = [(check[0], check[1], type(check) is Check) for check in checks] if checks else ()
    return _packb((given, told)), forgets


def _unpacked(blob: bytes) -> list[Write]:
    writes: list[Any] = []
    for kind, key, *rest in ormsgpack.unpackb(blob)[1]:
        value: Any = rest[0] if rest else None
        if type(value) is int and kind != _FORGET:
            value = writes[value][1]
        if kind == _PUT:
            writes.append(Put(key, value, rest[1]))
        elif kind == _APPEND:
            writes.append(Append(key, value))
        elif kind == _DELETE:
            writes.append(Delete(key))
        else:
            writes.append(Forget(key, *rest))
    return writes


def chained(before: bytes, number: int, commits: Sequence[Decided]) -> tuple[bytes, bytes, bytes]:
    """Return what the store decided of the commits of one transaction, as bytes; the digest of all up to them; their word."""
    head = _packb([commit[:6] for commit in commits] if len(commits) != 1 else (commits[0][:6],))
    place = number.to_bytes(8, "big")
    chain = _sha256(before + place + head).digest()[:16]
    return head, chain, b"\x01" + place + chain


def span(connection: apsw.Connection) -> tuple[int, Counter] | None:
    """Return the first number in the log and the last transaction, or None if it is empty."""
    found: list[Any] = connection.execute(_SPAN).fetchall()
    return (found[0][0], Counter(*found[0][1:])) if found else None


def since(connection: apsw.Connection, known: Counter) -> list[Logged]:
    """Return the rows behind a transaction that is known, in order and each of them believed."""
    found: list[Logged] = []
    rows: list[Any] = connection.execute(_SINCE, (known.number,)).fetchall()
    for row in rows:
        logged = _believed(row, known)
        found.append(logged)
        known = Counter(logged.number, logged.chain)
    return found


def _believed(row: Sequence[Any], before: Counter) -> Logged:
    number, chain, head, body = row
    try:
        if (
            number == before.number + 1
            and _sha256(before.chain + number.to_bytes(8, "big") + head).digest()[:16] == chain
        ):
            at, commits = 0, []
            for when, request, content, versions, places, size in ormsgpack.unpackb(head):
                blob = body[at : at + size]
                at += size
                if _sha256(blob).digest()[:16] != content:
                    break
                commits.append(Decided(when, request, content, tuple(versions), tuple(places), size, _unpacked(blob)))
            else:
                if at == len(body):
                    return Logged(number, chain, commits)
    except (TypeError, ValueError, IndexError):
        pass  # a flipped bit can change a column's type too
    raise Damaged(
        f"Commit {number} in the log is not what was written. Stop writing to it, keep a copy, and restore a backup."
    )


def cut(connection: apsw.Connection) -> int:
    """Take away the first row that is not what was written, and all behind it; return how many."""
    known = folded(connection)
    try:
        while rows := connection.execute(_SINCE + " LIMIT 1", (known.number,)).fetchall():
            logged = _believed(rows[0], known)
            known = Counter(logged.number, logged.chain)
    except (Damaged, UnicodeDecodeError):  # the latter: a blob that a flipped bit made a text
        connection.execute("DELETE FROM log WHERE id > ?", (known.number,))
        return connection.changes()
    return 0


# -- how far the tables have come ------------------------------------------------------------------


def folded(connection: apsw.Connection, table: str = "outcomes") -> Counter:
    """Return the last transaction that is in the tables; before format 3 the table had another name."""
    found: list[Any] = connection.execute(
        f"SELECT content, outcome FROM {table} WHERE id = ?",  # noqa: S608
        (COUNTER,),
    ).fetchall()
    return counted(*found[0]) if found else Counter(0, bytes(16))


def counted(chain: bytes, outcome: bytes) -> Counter:
    """Return what the counter's row says, or raise `Damaged`."""
    if digest(COUNTER, chain, outcome[:8])[:8] != outcome[8:]:
        raise Damaged(
            "The commit counter is not what was written. Stop writing to it, keep a copy, and restore a backup."
        )
    return Counter(int.from_bytes(outcome[:8], "big"), chain)


def count(run: Any, counter: Counter) -> None:
    """Note that the tables hold everything up to a transaction."""
    number = counter.number.to_bytes(8, "big")
    run(
        "INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?)",
        (COUNTER, counter.chain, number + digest(COUNTER, counter.chain, number)[:8]),
    )


def last(connection: apsw.Connection) -> Counter:
    """Return the last transaction, in the log or else in the tables, as of one moment; the log is believed on the way."""
    with Moment(connection):
        counter = folded(connection)
        rows = since(connection, counter)
    return Counter(rows[-1].number, rows[-1].chain) if rows else counter

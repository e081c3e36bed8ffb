"""What stands in for `SQLiteSession` when the SDK's own session tests run on `TenutoSession`.

No assertion is touched. `SQLiteSession` here is `TenutoSession` given the path that the test gives, so the store is the
file at that very path, and a test that opens that file by itself meets our file, our locks and our transactions. What
those tests do to the tables of SQLiteSession, they do here to what holds the same in ours:

- the table of sessions is `records` (threads are listed there), that of messages is `entries`;
- a row whose text is no JSON, which the session cannot read as an item, is a line of the thread that is no item;
- the connections are those that are really open on the file; a closed one is told in sqlite3's word for it;
- the lock that sessions on one file share, and how many share it, are the client that they share and how many have it;
- a connection that a test plants for its `commit` is called around each real commit of the store;
- SQLite's error for a table that is not there is `Damaged` in ours.

What has no counterpart is not made up, and fails: `_quarantined_connections`, and a connection evicted because it cannot
roll back. Ours begins no transaction before everything in it has its stored form, so there is nothing to roll back.
"""

import contextlib
import re
import sqlite3 as real
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import apsw

from tenuto import Damaged
from tenuto.adapters import _opened
from tenuto.adapters.openai_agents import TenutoSession

SAME = {
    "DROP TABLE agent_sessions": "DROP TABLE records",
    "DROP TABLE agent_messages": "DROP TABLE entries",
    "INSERT INTO agent_sessions (session_id) VALUES ('probe')": "INSERT INTO meta VALUES ('probe', x'')",
}


def same(sql: str) -> str:
    """Return what asks of our tables what a statement asks of SQLiteSession's."""
    counted = re.fullmatch(r"SELECT COUNT\(\*\) FROM agent_sessions WHERE session_id = '(\w+)'", sql)
    if counted is not None:  # not only the listing: no key of any record may hold its name
        return f"SELECT count(*) FROM records WHERE instr(key, CAST('{counted[1]}' AS BLOB))"
    return SAME.get(sql, sql)


class Connection(real.Connection):
    """A connection of a test's own to our file."""

    carried: Callable[[], Any] | None = None
    outcome: Any = None

    def execute(self, sql: str, *given: Any) -> Any:
        return super().execute(same(sql), *given)

    def carry(self, commit: Callable[[], Any]) -> Any:
        """Make a commit of our store where the test has put its own `commit`."""
        self.carried = commit
        self.commit()
        return self.outcome

    def commit(self) -> None:
        if self.carried is not None:
            carried, self.carried = self.carried, None
            self.outcome = carried()
        super().commit()


class sqlite3:  # noqa: N801 - in the place of the module
    Connection = Connection
    ProgrammingError = real.ProgrammingError
    OperationalError = (real.OperationalError, Damaged)

    @staticmethod
    def connect(path: str, factory: type[Connection] = Connection, **given: Any) -> Connection:
        return real.connect(path, factory=factory, **given)


def idle(look: Callable[[], Any]) -> Any:
    """Look at a connection once the store's own upkeep, in a thread of its own, is not using it."""
    for _ in range(2_000):
        try:
            return look()
        except apsw.ThreadingViolationError:
            time.sleep(0.001)
    return look()


class Open:
    """A connection of our store, as the tests look at it."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        return bool(idle(lambda: self._connection.in_transaction))

    def execute(self, sql: str) -> Any:
        try:
            return idle(lambda: self._connection.execute(sql))
        except apsw.ConnectionClosedError as error:
            raise real.ProgrammingError(str(error)) from error


class Shared:
    """How many sessions share what, by the path of the file."""

    def __init__(self, told: Callable[[_opened.Opened], Any]) -> None:
        self._told = told

    def __contains__(self, path: Path) -> bool:
        return str(path) in _opened.shared

    def __getitem__(self, path: Path) -> Any:
        return self._told(_opened.shared[str(path)])


class Lines:
    """A test's way to put something into a session past its methods."""

    def __init__(self, session: "SQLiteSession") -> None:
        self._session = session

    def execute(self, sql: str, given: tuple[str, str]) -> None:
        assert sql == "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)"
        self._session._agent.thread(given[0]).append({"message_data": given[1]})

    def commit(self) -> None:
        """It is durable already."""


class SQLiteSession(TenutoSession):
    _file_locks: ClassVar = Shared(lambda opened: opened.client)
    _file_lock_counts: ClassVar = Shared(lambda opened: opened.users)
    messages_table = "agent_messages"

    def __init__(self, session_id: str, db_path: Path | None = None, session_settings: Any = None) -> None:
        super().__init__(session_id, "volatile:" if db_path is None else db_path, session_settings=session_settings)
        self._path = db_path
        self._planted: set[Any] = set()
        self._connections_lock = threading.Lock()
        backend: Any = self._agent._backend
        commit = backend.commit

        def around(*args: Any, **more: Any) -> Any:
            planted = self._get_connection()
            return commit(*args, **more) if planted is None else planted.carry(lambda: commit(*args, **more))

        backend.commit = around

    @property
    def _lock(self) -> Any:
        return self._agent

    @property
    def _connections(self) -> "Connections":
        return Connections(self)

    def _get_connection(self) -> Connection | None:
        """Return the connection that the next commit goes through: none, until a test plants one."""
        return None

    @contextlib.contextmanager
    def _locked_connection(self) -> Iterator[Lines]:
        yield Lines(self)


class Connections(set[Any]):
    """Those that are open on the file of a session, and those that a test has put beside them."""

    def __init__(self, session: SQLiteSession) -> None:
        super().__init__(session._planted)
        if session._path is not None:
            where = session._path.resolve()
            every = [(one, idle(lambda one=one: one.filename)) for one in apsw.connections()]
            self.update(Open(one) for one, path in every if path and Path(path).resolve() == where)
        self.add = session._planted.add  # type: ignore[method-assign]

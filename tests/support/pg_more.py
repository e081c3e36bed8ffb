"""More of Postgres than one server on a socket: a streaming replica, and a server on a port and on a disk of its own."""

import os
import shutil
import socket
import tempfile
from pathlib import Path

import psycopg
from support import pg_server
from support.pg_server import Server, pgexec


class Another(Server):
    """A server beside another one, in a data folder that `make` fills, with the same binaries."""

    settings = "shared_buffers = 16MB\n"

    def __init__(self, beside: Server, data: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tenuto-pg-"))
        self.folder.chmod(0o755)
        self._wheel = beside._wheel
        self.data = data or self.folder / "data"
        sockets = self.folder / "socket"
        sockets.mkdir()
        sockets.chmod(0o777)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.host = str(sockets)
        self._options = f'-h "127.0.0.1" -p {self.port} -k {sockets}'
        self.url = f"postgresql://postgres@/postgres?host={sockets}&port={self.port}"
        if data is None:
            self.data.mkdir()
        if os.geteuid() == 0:
            shutil.chown(self.data, self._wheel.system_user)
        self.data.chmod(0o700)
        self.make(beside)
        self.start()

    def make(self, beside: Server) -> None:
        del beside
        self.run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", *self.initial())
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(self.settings)

    def initial(self) -> tuple[str, ...]:
        """Return more that initdb is told."""
        return ()

    def run(self, command: str, *arguments: str) -> None:
        pgexec(command, arguments, bin_path=self._wheel.bin_path, user=self._wheel.system_user, timeout=60)


class Replica(Another):
    """A streaming replica of `primary`."""

    def make(self, beside: Server) -> None:
        host = psycopg.conninfo.conninfo_to_dict(beside.url)["host"]
        port = str(psycopg.conninfo.conninfo_to_dict(beside.url).get("port") or 5432)
        where = ("-h", host, "-p", port, "-U", "postgres")
        self.run("pg_basebackup", "-D", str(self.data), *where, "-R", "-X", "stream", "-c", "fast", "--no-sync")

    def promote(self) -> None:
        self.run("pg_ctl", "-D", str(self.data), "-w", "promote")

    def caught_up(self, primary: Server) -> None:
        """Wait until everything that the primary has written is to be seen here."""
        (end,) = primary.execute("SELECT pg_current_wal_lsn()")[0]
        pg_server.eventually(lambda: self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") == [(True,)])

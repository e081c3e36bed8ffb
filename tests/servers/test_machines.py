"""Two servers on one Postgres and a load balancer, as in a deployment: sticky to nothing, upgraded without an error."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest_served import Serving
from support.pg_server import new_schema, with_options
from support.proxy import Proxy

from tenuto import AccessDenied, Tenuto
from tenuto.backends import connect
from tenuto.servers.auth import Keys

pytestmark = pytest.mark.slow


class Balancer(Proxy):
    """Takes each connection to the next server that accepts it."""

    def __init__(self, servers: list[Serving]) -> None:
        self.ports = [int(one.url.rpartition(":")[2]) for one in servers]
        self.passed = [0] * len(servers)
        self._turn = 0
        super().__init__(None)

    def _connect(self) -> socket.socket:
        for _ in range(200):
            self._turn += 1
            at = self._turn % len(self.ports)
            try:
                server = socket.create_connection(("127.0.0.1", self.ports[at]))
            except OSError:
                continue
            self.passed[at] += 1
            return server
        raise ConnectionRefusedError


def test_servers_are_replaced_one_by_one_and_no_client_notices(
    postgres: Any, start_server: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = with_options(postgres.url, schema=new_schema())
    keys = Keys(connect(store))
    key = keys.create("agents", tenant="acme", scopes=["write"]).api_key
    servers = [start_server(store, "--no-access-log") for _ in range(2)]
    for one in servers:
        one.ready()
    done = threading.Event()
    counts, errors = [0] * 3, []
    with Balancer(servers) as balancer:
        url = f"http://127.0.0.1:{balancer.port}"

        def work(at: int) -> None:
            with Tenuto(f"agent-{at}", url, api_key=key) as agent:
                while not done.is_set():
                    try:
                        counts[at] = agent.state.update("s", f"n{at}", lambda n: (n or 0) + 1)
                    except Exception as error:
                        errors.append(error)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
        for thread in threads:
            thread.start()
        watching = Tenuto("watcher", url, api_key=key)
        try:
            seen = watching.state.watch("s", after=0)
            for at in (0, 1):
                before = sum(counts)
                deadline = time.monotonic() + 60
                while sum(counts) < before + 30:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                assert next(seen).key.startswith("n")
                servers[at].stop()
                servers[at] = start_server(store, "--no-access-log")
                servers[at].ready()
                balancer.ports[at] = int(servers[at].url.rpartition(":")[2])
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert errors == []
        assert all(balancer.passed)
        assert [watching.state.get("s", f"n{at}") for at in range(3)] == counts, "each effect once"
        keys.revoke("agents")
        for one in (url, *(server.url for server in servers)):
            with pytest.raises(AccessDenied):
                Tenuto("x", one, api_key=key).open()
        watching.close()

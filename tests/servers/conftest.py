"""A store on the shared server process, its keys, and a plain HTTP client."""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tenuto import Tenuto
from tenuto.backends import connect
from tenuto.servers.auth import Keys

sys.path.insert(0, str(Path(__file__).parent))

from conftest_served import Serving


class Reply(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """One store, reached through the server and directly."""

    def __init__(self, http: Any, path: Path, **settings: Any) -> None:
        self.path = path
        self.name, self.token = http.store(path, **settings)
        self.address = http.address(self.name)
        self.backend = connect(str(path))
        self.keys = Keys(self.backend)

    def agent(self, tenant: str = "default") -> Tenuto:
        return Tenuto("direct", self.backend, tenant=tenant)

    def key(self, *scopes: str, tenant: str = "default", **options: Any) -> str:
        name = options.pop("name", f"key-{len(self.keys.list())}")
        return self.keys.create(name, tenant=tenant, scopes=scopes or ("write",), **options).api_key

    def ask(self, method: str, path: str, data: Any = None, key: str | None = "", **headers: str) -> Reply:
        """Send one request; `key` is the token unless given, None sends none."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["Authorization"] = f"Bearer {key or self.token}"
        body = data
        if data is not None and not isinstance(data, bytes):
            body = json.dumps(data).encode()
            sent.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(self.address + path, data=body, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return Reply(reply.status, reply.headers, reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())

    def link(self, question: str, *, by: str = "Ann", tenant: str = "default") -> str:
        token = self.agent(tenant).inbox.token(question, by=by)
        return f"/answer/{token}" if tenant == "default" else f"/tenants/{tenant}/answer/{token}"

    def get(self, path: str, **options: Any) -> Reply:
        return self.ask("GET", path, **options)

    def post(self, path: str, data: Any, **options: Any) -> Reply:
        return self.ask("POST", path, data, **options)


@pytest.fixture
def served(http: Any, tmp_path: Path) -> Iterator[Served]:
    found = Served(http, tmp_path / "store.db", max_body=2_000_000, timeout=2.0)
    yield found
    found.backend.close()


@pytest.fixture
def start_server() -> Iterator[Callable[..., Serving]]:
    """Start a `tenuto serve` of its own: URL of the store, then options."""
    made: list[Serving] = []

    def start(url: str, *options: str) -> Serving:
        made.append(Serving(url, *options))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.stop()


@pytest.fixture
def serving(start_server: Callable[..., Serving], tmp_path: Path) -> Serving:
    found = start_server(str(tmp_path / "store.db"))
    found.ready()
    return found

"""Who may do what: a matrix over every route, generated from the routes; and what a hostile client gets."""

import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from tenuto import AccessDenied, Tenuto
from tenuto.backends.remote import wire
from tenuto.kernel import keys
from tenuto.operations import Operation
from tenuto.servers.http.routes import ROUTES, method_of, scopes_of

KERNEL = {
    "read": ([[]], ("read", "write")),
    "scan": ([b"", None, 1, False], ("read", "write")),
    "entries": ([b"\x02s\x00\x02l\x00", None, 1, False], ("read", "write")),
    "watch": ([[], 0.01], ("read", "write")),
    "commit": ([[[0, b"\x02s\x00\x02k\x00", 0]], [], None], ("write",)),
    "streams": ([b"", None, 1], ("read", "write")),
    "load": ([[], []], ("write",)),
    "trim": ([b"\x02s\x00\x02l\x00", 1], ("write",)),
    "stats": ([], ("read", "write", "answer")),
    "check": ([], ()),
}
SCOPES = ("read", "write", "answer", "admin")
EXAMPLES: dict[Any, Any] = {str: "x", int: 1, bool: True}


def arguments(operation: Operation) -> dict[str, Any]:
    return {one.name: EXAMPLES.get(one.kind, "x") for one in operation.parameters if one.required}


def call(served: Any, route: str, key: str | None) -> Any:
    """Make a valid call of a route; return the reply."""
    if route.startswith("kernel "):
        verb = route.split()[1]
        return served.post(wire.path_of(verb), wire.packed(KERNEL[verb][0]), key=key)
    if route in ("/kernel", "/openapi.json"):
        return served.get(route, key=key)
    operation = ROUTES[route]
    given = arguments(operation)
    if operation.streams:
        given["timeout"] = "0.01s"
    if method_of(operation) == "POST":
        return served.post(route, given, key=key)
    return served.get(route + "?" + "&".join(f"{name}={value}" for name, value in given.items()), key=key)


def allowed(route: str) -> tuple[str, ...]:
    if route.startswith("kernel "):
        return (*KERNEL[route.split()[1]][1], "admin")
    return SCOPES if route in ("/kernel", "/openapi.json") else (*scopes_of(ROUTES[route]), "admin")


ALL = ["/kernel", "/openapi.json", *(f"kernel {verb}" for verb in wire.VERBS), *ROUTES]


def test_the_matrix_covers_every_route() -> None:
    assert len(ALL) == len(set(ALL)) > 50
    assert set(KERNEL) == set(wire.VERBS)


@pytest.mark.slow
@pytest.mark.scorecard(19)
def test_every_route_asks_for_a_key_of_its_scope(served: Any, figures: Any) -> None:
    keys = {scope: served.key(scope) for scope in SCOPES}
    revoked, expired = served.key("admin", name="gone"), served.key("admin", name="old", expires=0)
    served.keys.revoke("gone")
    wrong = [
        None,
        "tk_nonsense",
        "",
        revoked,
        expired,
        keys["admin"][:-1],
        keys["admin"] + "A",
        "tk_" + "0" * 12 + "_x",
    ]
    found: list[tuple[str, str, int]] = []
    for route in ALL:
        found += [
            (route, f"wrong {n}", status)
            for n, key in enumerate(wrong)
            if (status := call(served, route, key or None).status) != 401
        ]
        for scope, key in keys.items():
            status = call(served, route, key).status
            right = status != 403 if scope in allowed(route) else status == 403
            if not right or status >= 500 or status == 401:
                found.append((route, scope, status))
    print(found)
    figures(routes=len(ALL), calls_with_wrong_keys=len(ALL) * (len(wrong) + len(keys)), leaks=len(found))


@pytest.mark.scorecard(19)
def test_a_key_opens_its_own_tenant_alone(served: Any) -> None:
    served.agent("acme").state.set("s", "k", "of acme")
    served.agent("rival").state.set("s", "k", "of rival")
    key = served.key("admin", tenant="acme")
    assert served.get("/v1/state/get?scope=s&key=k", key=key).json["value"] == "of acme"
    for path in ("/v1/state/get?scope=s&key=k&tenant=rival", "/v1/state/get?scope=s&key=k&tenant_id=rival"):
        assert served.get(path, key=key).status == 400
    assert served.get("/v1/state/get?scope=s&key=k", key=key, X_Tenant="rival").json["value"] == "of acme"
    with Tenuto("x", served.address, api_key=key) as agent:
        assert agent.state.get("s", "k") == "of acme"
        with pytest.raises(AccessDenied, match="belongs to the tenant 'acme'"):
            agent.for_tenant("rival").state.get("s", "k")
    with Tenuto("x", served.address, api_key=key, tenant="acme") as agent:
        assert agent.state.get("s", "k") == "of acme"
    for tenant in ("tenuto:access", "rival"):
        with pytest.raises(AccessDenied):
            Tenuto("x", served.address, api_key=key, tenant=tenant).state.get("s", "k")


@pytest.mark.scorecard(19)
def test_an_admin_lists_and_revokes_the_keys_of_its_own_tenant_without_their_secrets(served: Any) -> None:
    admin, worker = served.key("admin", tenant="acme", name="boss"), served.key("write", tenant="acme", name="worker")
    other = served.key("write", tenant="rival", name="spy")
    listed = served.get("/v1/keys/list", key=admin)
    assert [one["name"] for one in listed.json] == ["boss", "worker"]
    for text in (admin, worker, worker.split("_", 2)[2]):
        assert text not in listed.body.decode()
    spy = next(one.id for one in served.keys.list() if one.name == "spy")
    for name in ("spy", spy, "nobody"):
        assert served.post("/v1/keys/revoke", {"key": name}, key=admin).status == 404
    assert served.get("/v1/runs/list", key=other).status == 200
    for headers in ({}, {"Idempotency_Key": "once"}, {"Idempotency_Key": "once"}):
        assert served.post("/v1/keys/revoke", {"key": "worker"}, key=admin, **headers).json["revoked_at"]
    assert served.get("/v1/runs/list", key=worker).status == 401
    confined = served.key("admin", tenant="acme", name="confined", prefix="case-")
    assert served.get("/v1/keys/list", key=confined).status == 403


@pytest.mark.scorecard(19)
def test_a_key_with_a_prefix_sees_its_scopes_alone(served: Any) -> None:
    served.agent().state.set("case-1", "k", 1)
    served.agent().state.set("other", "k", 2)
    key = served.key("write", prefix="case-")
    assert served.get("/v1/state/get?scope=case-1&key=k", key=key).json["value"] == 1
    for status in (
        served.get("/v1/state/get?scope=other&key=k", key=key).status,
        served.post("/v1/state/set", {"scope": "other", "key": "k", "value": 3}, key=key).status,
        served.get("/v1/runs/list", key=key).status,
        served.post("/v1/state/set", {"scope": "case", "key": "k", "value": 3}, key=key).status,
    ):
        assert status == 403
    with Tenuto("x", served.address, api_key=key) as agent:
        agent.state.set("case-2", "k", 5)
        with pytest.raises(AccessDenied, match="confined"):
            agent.state.get("other", "k")
    assert served.agent().state.get("other", "k") == 2


@pytest.mark.scorecard(19)
def test_a_read_key_reads_and_writes_nothing(served: Any) -> None:
    served.agent().state.set("s", "k", 1)
    with Tenuto("x", served.address, api_key=served.key("read")) as agent:
        assert agent.state.get("s", "k") == 1
        with pytest.raises(AccessDenied, match="needs an API key with the scope write"):
            agent.state.set("s", "k", 2)
    assert served.agent().state.get("s", "k") == 1


@pytest.mark.scorecard(19)
def test_a_key_that_is_revoked_or_rotated_ends_at_once(served: Any) -> None:
    key = served.key("write", name="a")
    with Tenuto("x", served.address, api_key=key) as agent:
        agent.state.set("s", "k", 1)
        new = served.keys.rotate("a", overlap="1h").api_key
        agent.state.set("s", "k", 2)
        old_id = key.split("_")[1]
        served.keys.revoke(old_id)
        with pytest.raises(AccessDenied):
            agent.state.set("s", "k", 3)
    with Tenuto("x", served.address, api_key=new) as agent:
        assert agent.state.get("s", "k") == 2
        newest = served.keys.rotate("a").api_key
        with pytest.raises(AccessDenied):
            agent.state.get("s", "k")
    assert served.get("/v1/state/get?scope=s&key=k", key=newest).status == 200


@pytest.mark.scorecard(19)
def test_the_store_holds_no_secret(served: Any) -> None:
    key = served.key("write")
    served.get("/v1/state/list?scope=s", key=key)
    shown = repr(served.keys.list())
    stored = b"".join(file.read_bytes() for file in served.path.parent.iterdir() if file.is_file())
    secret = key.split("_", 2)[2]
    assert secret.encode() not in stored
    assert secret not in shown
    assert served.keys.list()[0].last_used_at is not None


def test_pages_of_other_origins_are_refused(served: Any) -> None:
    path, host = "/v1/state/list?scope=s", urlsplit(served.address).netloc
    assert served.get(path, Origin=f"http://{host}").status == 200
    for origin in ("https://evil.example", "null", "http://[::", f"http://{host}.evil.example"):
        refused = served.get(path, Origin=origin)
        assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (403, None)


def test_another_host_name_is_refused(http: Any, served: Any, tmp_path: Any) -> None:
    name, token = http.store(tmp_path / "named.db", hosts=["localhost", "127.0.0.1"])
    served.address, served.token = http.address(name), token
    assert served.get("/v1/state/list?scope=s").status == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "[::", ""):
        assert served.get("/v1/state/list?scope=s", Host=host).status == 421
    assert served.get("/health", Host="evil.example", key=None).status == 200


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/", "/v1/state", "/v1/state/get/", "/v1//state/get", "/v1/../v1/state/get", "/v1/state/%2e%2e/get",
     "/v1/state/get%00", "/kernel/1/", "/kernel/2/read", "/kernel/1/read/x", "/kernel/../v1/stats", "/%ff", "/static/x"],
)  # fmt: skip
def test_a_path_that_is_not_there_is_refused(served: Any, path: str) -> None:
    assert served.get(path).status in (400, 404, 405)
    assert served.ask("DELETE", path).status in (400, 404, 405)


def test_a_method_that_does_not_fit_is_refused(served: Any) -> None:
    assert served.get("/v1/state/set").status == 405
    assert served.post("/v1/state/get", {"scope": "s", "key": "k"}).status == 405
    assert served.ask("PUT", "/v1/state/get").headers["Allow"] == "GET"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(served: Any) -> None:
    parts = urlsplit(served.address)
    head = (
        f"POST {parts.path}/v1/state/set HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {served.token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100000000\r\n\r\n"
    )
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as raw:
        raw.sendall(head.encode())
        assert b" 413 " in raw.recv(1000).split(b"\r\n")[0]
    chunked = head.replace("Content-Length: 100000000", "Transfer-Encoding: chunked")
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as raw:
        raw.sendall(chunked.encode())
        for _ in range(3):
            raw.sendall(b"f4240\r\n" + b"x" * 1_000_000 + b"\r\n")
        assert b" 413 " in raw.recv(1000).split(b"\r\n")[0]


def test_a_body_that_does_not_arrive_is_given_up(served: Any) -> None:
    parts = urlsplit(served.address)
    head = (
        f"POST {parts.path}/v1/state/set HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {served.token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as raw:
        raw.sendall(head.encode())
        assert b" 408 " in raw.recv(1000).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x93", b"\x90", wire.packed({}), wire.packed([1, 2, 3]), wire.packed([[[9, b"k", 0]], [], None]),
     wire.packed([[], [[0, "text", b"v", None]], None]), wire.packed([[], [[0, b"k", b"v", True]], None]),
     wire.packed([[], [[0, b"k"]], None]), wire.packed([[], [[0, b"\x02s\x00\x02k\x00", b"v", None]], b"short"]),
     wire.packed([[[0, b"k", True]], [], None]), b"\x91" * 5000],
)  # fmt: skip
def test_a_malformed_call_of_a_verb_is_refused(served: Any, body: bytes) -> None:
    for verb in wire.VERBS:
        if verb in ("stats", "check") and body == b"\x90":
            continue
        reply = served.post(wire.path_of(verb), body)
        assert reply.status == 400, (verb, body[:20], reply)
        assert wire.unpacked(reply.body)["message"].endswith(".")


def test_a_rate_limit_answers_429(http: Any, served: Any, tmp_path: Any) -> None:
    name, token = http.store(tmp_path / "rated.db", rate=3.0)
    served.address, served.token = http.address(name), token
    statuses = [served.get("/v1/state/list?scope=s") for _ in range(20)]
    limited = [one for one in statuses if one.status == 429]
    assert limited
    assert limited[0].headers["Retry-After"] == "1"


@pytest.mark.scorecard(19)
def test_the_audit_log_names_the_key_of_every_write_and_no_secret(http: Any, served: Any) -> None:
    key = served.key("write", name="auditor-7")
    served.post("/v1/state/set", {"scope": "s", "key": "k", "value": "canary-value"}, key=key)
    with Tenuto("x", served.address, api_key=key) as agent:
        agent.state.set("s", "k2", "canary-value")
        agent.kernel.load(agent.kernel.scan(keys.pack("s"), limit=1), {})
        agent.kernel.trim(keys.pack("s", "log"), 1)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        lines = [line for line in http.lines() if '"audit"' in line and "auditor-7" in line]
        if len(lines) == 4:
            break
        time.sleep(0.02)
    paths = ("/v1/state/set", "/kernel/1/commit", "/kernel/1/load", "/kernel/1/trim")
    assert [next(path for path in paths if path in line) for line in lines] == list(paths)
    whole = "\n".join(http.lines())
    assert "canary-value" not in whole
    assert key not in whole
    assert served.token not in whole

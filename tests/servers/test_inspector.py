"""The inspector's files: their headers, their size, how they are built, and that no page of another origin can use them."""

import gzip
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Served
from conftest_served import Serving, ask_question

from tenuto.servers.http.routes import ROUTES, method_of
from tenuto.servers.inspector import file_at

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src/tenuto/servers/inspector/static"
FILES = ("", "app.js", "app.css", "icon.svg")


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_served_without_a_key_and_says_what_it_may_do(served: Served, name: str) -> None:
    reply = served.get(f"/inspector/{name}", key=None)
    assert reply.status == 200
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in reply.headers["Content-Security-Policy"]
    assert reply.headers["X-Frame-Options"] == "DENY"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Referrer-Policy"] == "no-referrer"
    assert served.get(f"/inspector/{name}", key=None, If_None_Match=reply.headers["ETag"]).status == 304


def test_its_address_is_found_below_any_prefix(served: Served) -> None:
    assert served.get("/", key=None).body == served.get("/inspector/", key=None).body  # urllib follows the redirect
    assert served.get("/inspector", key=None).status == 200
    page = served.get("/inspector/", key=None).body.decode()
    assert re.findall(r'(?:href|src)="([^"]+)"', page) == ["icon.svg", "app.css", "app.js"]  # relative, each of them


@pytest.mark.parametrize(
    "path", ["nothing.js", "../auth.py", "%2e%2e/%2e%2e/auth.py", "..%2fauth.py", "static/app.js", "app.js/"]
)
def test_nothing_else_is_served(served: Served, path: str) -> None:
    assert served.get(f"/inspector/{path}", key=None).status in (401, 404)
    assert file_at(f"/inspector/{path}") is None


def test_a_public_address_with_a_path_works_with_a_proxy_that_keeps_it(http: Any, tmp_path: Path) -> None:
    served = Served(http, tmp_path / "store.db", public_url="https://example.com/tools/tenuto")
    assert served.get("/tools/tenuto/inspector/", key=None).status == 200
    assert served.get("/tools/tenuto/v1/runs/list").json == []
    assert served.get("/v1/runs/list").json == []
    served.backend.close()


def test_it_is_small() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in STATIC.iterdir()}
    print(sizes, sum(sizes.values()))
    assert sum(sizes.values()) <= 100_000


def test_it_asks_no_other_host_and_evaluates_no_text() -> None:
    program = (STATIC / "app.js").read_text()
    addresses = set(re.findall(r"https?://[^\"'`\s)]+", program + (STATIC / "app.css").read_text()))
    assert addresses <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/1998/Math/MathML",
    }
    assert re.findall(r"\beval\(|new Function|document\.write|\.cookie\b|insertAdjacentHTML", program) == []
    source = "".join(path.read_text() for path in (ROOT / "inspector/src").glob("*.js"))
    assert re.findall(r"innerHTML|dangerously|\.cookie\b|localStorage\.setItem\(.*key", source) == []


def test_the_committed_files_were_built_from_these_sources() -> None:
    """Without node: the program names the digest of what it was built from."""
    digest = hashlib.sha256()
    names = [f"src/{path.name}" for path in sorted((ROOT / "inspector/src").iterdir())]
    for name in (*names, "package-lock.json"):
        digest.update(f"{name}\0".encode() + (ROOT / "inspector" / name).read_bytes())
    assert f"// Sources: {digest.hexdigest()}\n" in (STATIC / "app.js").read_text(), (
        "run: cd inspector && npm ci && node build.mjs"
    )


@pytest.mark.slow
def test_the_committed_files_are_what_the_sources_build(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("NO NPM: the built inspector is NOT COMPARED with its sources")
    folder = tmp_path / "inspector"
    shutil.copytree(ROOT / "inspector", folder, ignore=shutil.ignore_patterns("node_modules"))
    got = subprocess.run(
        [npm, "ci", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True, check=False
    )
    if got.returncode:
        pytest.skip(f"NO PACKAGES: the built inspector is NOT COMPARED with its sources: {got.stderr[-300:]}")
    subprocess.run(["node", "build.mjs", str(tmp_path / "built")], cwd=folder, check=True)
    built = {path.name: path.read_bytes() for path in (tmp_path / "built").iterdir()}
    committed = {path.name: path.read_bytes() for path in STATIC.iterdir()}
    assert sorted(built) == sorted(committed)
    assert [name for name in built if built[name] != committed[name]] == [], (
        "run: cd inspector && npm ci && node build.mjs"
    )


# -- pages of other origins ------------------------------------------------------------------


def test_a_page_of_another_origin_can_neither_answer_nor_read(served: Served) -> None:
    question = ask_question(served.agent())
    body = {"question": question.id, "answer": "yes"}
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        assert served.post("/v1/inbox/answer", body, Origin=origin).status == 403
        assert served.get("/v1/inbox/list", Origin=origin).status == 403
    forged = served.ask(
        "POST",
        "/v1/inbox/answer",
        json.dumps(body).encode(),
        Content_Type="text/plain",
        key=None,
        Cookie="key=" + served.token,
    )
    assert forged.status == 401, "a form of another page brings no key: there is no cookie"
    assert served.agent().inbox.get(question.id).status == "pending"
    for path in ("/inspector/", "/v1/runs/list"):
        reply = served.get(path)
        assert reply.headers["Set-Cookie"] is None
        assert reply.headers["Access-Control-Allow-Origin"] is None


@pytest.mark.slow
def test_no_get_changes_anything(served: Served) -> None:
    agent = served.agent()
    question = ask_question(agent, context={"a": 1})
    agent.thread("asking").append({"role": "user", "content": "hello"})
    agent.checkpoint.create("trip", {"a": 1}, thread="asking")
    agent.memory.remember("Ann likes tea", user="ann")
    names = {
        "run": "asking",
        "question": question.id,
        "thread": "asking",
        "query": "tea",
        "user": "ann",
        "timeout": "0.01s",
    }

    def held() -> list[tuple[bytes, int]]:
        return [(one.key, one.version) for one in agent.kernel.scan(b"", limit=5_000)]

    before = held()
    asked = 0
    for path, operation in ROUTES.items():
        known = {one.name for one in operation.parameters}
        query = "&".join(f"{name}={value}" for name, value in names.items() if name in known)
        reply = served.get(f"{path}?{query}")
        if method_of(operation) == "POST":
            assert reply.status == 405, path
        asked += reply.status == 200
    assert asked > 20
    assert held() == before


def test_a_read_only_server_refuses_to_write(start_server: Callable[..., Serving], tmp_path: Path) -> None:
    serving = start_server(str(tmp_path / "store.db"), "--read-only")
    serving.ready()
    from tenuto import AccessDenied, Tenuto

    client = Tenuto("x", serving.url, api_key=serving.token)
    with pytest.raises(AccessDenied):
        client.state.set("a", "b", 1)
    assert client.state.get("a", "b") is None
    client.close()
    serving.stop()
    assert f"inspector {serving.url}/inspector/#key={serving.token}\n" in serving.lines

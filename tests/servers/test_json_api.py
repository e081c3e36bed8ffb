"""The JSON API: values, versions, idempotency, streams, pages. Every call goes through a real server process."""

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from conftest_served import ask_question

from tenuto import Tenuto
from tenuto.operations import OPERATIONS
from tenuto.servers.http.routes import ROUTES


def test_a_value_is_set_and_read_with_its_version(served: Any) -> None:
    done = served.post("/v1/state/set", {"scope": "s", "key": "k", "value": {"a": [1, None]}})
    assert (done.status, done.json, done.headers["ETag"]) == (200, {"version": 1}, '"1"')
    found = served.get("/v1/state/get?scope=s&key=k")
    assert found.json["value"] == {"a": [1, None]}
    assert (found.json["writer"], found.headers["ETag"]) == ("token", '"1"')
    assert served.get("/v1/state/get?scope=s&key=k", If_None_Match='"1"').status == 304
    assert served.agent().state.get("s", "k") == {"a": [1, None]}


def test_an_etag_guards_a_write(served: Any) -> None:
    path, value = "/v1/state/set", {"scope": "s", "key": "k", "value": 1}
    assert served.post(path, value, If_None_Match="*").status == 200
    assert served.post(path, value, If_None_Match="*").status == 412
    assert served.post(path, value, If_Match='"1"').json == {"version": 2}
    late = served.post(path, value, If_Match='"1"')
    assert late.status == 412
    assert "nothing was written" in late.json["detail"]
    assert served.post(path, {**value, "expect": 1}).status == 409
    for wrong in ("1", 'W/"1"', "*", '"1", "2"'):
        assert served.post(path, value, If_Match=wrong).status == 400
    assert served.post("/v1/state/delete", {"scope": "s", "key": "k"}, If_Match='"2"').status == 400


def test_a_request_sent_again_has_no_second_effect(served: Any) -> None:
    message = {"thread": "t", "content": "hello"}
    first = served.post("/v1/thread/append", message, Idempotency_Key="a-1")
    again = served.post("/v1/thread/append", message, Idempotency_Key="a-1")
    assert (first.status, again.status, again.body) == (200, 200, first.body)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert first.headers["Idempotency-Replayed"] is None
    assert served.agent().thread("t").count() == 1
    other = served.post("/v1/thread/append", {**message, "content": "other"}, Idempotency_Key="a-1")
    assert other.status == 400
    assert served.post("/v1/thread/append", message, Idempotency_Key="a-2").status == 200
    assert served.agent().thread("t").count() == 2
    assert served.post("/v1/state/set", {"scope": "s", "key": "k"}, Idempotency_Key="a-3").status == 400
    assert served.post("/v1/state/set", {"scope": "s", "key": "k", "value": 1}, Idempotency_Key="a-3").status == 200


def test_a_request_that_was_begun_and_has_no_reply_is_refused(served: Any) -> None:
    from tenuto.servers.auth import Access
    from tenuto.servers.http.idempotency import Once

    key = served.key("write", name="k1")
    access = served.keys.verify(key)
    assert isinstance(access, Access)
    import hashlib

    body = json.dumps({"scope": "s", "key": "k", "value": 1}).encode()
    content = hashlib.blake2b(b"state set\x00" + body, digest_size=16).digest()
    once = Once(served.backend, access, "x", content)
    Tenuto("k1", once, tenant="default").state.set("s", "k", 1)  # and then the server was killed
    again = served.post("/v1/state/set", body, key=key, Idempotency_Key="x", Content_Type="application/json")
    assert again.status == 409
    assert served.agent().state.entry("s", "k").version == 1


def test_names_may_have_any_characters(served: Any) -> None:
    for name in ("../../etc", "a/b", "%2e%2e", "'; DROP TABLE records; --", "\n", "😀", "a&b=c#d"):
        assert served.post("/v1/state/set", {"scope": "s", "key": name, "value": name}).status == 200
        assert served.get(f"/v1/state/get?scope=s&key={quote(name, safe='')}").json["value"] == name
    assert served.post("/v1/state/set", {"scope": "s", "key": "\x00", "value": 1}).status == 400


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/state/get", "scope=s"),
        ("/v1/state/get", "scope=s&key=k&more=1"),
        ("/v1/state/get", "scope=s&scope=t&key=k"),
        ("/v1/state/get", "scope=s&key=%00"),
        ("/v1/state/get", "scope=s&key=%ff"),
        ("/v1/state/get", "scope=&key=k"),
        ("/v1/state/history", "scope=s&key=k&limit=many"),
        ("/v1/state/history", "scope=s&key=k&limit=99999999999999999999999"),
        ("/v1/inbox/list", "status=nonsense"),
        ("/v1/memory/list", "superseded=perhaps"),
        ("/v1/state/watch", "scope=s&after=-1"),
    ],
)
def test_a_query_that_is_not_valid_is_refused_with_a_sentence(served: Any, path: str, query: str) -> None:
    refused = served.get(f"{path}?{query}")
    assert refused.status == 400
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json["detail"].endswith(".")
    assert refused.json["request_id"] == refused.headers["X-Request-Id"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{", 400),
        (b'{"scope": "s", "key": "k"}', 400),
        (b'{"scope": 7, "key": "k", "value": 1}', 400),
        (b'{"scope": "s", "key": "k", "value": NaN}', 400),
        (b'{"scope": "s", "key": "\\ud800", "value": 1}', 400),
        (b'{"scope": "s", "key": "k", "value": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
        (b'{"scope": "s", "key": "k", "value": "\xff"}', 400),
        (b'{"scope": "s", "key": "k", "value": 1, "expect": true}', 400),
        (b'{"scope": "s", "key": "k", "value": 1, "ttl": "soon"}', 400),
    ],
)
def test_a_body_that_is_not_valid_is_refused(served: Any, body: bytes, status: int) -> None:
    refused = served.post("/v1/state/set", body, Content_Type="application/json")
    assert refused.status == status, refused
    assert served.agent().state.keys("s") == []


def test_only_json_is_accepted_so_a_form_of_another_page_writes_nothing(served: Any) -> None:
    body = b'{"scope": "s", "key": "k", "value": 1}'
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert served.post("/v1/state/set", body, Content_Type=media).status == 415


def test_a_watch_is_a_stream_of_events_that_resumes(served: Any) -> None:
    for n in range(3):
        served.agent().state.set("s", "k", n)
    found = served.get("/v1/state/watch?scope=s&after=0&timeout=0.1s")
    assert found.headers["Content-Type"] == "text/event-stream"
    events = [part.split("\n") for part in found.body.decode().split("\n\n") if part.startswith("id:")]
    assert [(head, json.loads(data.removeprefix("data: "))["value"]) for head, data in events] == [
        ("id: 1", 0),
        ("id: 2", 1),
        ("id: 3", 2),
    ]
    later = served.get("/v1/state/watch?scope=s&after=0&timeout=0.1s", Last_Event_ID="2").body
    assert b"id: 3" in later
    assert b"id: 2" not in later


def test_every_watch_resumes_after_an_event(served: Any) -> None:
    """Each stream of the API numbers its events, and `Last-Event-ID` continues after one."""
    agent = served.agent()
    for n in range(3):
        agent.state.set("x", "k", n)
        agent.thread("x").append({"role": "user", "content": f"{n}"})
    with agent.run("x") as run:
        for n in range(3):
            run.emit(n)
    names = {
        "/v1/state/watch": "scope", "/v1/thread/watch": "thread", "/v1/runs/watch": "run", "/v1/runs/follow": "run",
    }  # fmt: skip
    assert {path for path, one in ROUTES.items() if one.streams} == {*names, "/v1/watch"}, "the last begins now"
    for path, name in names.items():
        ask = f"{path}?{name}=x&after=0&timeout=0.05s"
        ids = [line for line in served.get(ask).body.decode().splitlines() if line.startswith("id: ")]
        assert len(ids) >= 3, (path, ids)
        later = served.get(ask, Last_Event_ID=ids[1].removeprefix("id: ")).body.decode()
        assert [line for line in later.splitlines() if line.startswith("id: ")] == ids[2:], path
        assert served.get(ask, Last_Event_ID="x").status == 400


def test_a_watch_shows_a_write_of_another_process(served: Any) -> None:
    parts = urlsplit(served.address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    headers = {"Authorization": f"Bearer {served.token}"}
    connection.request("GET", parts.path + "/v1/state/watch?scope=s&after=0", headers=headers)
    reply = connection.getresponse()
    assert reply.readline() == b": open\n"
    served.agent().state.set("s", "k", "news")
    lines = [reply.readline() for _ in range(3)]
    assert lines[1] == b"id: 1\n"
    assert b"news" in lines[2]
    connection.close()


def test_lists_have_a_next_page(served: Any) -> None:
    agent = served.agent()
    for n in range(5):
        with agent.run(f"r{n}"):
            pass
    seen: list[str] = []
    path: str | None = "/v1/runs/list?limit=2"
    while path:
        page = served.get(path)
        seen += [one["id"] for one in page.json]
        link = page.headers["Link"]
        path = link[1 : link.index(">")] if link else None
    assert sorted(seen) == [f"r{n}" for n in range(5)]


def test_the_writer_and_the_correlation_are_the_requests(served: Any) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    key = served.key("write", name="reporter")
    done = served.post("/v1/state/set", {"scope": "s", "key": "k", "value": 1}, key=key, traceparent=trace)
    assert done.headers["traceparent"] == trace
    entry = served.agent().state.entry("s", "k")
    assert (entry.writer, entry.correlation_id) == ("reporter", "0af7651916cd43dd8448eb211c80319c")


def test_no_operation_on_files_is_served() -> None:
    assert {name for name, one in OPERATIONS.items() if one.local} >= {"memory load", "progress read", "progress write"}
    assert not {one.name for one in ROUTES.values()} & {"memory load", "progress read", "progress write"}
    assert len(ROUTES) > len(OPERATIONS) / 2


def test_a_person_answers_by_a_link(served: Any) -> None:
    question = ask_question(served.agent(), choices=["yes", "no <b>"])
    link = served.link(question.id)
    shown = served.get(link, key=None)
    assert (shown.status, shown.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"no &lt;b&gt;" in shown.body
    assert b"<script" not in shown.body
    assert served.agent().inbox.get(question.id).status == "pending", "a GET decides nothing"
    assert served.post(link, b"choice=7", key=None).status == 400
    for wrong in (
        link[:-1],
        link + "A",
        "/answer/x",
        "/answer/%00",
        "/answer/a.b",
        "/tenants/acme" + link,
        "/tenants/x/y",
    ):
        assert served.get(wrong, key=None).status in (400, 404)
        assert served.post(wrong, b"choice=1", key=None).status in (400, 404)
    done = served.post(link, b"choice=1", key=None)
    assert b"answered by Ann" in done.body
    assert served.agent().inbox.get(question.id).answer == "no <b>"
    assert served.post(link, b"choice=0", key=None).status == 409, "a link is used once"


def test_the_page_of_a_link_has_what_it_takes_to_decide_and_takes_what_the_schema_wants(served: Any) -> None:
    agent = served.agent()
    first = agent.ask("Invoice 1 lacks a receipt", to="ann", about="vendor:acme")
    agent.inbox.answer(first.id, "approve", by="ann")
    asked = agent.ask(
        "Which discount?", to="ann", about="vendor:acme", evidence=["scan <7>"], policy="At most 25 %.", blocks="deal:7",
        schema={"type": "object", "properties": {"discount": {"type": "number"}}, "required": ["discount"]},
    )  # fmt: skip
    link = served.link(asked.id, by="ann")
    page = served.get(link, key=None).body.decode()
    for shown in ("scan &lt;7&gt;", "At most 25 %.", "deal:7", "approve", "discount", "Last time"):
        assert shown in page, shown
    for wrong in (b"answer=a+lot", b"answer=25", b"answer=%7B%22discount%22%3A+%22x%22%7D"):
        assert served.post(link, wrong, key=None).status == 400
    assert served.post(link, b"answer=%7B%22discount%22%3A+0.2%7D", key=None).status == 200
    assert agent.inbox.get(asked.id).answer == {"discount": 0.2}
    chosen = agent.ask("Pay?", to="ann", choices=["yes", 1])
    page = served.get(served.link(chosen.id, by="ann") + "?answer=1", key=None).body.decode()
    assert page.count("autofocus") == 1
    assert 'value="1" autofocus' in page
    assert served.get(served.link(chosen.id, by="ann") + "?answer=%ff&" + "a=b&" * 20, key=None).status == 200


def test_a_link_of_another_tenant_names_it(served: Any) -> None:
    question = ask_question(served.agent("acme"), to="ann")
    link = served.link(question.id, by="ann", tenant="acme")
    assert served.post(link, b"answer=yes", key=None).status == 200
    assert served.agent("acme").inbox.get(question.id).answer == "yes"

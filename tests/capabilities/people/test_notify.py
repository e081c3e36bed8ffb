"""Notification: written with the question, delivered to real receivers, retried, never lost."""

import base64
import email
import email.policy
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from standardwebhooks import Webhook
from support.long import size
from support.receivers import Receiver, http_receiver, smtp_receiver

from tenuto import Conflict, Damaged, InvalidInput, NotFound, Tenuto
from tenuto.capabilities.people import question_key
from tenuto.capabilities.people.notify import senders
from tenuto.kernel.contract import Delete, Put
from tenuto.kernel.work import perform

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    with http_receiver() as one:
        yield one


def test_a_webhook_is_signed_as_the_reference_library_expects(agent: Tenuto, receiver: Receiver) -> None:
    agent.notify.to("finance", receiver.url, secret="env:HOOK_SECRET")
    asked = agent.ask("Pay ünvoice?", to="finance", context={"amount": 5}, choices=["yes", "no"])
    assert len(agent.notify.outbox()) == 1
    assert agent.notify.deliver() == 1
    assert (agent.notify.deliver(), agent.notify.outbox()) == (0, [])
    [(headers, body)] = receiver.got
    told: Any = Webhook(SECRET).verify(body, headers)
    assert told["type"] == "question.asked"
    assert (told["data"]["id"], told["data"]["metadata"]["context"]) == (asked.id, {"amount": 5})
    assert [one.what for one in agent.inbox.history(asked.id)] == ["asked", "notified"]
    agent.inbox.answer(asked.id, "yes", by="ann")
    agent.notify.deliver()
    assert json.loads(receiver.got[1][1])["type"] == "question.answered"
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(SECRET).verify(body + b" ", headers)


def test_slack_gets_text_and_buttons_with_one_time_links(agent: Tenuto, receiver: Receiver) -> None:
    agent.notify.to("ann", receiver.url, kind="slack", links="https://agents.example.com")
    asked = agent.ask("Pay <b>?", to="ann", choices=["yes", "no"])
    agent.notify.deliver()
    told = json.loads(receiver.got[0][1])
    assert told["text"] == "Question: Pay &lt;b&gt;?"
    [_, actions] = told["blocks"]
    buttons = {one["text"]["text"]: one["url"] for one in actions["elements"]}
    assert set(buttons) == {"yes", "no"}
    token = buttons["yes"].removeprefix("https://agents.example.com/answer/").removesuffix("?answer=yes")
    assert agent.inbox.redeem(token, "yes").by == "ann"
    with pytest.raises(Conflict):
        agent.inbox.redeem(token, "no")
    assert agent.inbox.get(asked.id).answer == "yes"


def test_a_group_gets_no_link_because_a_link_is_for_one_person(agent: Tenuto, receiver: Receiver) -> None:
    agent.inbox.group("finance", ["ann", "bob"])
    agent.notify.to("finance", receiver.url, kind="slack", links="https://agents.example.com")
    agent.notify.to("ann", f"{receiver.url}/ann", kind="slack", links="https://agents.example.com")
    agent.ask("Pay?", to="finance", choices=["yes", "no"])
    assert agent.notify.deliver() == 2
    assert sorted(len(json.loads(body)["blocks"]) for _, body in receiver.got) == [1, 2]


def test_an_approval_token_is_for_one_person_once_until_it_expires(agent: Tenuto, clock: Any) -> None:
    asked = agent.ask("Pay?", to=["ann", "bob"], quorum=2, choices=["yes", "no"])
    token = agent.inbox.token(asked.id, by="ann", expires="1h")
    assert (agent.inbox.approval(token).question, agent.inbox.approval(token).by) == (asked.id, "ann")
    with pytest.raises(InvalidInput, match="choice"):
        agent.inbox.redeem(token, "maybe")
    assert agent.inbox.redeem(token, "yes").status == "pending"
    with pytest.raises(Conflict, match="already used"):
        agent.inbox.redeem(token, "no")
    late = agent.inbox.token(asked.id, by="bob", expires="1h")
    told, _, signature = late.partition(".")
    for forged in ("", "x", token[:-2] + "AA", f"{told}.{told}", f".{signature}", None):
        with pytest.raises(InvalidInput, match="not valid"):
            agent.inbox.approval(forged)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not valid"):
        agent.for_tenant("other").inbox.approval(late)
    clock.advance(3_601)
    with pytest.raises(InvalidInput, match="expired"):
        agent.inbox.redeem(late, "yes")


def test_an_e_mail_arrives(agent: Tenuto) -> None:
    with smtp_receiver() as (port, letters):
        agent.notify.to("ann", f"smtp://127.0.0.1:{port}/?from=agent@example.com&to=ann@example.com")
        agent.ask("Pay\nnow?", to="ann", context={"amount": 5})
        assert agent.notify.deliver() == 1
    [letter] = letters
    read = email.message_from_bytes(letter.content, policy=email.policy.default)
    assert (letter.rcpt_tos, read["subject"]) == (["ann@example.com"], "Question: Pay now?")
    assert '"amount": 5' in read.get_content()
    assert read["message-id"].endswith("@tenuto>")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of modules that apprise imports
def test_apprise_urls_are_delivered(agent: Tenuto, receiver: Receiver) -> None:
    agent.notify.to("ann", receiver.url.replace("http://", "json://"))
    assert agent.notify.test("ann") == []
    assert "test" in json.loads(receiver.got[0][1])["message"]


def test_a_failed_delivery_backs_off_dies_and_can_be_retried(agent: Tenuto, clock: Any, receiver: Receiver) -> None:
    agent.notify.to("ann", receiver.url, secret="env:HOOK_SECRET")
    asked = agent.ask("Pay?", to="ann")
    delays = []
    for receiver.status in (500, 302, *[503] * 10):
        assert agent.notify.deliver() == 0
        waiting = agent.notify.outbox()
        if waiting:
            assert "HTTP" in str(waiting[0].error)
            delays.append(waiting[0].due.timestamp() - clock.time())
            clock.advance(delays[-1])
    assert [round(one) for one in delays[:4]] == [10, 20, 40, 80]
    assert max(delays) == pytest.approx(3_600)
    [dead] = agent.notify.dead()
    assert agent.inbox.history(asked.id)[-1].what == "not delivered"
    receiver.status = 204
    agent.notify.retry(dead.id)
    assert (agent.notify.deliver(), agent.notify.dead()) == (1, [])
    assert receiver.ids == [dead.id]
    with pytest.raises(NotFound):
        agent.notify.retry(dead.id)


def test_a_delivery_that_died_after_sending_is_repeated_with_the_same_id(
    agent: Tenuto, clock: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenuto.capabilities.people.notify import outbox

    agent.notify.to("ann", receiver.url, secret="env:HOOK_SECRET")
    agent.ask("Pay?", to="ann")
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "sent", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            agent.notify.deliver()
    assert agent.notify.deliver() == 0, "it is claimed"
    clock.advance(61)
    assert agent.notify.deliver() == 1
    assert len(receiver.ids) == 2
    assert len(set(receiver.ids)) == 1


def test_a_channel_that_fails_holds_up_no_other_one(agent: Tenuto, clock: Any, receiver: Receiver) -> None:
    with http_receiver() as other:
        agent.notify.to("ann", receiver.url, secret="env:HOOK_SECRET")
        agent.notify.to("bob", other.url, secret="env:HOOK_SECRET")
        receiver.status = 503
        for n in range(5):
            agent.ask(f"Pay {n}?", to=["ann", "bob"])
        assert agent.notify.deliver(limit=100) == 5
        assert (len(other.ids), receiver.tried) == (5, 1)
        assert sorted(one.attempts for one in agent.notify.outbox()) == [0, 0, 0, 0, 1]
        receiver.status = 204
        clock.advance(61)
        assert agent.notify.deliver() == 5
        assert len(set(receiver.ids)) == 5


def test_the_notifications_of_a_forgotten_user_are_gone(agent: Tenuto, clock: Any, receiver: Receiver) -> None:
    agent.notify.to("ops", receiver.url, secret="env:HOOK_SECRET")
    gone = agent.ask("Refund u-123?", to="ops", about=["u-123"])
    agent.inbox.answer(gone.id, "to u-123", by="ann")
    kept = agent.ask("Restart?", to="ops")
    agent.forget_user("u-123")
    assert [one.question for one in agent.notify.outbox()] == [kept.id]
    agent.kernel.commit([], [Delete(question_key(kept.id))])  # as by an older version
    assert (agent.notify.deliver(), agent.notify.outbox(), receiver.tried) == (0, [], 0)


def test_a_slow_receiver_lets_timers_fire_meanwhile(
    agent: Tenuto, clock: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenuto.capabilities.people import due

    agent.notify.to("ann", receiver.url, secret="env:HOOK_SECRET")
    for n in range(5):
        agent.ask(f"Pay {n}?", to="ann")
    monkeypatch.setattr(due, "_TURN", -1.0)
    assert perform(agent.tasks._chores(), agent.clock) == 0, "its turn is over at once"
    monkeypatch.setattr(due, "_TURN", 60.0)
    assert perform(agent.tasks._chores(), agent.clock) == 5


def test_a_receiver_that_never_ends_its_answer_is_given_up(agent: Tenuto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "_WHOLE", 0.3)
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                number = 0
                while not over.wait(0.05):
                    connection.sendall(b"X-More: 1\r\n" if number else b"HTTP/1.1 200 OK\r\n")
                    number = 1

        dripping = threading.Thread(target=drip)
        dripping.start()
        agent.notify.to("ann", f"http://127.0.0.1:{server.getsockname()[1]}/", secret="env:HOOK_SECRET")
        agent.ask("Pay?", to="ann")
        assert agent.notify.deliver() == 0
        assert "longer than 0.3 s" in str(agent.notify.outbox()[0].error)
        over.set()
        dripping.join()
    for thread in threading.enumerate():
        if thread.name == "tenuto-delivery":
            thread.join(30)


def test_a_test_message_is_no_question(agent: Tenuto, receiver: Receiver) -> None:
    agent.notify.to("finance", receiver.url, secret="env:HOOK_SECRET")
    agent.notify.to("finance", f"{receiver.url}/slack", kind="slack")
    assert agent.notify.test("finance") == []
    told = [json.loads(body) for _, body in receiver.got]
    assert sorted(one.get("type", "slack") for one in told) == ["question.test", "slack"]
    assert any(str(one.get("text")).startswith("Test: ") for one in told)
    receiver.status = 500
    assert len(agent.notify.test("finance")) == 2


def test_the_user_of_an_e_mail_channel_may_be_an_address(agent: Tenuto) -> None:
    from tenuto.capabilities.people.notify.channels import mail_of

    assert mail_of("smtp://ann%40example.com@host/?from=a@b&to=c@d").user == "ann@example.com"


def test_a_channel_is_not_flooded_and_an_address_hears_once(agent: Tenuto, clock: Any, receiver: Receiver) -> None:
    agent.inbox.group("finance", ["ann", "bob"])
    for name in ("finance", "ann", "bob"):
        agent.notify.to(name, receiver.url, secret="env:HOOK_SECRET", rate="2/m")
    for n in range(5):
        agent.ask(f"Pay {n}?", to="finance")
    counts = []
    for _ in range(4):
        counts.append(agent.notify.deliver())
        clock.advance(61)
    assert counts == [2, 2, 1, 0]
    assert len(set(receiver.ids)) == len(receiver.ids) == 5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of modules that apprise imports
@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("https://example.com", {}, "signed"),
        ("https://example.com", {"secret": "whsec_abc"}, "not stored"),
        ("nonsense", {}, "unknown channel"),
        ("nonsense://x", {}, "unknown channel"),
        ("https://example.com", {"kind": "pigeon"}, "unknown channel"),
        ("file:///etc/passwd", {"kind": "slack"}, "http"),
        ("smtp://host", {}, "e-mail"),
        ("smtp://ann@host/?from=a@b&to=c@d", {}, "password"),
        ("smtp://ann:pw@host/?from=a@b&to=c@d", {"secret": "env:X"}, "password"),
        ("https://hooks.slack.com/x", {"secret": "env:X"}, "no secret"),
        ("https://example.com", {"secret": "env:X", "rate": "often"}, "rate"),
        ("", {}, "URL"),
        ("http://[::1", {"secret": "env:X"}, "URL"),
        ("smtp://host/?from=a@b&to=c@d%0d%0aBcc:%20e@f", {}, "address"),
        ("https://example.com", {"secret": 7}, "secret must be a text"),
        ("https://example.com", {"secret": "env:X", "links": "example.com"}, "links"),
    ],
)
def test_bad_channels_are_refused(agent: Tenuto, url: str, options: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        agent.notify.to("ann", url, **options)
    assert agent.notify.channels() == []
    with pytest.raises(NotFound):
        agent.notify.test("ann")


def test_a_missing_secret_is_an_error_of_the_delivery_and_loses_nothing(agent: Tenuto, clock: Any) -> None:
    agent.notify.to("ann", "https://example.com/${NO_SUCH_PATH}", secret="env:NO_SUCH_SECRET")
    agent.ask("Pay?", to="ann")
    assert agent.notify.deliver() == 0
    assert "NO_SUCH_SECRET is not set" in str(agent.notify.outbox()[0].error)
    assert agent.notify.remove("ann") == 1


def test_a_notification_that_cannot_be_read_keeps_no_other_one_waiting(agent: Tenuto, receiver: Receiver) -> None:
    agent.notify.to("ann", receiver.url, secret="env:HOOK_SECRET")
    asked = [agent.ask(f"Pay {n}?", to="ann") for n in range(3)]
    first, second, _ = agent.notify.outbox()
    agent.kernel.commit([], [Put(first.key, b"no notification")])
    broken = next(one for one in asked if one.id == second.question)
    agent.kernel.commit([], [Put(question_key(broken.id), b"no question")])
    with pytest.raises(Damaged):
        agent.notify.deliver()
    assert len(receiver.got) == 1


def test_a_secret_is_taken_without_its_newline_and_never_told(
    agent: Tenuto, clock: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_PATH", "b0f3s3cret\n")  # as from a file
    agent.notify.to("ann", receiver.url + "/${HOOK_PATH}", kind="slack")
    assert agent.notify.test("ann") == []
    for secret in ("b0f3 s3cret", "b0f3s3cret"):  # no URL; refused
        monkeypatch.setenv("HOOK_PATH", secret)
        receiver.status = 500
        asked = agent.ask(f"Pay {len(secret)}?", to="ann")
        agent.notify.deliver()
        told = [str(one.error) for one in agent.notify.outbox()] + agent.notify.test("ann")
        assert len(told) > 1
        assert "s3cret" not in str(told)
    monkeypatch.setenv("DOWN", "s3cret.invalid")
    agent.notify.to("bob", "smtp://${DOWN}/?from=a@example.com&to=b@example.com")
    assert "s3cret" not in str(agent.notify.test("bob"))
    assert asked.open


@pytest.mark.races
def test_replicas_deliver_each_notification_once(
    agent: Tenuto, client: Callable[..., Tenuto], clock: Any, receiver: Receiver
) -> None:
    agent.notify.to("lead", receiver.url, secret="env:HOOK_SECRET")
    count, replicas = size(12, 200), [client(f"r{n}") for n in range(size(4, 10))]
    asked = [agent.ask(f"Pay {n}?", to="ann", deadline="1h", escalate=["lead"]) for n in range(count)]
    clock.advance(3_601)
    receiver.status = 503  # the receiver is down for an hour

    def work(replica: Tenuto) -> int:
        fired = 0
        while found := replica.inbox.fire():
            fired += found
        replica.notify.deliver()
        return fired

    with ThreadPoolExecutor(len(replicas)) as pool:
        assert sum(pool.map(work, replicas)) == count
        for _ in range(4):
            clock.advance(900)
            list(pool.map(work, replicas))
        assert receiver.got == []
        assert len(agent.notify.outbox()) >= count
        receiver.status = 204
        while agent.notify.outbox():
            clock.advance(60)
            list(pool.map(lambda replica: replica.notify.deliver(limit=1_000), replicas))
    told = [json.loads(body) for _, body in receiver.got]
    escalated = [one["data"]["id"] for one in told if one["type"] == "question.escalated"]
    assert sorted(escalated) == sorted(one.id for one in asked), "each was notified of once"
    assert len(receiver.ids) == len(set(receiver.ids))
    for one in asked:
        whats = [event.what for event in agent.inbox.history(one.id)]
        assert whats.count("escalated") == 1
    assert agent.notify.dead() == []

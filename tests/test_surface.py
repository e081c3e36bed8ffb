"""What people may call is a decided list: a name that comes or goes is a change of this file. All else has an underscore."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import tenuto
from tenuto import AsyncTenuto, Tenuto

SURFACE = {
    "": "action alerts ask audits build_context calibrate checkpoint clock close correlation costs durable for_tenant forget_user full_context gate guard handoff inbox kernel leader lease memory merge milestone milestones name notify once open playbooks progress read_progress restore routes run runs session signal state step store tasks tenant thread threads turn user verify_receipt workflows",
    "state": "at delete entry get history items keys last set transaction update watch",
    'state["s"]': "at delete entry get history items keys last scope set transaction update watch",
    'thread("t")': "append compact count decide decisions delete fork id messages repair scratch take_back timeline tool_call tool_calls user watch",
    "threads": "list",
    "checkpoint": "create delete diff every fork get limit list prune restore restore_as",
    "runs": "cancel delete follow fork get history info list recover recurring result retry signal stop_recurring watch work",
    'run("r")': "ask emit heartbeat id map now progress random remember result resumed reused sleep state step thread usage user uuid wait",
    'run("r").state': "delete get items keys set",
    'run("r").thread': "append count id messages",
    "tasks": "cancel claim counts dead enqueue enqueue_many every fire get is_completed mark_completed pending queues recurring result retry running stop_recurring work",
    "workflows": "create delete get list",
    "memory": "absorb embed forget get history list load recall remember supersede tool",
    "inbox": "acknowledge answer approval cancel fire get group groups history list redeem token",
    "handoff": "chain get list outcome receive send withdraw",
    'progress("p")': "block complete decide digest follow get goal history markdown name next note plan question rule_out unblock write",
    "routes": "add find list remove",
    "milestones": "cancel fire get history list meet",
    "notify": "channels dead deliver outbox remove retry test to",
    'session("s")': "close digest handoffs info name open progress",
    "playbooks": "case cases finish get list save start suggest",
    'guard("t")': "say scan tool_call",
    "costs": "prices report",
    "audits": "last list record",
    "alerts": "add check figures growth list remove sample",
    'lease("l")': "acquire check held lost name release renew token",
    "store": "archive archived backup check compact compare copy_from destroy_user_key export import_ prune rotate stats summary",
}


def handle(agent: Any, where: str) -> Any:
    return eval(f"agent.{where}" if where else "agent", {"agent": agent})


@pytest.fixture
def agent() -> Iterator[Tenuto]:
    with Tenuto("x", "volatile:") as agent:
        yield agent


@pytest.mark.parametrize("where", SURFACE, ids=lambda where: where or "agent")
def test_completion_shows_what_people_may_call_and_nothing_else(agent: Tenuto, where: str) -> None:
    assert [name for name in dir(handle(agent, where)) if not name.startswith("_")] == SURFACE[where].split()


@pytest.mark.parametrize("where", SURFACE, ids=lambda where: where or "agent")
def test_the_async_face_shows_the_same(where: str) -> None:
    mirror = handle(AsyncTenuto("x", "volatile:"), where)
    names = {name for name in dir(mirror) if not name.startswith("_")}
    assert names == set(SURFACE[where].split())


@pytest.mark.parametrize("where", SURFACE, ids=lambda where: where or "agent")
def test_everything_that_people_may_call_is_documented(agent: Tenuto, where: str) -> None:
    cls = type(handle(agent, where))
    methods = [name for name in SURFACE[where].split() if hasattr(cls, name)]
    assert [name for name in methods if not getattr(cls, name).__doc__] == []


@pytest.mark.parametrize("client", [Tenuto, AsyncTenuto])
@pytest.mark.parametrize("where", SURFACE, ids=lambda where: where or "agent")
def test_signatures_show_no_internals(client: type, where: str) -> None:
    shown = handle(client("x", "volatile:"), where)
    methods = [getattr(shown, name) for name in SURFACE[where].split() if callable(getattr(type(shown), name, None))]
    signatures = [f"{method.__name__}{inspect.signature(method)}" for method in methods]
    assert [one for one in signatures if re.search(r" at 0x|\b(?:Work|Stream|Steps)\[|_core|: 'object'", one)] == []
    assert [one for one in signatures if "->" not in one] == []


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        tenuto.Nonsense  # type: ignore[attr-defined]
    assert set(tenuto.__all__) <= set(dir(tenuto))

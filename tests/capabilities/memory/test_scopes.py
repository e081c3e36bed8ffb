"""No read path returns a memory of another user or tenant: checked on random stores, whatever is asked."""

import itertools
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.long import size
from support.stores import kinds, new_url

from tenuto import Tenuto

USERS = [None, "ann", "bob", "memories", "tenant"]
"""Some are words of the keys."""
TENANTS = ["default", "acme", "memory"]
WORDS = ["tea", "cake", "rain", "train", "dog"]

written = st.lists(
    st.tuples(
        st.sampled_from(TENANTS),
        st.sampled_from(USERS),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
        st.sampled_from(["plain", "supersede", "thread", "fact", "playbook", "forget"]),
    ),
    max_size=20,
)


def write(agent: Tenuto, user: str | None, text: str, how: str) -> None:
    if how == "thread":
        agent.thread(f"thread of {user}", user=user).append({"role": "user", "content": f"remember that {text}"})
        agent.memory.absorb(f"thread of {user}")
    elif how == "playbook":
        agent.playbooks.save("way", ["go"])
        agent.playbooks.start("way", as_=f"case {text}", situation=text, user=user)
    elif how == "fact":
        agent.memory.remember(text, user=user, about="x", predicate="is")
    else:
        memory = agent.memory.remember(text, user=user)
        if how == "supersede" and memory.superseded_by is None:
            agent.memory.supersede(memory.id, f"{text} again")
        elif how == "forget":
            agent.memory.forget(memory.id)


def read(agent: Tenuto, user: str | None, query: str, thread: str) -> list[tuple[str | None, str]]:
    """Return the owner and the text of whatever any read returns for this user."""
    later = datetime.fromtimestamp(agent.clock.time() + 60, UTC)
    hits: list[Any] = agent.memory.recall(query, k=50, user=user, neighbours=3)
    hits += agent.memory.recall(query, k=50, user=user, at=later)
    hits += agent.memory.recall(query, k=50, user=user, min_trust="unknown", kind="case")
    found = [one for hit in hits for one in (hit.memory, *hit.before, *hit.after)]
    found += agent.memory.list(user, superseded=True)
    found += [old for one in agent.memory.list(user) for old in agent.memory.history(one.id)]
    seen = [(one.user, one.text) for one in found]
    cases = [one.case for one in agent.playbooks.suggest(query, k=10, user=user) if one.case is not None]
    seen += [(one.user, one.situation) for one in cases]
    _, call = agent.memory.tool(user=user)
    seen += [(user, line) for line in call({"query": query, "k": 20}).splitlines()]
    shown = [agent.build_context("new", user=user, query=query, keep=False)]
    seen += [(user, one.evidence + str(one.remembered)) for one in agent.guard("new", user=user).say(f"What {query}?")]
    if user is not None:
        own = agent.memory.recall(query, k=50, thread=thread, user=user)
        seen += [(user, one.memory.text) for one in own]
        shown.append(agent.build_context(thread, user=user, query=query, strategy="retrieve", keep=False))
    lines = [line for one in shown for message in one.messages for line in str(message["content"]).splitlines()]
    return [*seen, *((user, line) for line in lines)]


def must_not_leak(root: Tenuto, reader: Tenuto, number: int, lines: list[Any], words: list[str]) -> None:
    """Write in tenants of this number, and read everything as each user with another client."""
    agents = {name: root.for_tenant(f"{name}{number}") for name in TENANTS}
    for tenant, user, said, how in lines:
        write(agents[tenant], user, f"{' '.join(said)} <{tenant}{number}/{user}>", how)
    for tenant in TENANTS:
        agent = reader.for_tenant(f"{tenant}{number}")
        for user in USERS:
            allowed = {f"<{tenant}{number}/{user}>", f"<{tenant}{number}/None>"}
            for owner, text in read(agent, user, " ".join(words), f"thread of {user}"):
                assert owner in (user, None), text
                marks = {*re.findall(r"<\w+/\w+>", text)}
                assert marks <= allowed, (user, text)


@settings(max_examples=size(40, 400), deadline=None)
@given(written, st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
def test_nothing_leaks_between_users_and_tenants(lines: list[Any], words: list[str]) -> None:
    with Tenuto("agent", "volatile:") as root:
        must_not_leak(root, root, 0, lines, words)


@pytest.mark.parametrize("kind", kinds("sqlite", "postgres", "valkey"))
def test_nothing_leaks_on_stores_that_other_clients_read(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = new_url(kind, request, tmp_path / "store.db")
    numbers = itertools.count()
    with Tenuto("agent", url, durability="process" if kind == "sqlite" else "full") as root, Tenuto("b", url) as reader:

        @settings(max_examples=size(4, 100), deadline=None, database=None)
        @given(written, st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
        def check(lines: list[Any], words: list[str]) -> None:
            must_not_leak(root, reader, next(numbers), lines, words)

        check()

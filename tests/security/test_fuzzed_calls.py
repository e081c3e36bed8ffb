"""Hostile requests and files to all that takes them from outside: storage verbs, JSON bodies, MCP calls, exports and imports.

Bytes are changed as in `test_fuzzing.py`; arguments of calls are replaced by values of any type and size. Each may give an answer or
one of tenuto's errors, in bounded time.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fuzzing import SECONDS, fuzz
from support.long import size

from tenuto import Tenuto
from tenuto.adapters import _imports, _notes
from tenuto.backends.remote import wire
from tenuto.backends.volatile import VolatileBackend
from tenuto.errors import Paused, TenutoError
from tenuto.kernel import keys
from tenuto.operations.table import called
from tenuto.servers.auth import Access
from tenuto.servers.http import kernel
from tenuto.servers.http.json_api import encoded
from tenuto.servers.http.routes import ROUTES, from_body, method_of
from tenuto.servers.mcp import tools
from tenuto.servers.mcp.tools import chosen
from tenuto.wrappers.tenant import Tenant

CALLS, FILES = size(1_500, 12_000), size(300, 20_000)
HOSTILE: list[Any] = [
    None, True, -1, 0, 2**63, 2**70, 1e308, float("nan"), float("inf"), "", "x", "x" * 100_000, "\x00", "\ud800", "../../etc/passwd",
    "'; DROP TABLE records; --", "{{7*7}}", "*", "%00", "\u202e", "9" * 5_000, [], {}, [[]] * 1_000, {"": {}}, {"a": 2**80}, ["\udfff"],
    json.loads("[" * 400 + "]" * 400), "2026-13-45T99:99", "1e9999d", "-5s", "agent.state.get()", "\r\nSet-Cookie: a=b",
]  # fmt: skip


def judged(calls: Iterator[tuple[str, Callable[[], object]]]) -> tuple[Counter[str], list[str]]:
    """Make calls; return their outcomes, and what must not be: another error, or too long a time."""
    outcomes, wrong = Counter[str](), []
    for name, call in calls:
        began = time.thread_time()
        try:
            call()
            outcomes["answered"] += 1
        except (TenutoError, Paused) as error:
            outcomes[type(error).__name__] += 1
        except Exception as error:
            wrong.append(f"{name}: {error!r}"[:300])
        if time.thread_time() - began > SECONDS:
            wrong.append(f"{name}: {time.thread_time() - began:.1f} s")
    return outcomes, wrong


def spoilt(given: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return arguments of which some are hostile, or missing, or unknown."""
    found = dict(given)
    for _ in range(chance.choice([1, 1, 2, 4])):
        name = chance.choice([*found, "no such"]) if found else "no such"
        if chance.random() < 0.1:
            found.pop(name, None)
        elif name != "no such" or chance.random() < 0.1:
            found[name] = chance.choice(HOSTILE)
    return found


def plausible(name: str, kind: Any, chance: random.Random) -> Any:
    """Return a valid argument of most types."""
    for value in (chance.choice(["x", "s", "k", "1"]), 1, True, {"a": 1}, ["x"], [{"action": "x"}], 1.5):
        try:
            return msgspec.convert(value, kind)
        except (msgspec.ValidationError, TypeError):
            continue
    return None


@pytest.fixture
def agent() -> Iterator[Tenuto]:
    with Tenuto("host", "volatile:") as agent:
        agent.state.set("s", "k", {"text": "x"})
        agent.thread("x").append({"role": "user", "content": "hello"})
        agent.checkpoint.create("x", {"a": 1}, thread="x")
        agent.memory.remember("The sky is blue", user="x")
        agent.tasks.enqueue("x", {"n": 1}, key="x")
        agent.workflows.create(name="x", steps=[{"action": "x"}])
        agent.playbooks.save("x", steps=["x"])
        agent.ask("Go on?", key="x")
        agent.progress("x", goal="x").next("x")
        with agent.run("x") as run:
            run.step("x", lambda: 1)
        yield agent


def told(figures: Any, what: str, outcomes: Counter[str], wrong: list[str]) -> None:
    print(what, dict(outcomes), *wrong[:20], sep="\n")
    answered = outcomes["answered"] + outcomes["decoded"]
    figures(inputs=outcomes.total() + len(wrong), refused=outcomes.total() - answered, wrong=len(wrong))


@pytest.mark.scorecard(18)
@pytest.mark.timeout(size(180, 3_600))
def test_arguments_of_any_type_to_any_mcp_tool_are_answered_or_refused(agent: Tenuto, figures: Any) -> None:
    chance, every = random.Random(18), chosen("all", "job")

    def calls() -> Iterator[tuple[str, Callable[[], object]]]:
        for _ in range(CALLS):
            tool = chance.choice(every)
            given = {name: plausible(name, one.kind, chance) for name, one in tool.parameters().items()}
            given = spoilt({name: value for name, value in given.items() if value is not None}, chance)
            yield f"{tool.name}({given!r})", lambda tool=tool, given=given: tool.call(agent, given).encode()

    told(figures, "MCP", *judged(calls()))


@pytest.mark.scorecard(18)
@pytest.mark.timeout(size(180, 3_600))
def test_json_bodies_to_any_route_are_answered_or_refused(agent: Tenuto, figures: Any) -> None:
    chance = random.Random(19)
    posts = [one for one in ROUTES.values() if method_of(one) == "POST"]

    def calls() -> Iterator[tuple[str, Callable[[], object]]]:
        for _ in range(CALLS):
            operation = chance.choice(posts)
            given = {one.name: plausible(one.name, one.kind, chance) for one in operation.parameters}
            given = spoilt({name: value for name, value in given.items() if value is not None}, chance)
            try:
                body = json.dumps(given).encode()
            except (TypeError, ValueError):
                continue

            def call(operation: Any = operation, body: bytes = body) -> object:
                return encoded(called(operation, agent, from_body(operation, "application/json", body)))

            yield f"{operation.name} {body[:200]!r}", call

    told(figures, "JSON bodies", *judged(calls()))


PREFIX, KEY, STREAM = keys.pack("s"), keys.pack("s", "k"), keys.pack("s", "log")  # a server puts the tenant in front
BODIES: dict[str, list[bytes]] = {
    "read": [wire.packed([[KEY, STREAM]])],
    "scan": [wire.packed([PREFIX, None, 100, False]), wire.packed([PREFIX, KEY, 2**62, True])],
    "entries": [wire.packed([STREAM, None, 100, False]), wire.packed([STREAM, 3, 10, True])],
    "commit": [wire.packed([[[0, KEY, 0]], [[0, KEY, b"v", None], [1, KEY]], None]), wire.packed([[], [[2, STREAM, b"v"]], bytes(16)])],
    "streams": [wire.packed([PREFIX, None, 100])],
    "load": [wire.packed([[[KEY, b"v", 1, 1.0, None]], [[STREAM, [[1, b"v", 1.0, bytes(16), bytes(16), [1], False]]]]])],
    "trim": [wire.packed([STREAM, 2])],
    "check": [wire.packed([])],
    "stats": [wire.packed([])],
}  # fmt: skip


@pytest.mark.scorecard(18)
@pytest.mark.timeout(size(180, 3_600))
@pytest.mark.parametrize("verb", BODIES)
def test_bodies_of_the_storage_verbs_are_answered_or_refused(verb: str, figures: Any) -> None:
    access = Access("1", "fuzz", "acme", ("admin",), "")
    store = Tenant(VolatileBackend(), access.tenant)
    outcomes, wrong = fuzz(
        lambda raw: kernel.answer(verb, access, store, raw, operator=access.tenant), BODIES[verb], CALLS // 3, verb
    )
    told(figures, f"verb {verb}", outcomes, wrong)


CONVERSATIONS = [
    json.dumps([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]).encode(),
    json.dumps({"a": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}).encode(),
    b'{"role": "user", "content": "one"}\n{"role": "assistant", "content": "two"}\n',
    b'{"thread": "t", "messages": [{"role": "user", "content": "x"}]}\n',
    b'[{"role": "user", "content": "\\ud800"}]',
    b"[" * 5_000,
]
GRAPH = b'{"type":"entity","name":"Ann","entityType":"person","observations":["likes tea"]}\n{"type":"relation","from":"Ann","to":"Bob","relationType":"knows"}\n'
NOTES = [
    b"# Done\n- [x] one\n\nNext: two\n",
    b'[{"category":"functional","description":"x","steps":["a"],"passes":false}]',
]


def bring_conversations(agent: Tenuto, path: Path) -> None:
    for one in _imports.json_file(path, None):
        _imports.bring(agent, one)


FILES_OF: dict[str, tuple[str, Callable[[Tenuto, Path], object], list[bytes]]] = {
    "conversations": ("in.json", bring_conversations, CONVERSATIONS),
    "a graph of memories": ("memory.jsonl", _notes.memory_graph, [GRAPH]),
    "progress notes": ("claude-progress.txt", _notes.claude_progress, NOTES[:1]),
    "a list of features": ("feature_list.json", _notes.claude_progress, NOTES[1:]),
    "notes": ("CLAUDE.md", lambda agent, path: agent.memory.load([str(path)]), [b"# One\ntext\n\n## Two\nmore text\n"]),
}


@pytest.mark.scorecard(18)
@pytest.mark.timeout(size(180, 3_600))
@pytest.mark.parametrize("what", FILES_OF)
def test_imported_files_are_read_or_refused(what: str, agent: Tenuto, tmp_path: Path, figures: Any) -> None:
    name, take, seeds = FILES_OF[what]
    path = tmp_path / name

    def read(raw: bytes) -> None:
        path.write_bytes(raw)
        take(agent, path)

    told(figures, what, *fuzz(read, seeds, FILES, what))


@pytest.mark.scorecard(18)
@pytest.mark.timeout(size(180, 3_600))
def test_export_files_are_imported_or_refused_and_never_in_part(agent: Tenuto, tmp_path: Path, figures: Any) -> None:
    # given the export of a store, with bytes changed anywhere
    path = tmp_path / "export.jsonl"
    agent.store.export(path)
    whole = path.read_bytes()
    stored: list[str] = []

    def take(raw: bytes) -> None:
        path.write_bytes(raw)
        with Tenuto("other", "volatile:") as other:
            try:
                other.store.import_(path)
            except TenutoError:
                if other.kernel.scan(b"", limit=1):  # a damaged export is refused before anything is stored
                    stored.append("in part")
                raise

    outcomes, wrong = fuzz(take, [whole, *(line + b"\n" for line in whole.splitlines()[:3])], FILES, "export")
    told(figures, "exports", outcomes, wrong + stored)
    assert outcomes["decoded"]


@pytest.mark.scorecard(18, planted=True)
def test_a_tool_that_lets_another_error_out_is_found_out(agent: Tenuto, monkeypatch: pytest.MonkeyPatch) -> None:
    (tool,) = chosen("state_get", "job")
    monkeypatch.setattr(tools, "InvalidInput", ValueError)  # the planted bug: a refusal that is no error of tenuto
    _, wrong = judged(
        (str(value)[:40], lambda value=value: tool.call(agent, {"scope": value, "key": value})) for value in HOSTILE
    )
    print(f"planted bug: {len(wrong)} of {len(HOSTILE)}")
    assert wrong

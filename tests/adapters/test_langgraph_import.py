"""`tenuto import langgraph`: every thread of LangGraph's own savers, proven equal, cut off and gone on with."""

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema
import ormsgpack
import pytest
from click.testing import CliRunner
from graphs import asking, chat, config, say
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command, Interrupt, Send
from test_langgraph_saver import Plan, deltas, holding

from tenuto import Damaged, Tenuto, UnknownType
from tenuto.adapters.langgraph import TenutoSaver
from tenuto.adapters.langgraph import importer as importing
from tenuto.cli import group
from tenuto.cli.schema import printed
from tenuto.operations.jsonable import schema

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:aiosqlite")


def fill(saver: Any) -> None:
    graph = chat(saver, answer=str)
    for turn in range(70):
        graph.invoke(say(f"turn {turn}"), config("long"))
    asking(saver).invoke({"seen": []}, config("asked"))
    for turn in range(7):
        deltas(saver).invoke({"plain": str(turn)}, config("deltas"))
    old = list(graph.get_state_history(config("long"), limit=5))[-1]
    graph.invoke(say("another way"), old.config)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Callable[[], Any]]:
    if request.param == "sqlite":
        path = str(tmp_path / "langgraph.db")
        with SqliteSaver.from_conn_string(path) as saver:
            fill(saver)
        return path, lambda: SqliteSaver.from_conn_string(path)
    import psycopg

    url = request.getfixturevalue("postgres").url
    name = f"lg{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name}")
    from urllib.parse import urlsplit

    own = urlsplit(url)._replace(path=f"/{name}").geturl()
    with PostgresSaver.from_conn_string(own) as saver:
        saver.setup()
        fill(saver)
    return own, lambda: PostgresSaver.from_conn_string(own)


def run(*given: str, expected: int = 0) -> str:
    done = CliRunner().invoke(group, ["import", "langgraph", *given])
    assert done.exit_code == expected, done.output
    return done.output


def test_everything_is_brought_in_and_graphs_go_on(source: Any, path: str) -> None:
    where, reopen = source
    told = {line["thread"]: line for line in map(json.loads, run(where, "--url", path, "--json").splitlines())}
    for line in told.values():
        jsonschema.validate(line, schema(printed()["import langgraph"]))
    assert set(told) == {"long", "asked", "deltas"}
    with TenutoSaver(path) as saver, reopen() as before:
        for thread in told:
            theirs, ours = list(before.list(config(thread))), list(saver.list(config(thread)))
            assert len(theirs) == len(ours) == told[thread]["checkpoints"] == told[thread]["new"]
            for one in theirs:
                got = saver.get_tuple(one.config)
                assert got.checkpoint == one.checkpoint
                assert (got.metadata, got.parent_config) == (one.metadata, one.parent_config)
                assert got.pending_writes == one.pending_writes
        assert asking(saver).invoke(Command(resume="yes"), config("asked"))["seen"] == ["first", "yes", "last"]
        assert deltas(saver).get_state(config("deltas")).values["items"] == list(range(7))
        chat(saver, answer=str).invoke(say("on"), config("long"))
        messages = chat(saver).get_state(config("long")).values["messages"]
        assert [m.content for m in messages[-4:-1:2]] == ["another way", "on"]


def test_an_import_that_was_cut_off_goes_on(source: Any, path: str) -> None:
    where, _ = source
    with Tenuto("import", path) as agent, importing.opened(where) as found:
        saver = TenutoSaver(agent)
        steps = importing.bring(saver._graphs, found, "long")
        rows = found.rows
        found.rows = lambda thread, ns: (row for n, row in enumerate(rows(thread, ns)) if n < 40 or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(steps)
    told = json.loads(run(where, "--url", path, "--json", "--thread", "long"))
    assert told["new"] == told["checkpoints"] - 40
    assert json.loads(run(where, "--url", path, "--json", "--thread", "long"))["new"] == 0


def test_what_is_not_as_in_the_source_is_told(tmp_path: Path, path: str) -> None:
    source = str(tmp_path / "langgraph.db")
    with SqliteSaver.from_conn_string(source) as saver:
        chat(saver).invoke(say("hello"), config())
    run(source, "--url", path)
    with contextlib.closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("UPDATE checkpoints SET metadata = '{\"step\": 99}'")
    assert "differs from the source" in run(source, "--url", path, expected=1)
    assert run(str(tmp_path / "none.db"), "--url", path, expected=3)


def test_types_of_ones_own_are_named_until_they_are_allowed(tmp_path: Path, path: str) -> None:
    source = str(tmp_path / "langgraph.db")
    with SqliteSaver.from_conn_string(source) as saver:
        holding(saver, Elsewhere(n=1)).invoke({"value": None}, config())
    assert f"--allow {__name__}:Elsewhere" in run(source, "--url", path, expected=1)
    with TenutoSaver(path, allow=[Elsewhere]):
        run(source, "--url", path)
    with TenutoSaver(path) as saver:
        assert holding(saver, None).get_state(config()).values["value"] == Elsewhere(n=1)


class Elsewhere(Plan):
    steps: list[str] = []
    n: int


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"x",
        bytearray(b"x"),
        {"a": [1, 2.5, {"b": {1: "int key"}}]},
        datetime(2026, 1, 1, tzinfo=UTC),
        Decimal("1.5"),
        UUID(int=7),
        {1, 2},
        Path("a/b"),
        HumanMessage("x", id="1"),
        [Send("n", {"a": 1}), Interrupt("v", id="i")],
    ],
    ids=repr,
)
def test_values_of_langgraphs_serializer_are_read(value: Any) -> None:
    assert importing.loads(*JsonPlusSerializer().dumps_typed(value)) == value


@pytest.mark.parametrize(
    ("kind", "data", "error"),
    [
        ("pickle", b"cos\nsystem\n(S'true'\ntR.", UnknownType),
        ("json", b'{"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["true"]}', UnknownType),
        ("msgpack", ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(("os", "system", "true")))), UnknownType),
        ("msgpack", ormsgpack.packb(ormsgpack.Ext(3, ormsgpack.packb(("os", "path", "x", "exists")))), UnknownType),
        ("msgpack", ormsgpack.packb(ormsgpack.Ext(3, ormsgpack.packb(("uuid", "UUID", "x", "__init__")))), UnknownType),
        ("msgpack", ormsgpack.packb(ormsgpack.Ext(6, b"\x90")), UnknownType),
        ("msgpack", b"\xc6\xff\xff\xff\xff", Damaged),
    ],
)
def test_hostile_values_of_a_source_are_refused(
    kind: str, data: bytes, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(os, "system", called.append)
    with pytest.raises(error):
        importing.loads(kind, data)
    assert called == []

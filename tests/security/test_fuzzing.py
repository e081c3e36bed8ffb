"""Hostile bytes to every decoder: values, keys, delta logs, wire calls, progress files, stored rows.

Each decoder may return something or raise one of tenuto's errors; it takes no longer and no more memory than its input
is worth. The inputs are valid encodings with a few bytes changed, cut, repeated or spliced, and bytes by chance.
"""

import random
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import ormsgpack
import pytest
from fuzzing import fuzz
from support.long import size

from tenuto import Tenuto
from tenuto.backends.remote import wire
from tenuto.backends.sqlite import SqliteBackend
from tenuto.capabilities.sessions.markdown import Markdown
from tenuto.errors import TenutoError
from tenuto.kernel import codec, delta, keys
from tenuto.kernel.contract import Append, Put

INPUTS = size(3_000, 300_000)
MEMORY = 64 * 2**20
"""What all seeds together may take."""

VALUES: list[Any] = [
    {"messages": [{"role": "user", "content": "héllo" * 20, "n": 2**63}], "at": datetime(2026, 1, 1, tzinfo=UTC)},
    [Decimal("1.10"), UUID(int=7), timedelta(days=2), (1, (2, (3,))), {1, "a"}, frozenset({b"x"}), None, True, 1.5],
    {"deep": [[[[[{"a": [()]}]]]]], "bytes": b"\x00\xff" * 40, "pairs": {1: "int key", (1, 2): "tuple key"}},
]
BOMBS = [
    b"\x01\xdd\xff\xff\xff\xff",  # a list of 4 billion
    b"\x01\xdf\xff\xff\xff\xff",  # a dict of 4 billion
    b"\x01\xc6\xff\xff\xff\xff",  # 4 GB of bytes
    b"\x01\xc9\xff\xff\xff\xff\x01",  # an extension of 4 GB
    b"\x01" + b"\x91" * 1_000,  # a thousand lists, one in another
    b"\x01" + b"\xd4\x01\x91" * 300,
    b"\x01" + ormsgpack.packb("x" * 10**6)[:-1],
]
DELTAS: list[Any] = [
    [1, [["messages", [2, [[0, 3], ormsgpack.packb([{"n": 9}])]]]], None],
    [0, ormsgpack.packb({"a": 1})],
    [1, ["x"], [["messages", [2, [[4, [0, ormsgpack.packb(1)]]]]], ["messages"]]],
]
PROGRESS = """# Progress: trip

## Current Goal
Book it

## Completed Steps
1. [x] Parse — evidence: tests

## Next Action
Go on
"""


def decode_all(raw: bytes) -> None:
    codec.encode(codec.decode(raw))


def decode_wire(raw: bytes) -> None:
    checks, writes, _ = wire.commit_of(raw)
    for one in (*checks, *writes):
        keys.unpack(one[0])


def apply_delta(raw: bytes) -> None:
    delta.apply({"messages": [{"n": n} for n in range(5)], "x": 1}, codec.unpack_plain(raw))


def read_progress(raw: bytes) -> None:
    document = Markdown(raw.decode("utf-8", "replace"))
    before = document.text
    assert (document.items(), document.title, document.context(), document.paragraph("goal")) is not None
    document.reasoned("ruled out")
    assert document.text == before
    document.add("one more", test="it works")
    document.write("blocker", "none of it")


def decoders() -> dict[str, tuple[Callable[[bytes], object], list[bytes]]]:
    encoded = [codec.encode(value) for value in VALUES]
    return {
        "values": (decode_all, encoded + BOMBS),
        "keys": (keys.unpack, [keys.pack("t", "s", "name", -1, 2**63, b"raw\x00")]),
        "deltas": (apply_delta, [ormsgpack.packb(how) for how in DELTAS]),
        "wire": (
            decode_wire,
            [wire.packed([[[0, b"\x02s\x00\x02k\x00", 0]], [[1, b"\x02s\x00\x02k\x00", b"v", None]], None])],
        ),
        "progress": (read_progress, [PROGRESS.encode(), PROGRESS.replace("\n", "\r\n").encode()]),
    }


@pytest.mark.scorecard(18)
@pytest.mark.timeout(size(180, 3_600))
@pytest.mark.parametrize("what", decoders())
def test_hostile_bytes_are_decoded_or_refused_with_a_typed_error(what: str, figures: Any) -> None:
    decoder, seeds = decoders()[what]
    tracemalloc.start()
    try:
        for raw in seeds:
            fuzz(decoder, [raw], 1, "once")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    outcomes, wrong = fuzz(decoder, seeds, INPUTS, f"{what} {time.time_ns() if size(0, 1) else 18}")
    print(what, dict(outcomes), wrong[:5])
    figures(inputs=outcomes.total() + len(wrong), refused=outcomes.total() - outcomes["decoded"], wrong=len(wrong))
    assert most < MEMORY


@pytest.mark.scorecard(18, planted=True)
def test_a_decoder_that_lets_a_drivers_error_out_is_found_out() -> None:
    _, wrong = fuzz(lambda raw: ormsgpack.unpackb(raw[1:]), [codec.encode(VALUES[0])], 200, "planted")
    print(f"planted bug: {len(wrong)} of 200")
    assert wrong


ROWS = size(150, 5_000)


@pytest.mark.slow
@pytest.mark.scorecard(18)
@pytest.mark.timeout(size(180, 3_600))
def test_hostile_rows_in_the_file_are_typed_errors(tmp_path: Path, figures: Any) -> None:
    # given a store, when values of its tables are replaced by others of any type and length
    path, chance, wrong, noticed = tmp_path / "store.db", random.Random(18), [], 0
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", {"text": "x" * 100})
        agent.thread("t").append({"role": "user", "content": "hello"})
        agent.kernel.commit([], [Put(keys.pack("t", "s", "raw"), b"v"), Append(keys.pack("t", "s", "log"), b"e")])
    whole = path.read_bytes()
    places = columns(path)
    for _ in range(ROWS):
        for part in ("-wal", "-shm", "-lock"):
            path.with_name(path.name + part).unlink(missing_ok=True)
        path.write_bytes(whole)
        spoil(path, chance, *chance.choice(places))
        found = read_everything(path, wrong)
        noticed += found
    figures(rows_spoilt=ROWS, noticed=noticed, wrong=len(wrong))
    assert noticed > ROWS / 4


def columns(path: Path) -> list[tuple[str, str]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found = [(table, row[1]) for table in tables for row in connection.execute(f"PRAGMA table_info({table})")]
    connection.close()
    return [place for place in found if not place[0].startswith("sqlite_")]


def spoil(path: Path, chance: random.Random, table: str, column: str) -> None:
    values = [None, -1, 2**62, 1.5, "text", b"", chance.randbytes(30), b"\x01\xdd\xff\xff\xff\xff", "x" * 5_000]
    connection = apsw.Connection(str(path))
    try:
        connection.execute(
            f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT rowid FROM {table} ORDER BY random() LIMIT 1)",
            (chance.choice(values),),
        )
    except apsw.Error:  # a table without row ids, or a constraint
        pass
    finally:
        connection.close()


def read_everything(path: Path, wrong: list[str]) -> bool:
    """Use the store as a program would; return whether damage was noticed, and note errors that are not tenuto's."""
    noticed = False
    agent = Tenuto("b", path)
    calls: list[Callable[[], object]] = [
        lambda: agent.state.items("s"),
        lambda: agent.state.history("s", "k"),
        lambda: agent.thread("t").messages(),
        lambda: agent.kernel.entries(keys.pack("t", "s", "log")),
        lambda: agent.state.set("s", "k", 2),
        lambda: agent.state.set("s", "new", 2),
        lambda: SqliteBackend(path).stats(),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except TenutoError:
            noticed = True
        except Exception as error:
            wrong.append(f"call {number}: {error!r}")
    try:
        noticed = noticed or not agent.store.check().ok
    except TenutoError:
        noticed = True
    agent.close()
    return noticed

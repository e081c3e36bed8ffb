"""One bit flipped anywhere in the files of a store: noticed or harmless, never a wrong value, never silent loss."""

import random
import time
from collections import Counter

import apsw
import pytest
from crash_harness import HERE, beside, copy_store, flip, run, size
from flip_store import Expected, build, expected, judge, judge_by_writing

from tenuto import Tenuto
from tenuto.backends import _sqlite_rows as rows
from tenuto.backends._sqlite_rows import floor_key
from tenuto.kernel.contract import Record

BAD = {"wrong", "silent", "untyped"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A closed store, and all that is in it."""
    path = tmp_path_factory.mktemp("whole") / "store.db"
    told = build(path)
    assert not beside(path, "-wal").exists()
    return path, told


@pytest.fixture(scope="module")
def with_log(tmp_path_factory):
    """A store whose second half is in the write-ahead log only, since its writer was killed."""
    path = tmp_path_factory.mktemp("log") / "store.db"
    told = build(path, keys_per_scope=30)
    run(path, HERE, code=_WRITE_AND_DIE)
    copy = path.with_name("copy.db")
    copy_store(path, copy)
    with Tenuto("reader", copy) as agent:
        values = expected(agent, told.requests, agent.clock)
    assert beside(path, "-wal").stat().st_size > 100_000
    return path, values._replace(now=told.now)


_WRITE_AND_DIE = """
import os, random, sys
sys.path.insert(0, sys.argv[2])
from flip_store import fill
from tenuto import Tenuto
agent = Tenuto("second", sys.argv[1]).open()
fill(agent, random.Random(5), 25, name="log")
os.kill(os.getpid(), 9)
"""


def flip_many(source, told: Expected, path, part, bits, judged=judge):
    """Flip each bit in a copy of its own, and count what became of it."""
    counted, bad = Counter(), []
    for bit in bits:
        copy_store(source, path)
        flip(beside(path, part), bit)
        verdict, what = judged(path, told)
        counted[verdict] += 1
        if verdict in BAD:
            bad.append((verdict, f"bit {bit % 8} of byte {bit // 8}", what))
    return counted, bad


def told_of(name, counted, began):
    noticed = ", ".join(f"{counted[kind]} noticed by {kind}" for kind in ("open", "read", "check"))
    return (
        f"{name}: {counted.total()} flips, wrong {counted['wrong']}, silent {counted['silent']}, untyped "
        f"{counted['untyped']}; {noticed}, {counted['harmless']} harmless, {time.monotonic() - began:.1f} s"
    )


def random_bits(file, count, seed):
    used = len(file.read_bytes().rstrip(b"\0"))  # behind it is room for what comes
    return random.Random(seed).sample(range(8 * used), count)


def test_an_undamaged_store_is_judged_harmless(whole, with_log, path):
    for source, told in (whole, with_log):
        copy_store(source, path)
        assert judge(path, told) == ("harmless", "")
    copy_store(whole[0], path)
    assert judge_by_writing(path, whole[1]) == ("harmless", "")


@pytest.mark.slow
@pytest.mark.timeout(size(180, 3_600))
@pytest.mark.parametrize("part", range(3))
def test_a_flipped_bit_in_the_file_is_noticed_or_harmless(whole, path, part):
    # given a closed store, when one bit anywhere in it is flipped
    source, told = whole
    began = time.monotonic()
    counted, bad = flip_many(source, told, path, "", random_bits(source, size(500, 10_000), seed=part))
    # then no read returns what was never written, and nothing goes missing unsaid
    print(told_of(f"file of {source.stat().st_size // 1024} KB", counted, began))
    assert not bad, bad[:10]
    assert counted["open"] + counted["read"] + counted["check"] > 100


@pytest.mark.slow
@pytest.mark.timeout(size(180, 3_600))
def test_a_flipped_bit_in_the_write_ahead_log_is_noticed(with_log, path):
    # given a store whose newest commits are in the log only, when a bit of the log is flipped
    source, told = with_log
    began = time.monotonic()
    log = beside(source, "-wal")
    counted, bad = flip_many(source, told, path, "-wal", random_bits(log, size(300, 3_000), seed=7))
    # then the commits that are lost by it are missed
    print(told_of(f"log of {log.stat().st_size // 1024} KB", counted, began))
    assert not bad, bad[:10]
    assert counted["harmless"] == 0


def test_a_flipped_bit_in_the_lock_file_loses_nothing(whole, path):
    # given a closed store, when a bit in the used part of its lock file is flipped
    source, told = whole
    began = time.monotonic()
    counted, bad = flip_many(source, told, path, "-lock", random.Random(8).sample(range(8 * 1_100), 100))
    # then everything is read as before: the other slot's mark is older, which is no loss
    print(told_of("lock file", counted, began))
    assert not bad, bad[:10]
    assert counted["harmless"] == counted.total()


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["outcomes", "floors"])
def test_a_flipped_bit_in_the_writers_own_rows_is_noticed(whole, path, rows):
    # given the rows that make a retry apply once and keep versions from restarting, when one is damaged
    source, told = whole
    began = time.monotonic()
    in_use = _bits_in_use(source, rows) if rows == "outcomes" else _bits_of_floors(source)
    bits = random.Random(9).sample(in_use, min(len(in_use), size(150, 1_500)))
    counted, bad = flip_many(source, told, path, "", bits, judge_by_writing)
    # then a request is not applied again and a version is not given twice, unless check() says why
    print(told_of(rows, counted, began))
    assert not bad, bad[:10]
    assert counted.total() >= 100


def _bits_of_floors(path):
    """Return the numbers of the bits of every floor, in its row and in the index over the keys."""
    raw = path.read_bytes()
    marker = floor_key(b"")
    found = [at for at in range(len(raw)) if raw.startswith(marker, at)]
    assert found
    return sorted({8 * near + bit for at in found for near in range(at - 20, at + 50) for bit in range(8)})


def _bits_in_use(path, table):
    """Return the numbers of the bits that hold a table's rows; free space is left out."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        pages = connection.execute("SELECT pageno FROM dbstat WHERE name = ?", (table,)).fetchall()
    finally:
        connection.close()
    raw = path.read_bytes()
    used = [at for (page,) in pages for at in range((page - 1) * 4096, page * 4096) if raw[at]]
    return [8 * at + bit for at in used for bit in range(8)]


def test_a_backend_that_believes_every_row_is_found_out(whole, path, monkeypatch):
    # given the planted bug: sums are not compared
    source, told = whole

    def credulous(row):
        key, kind, version, written, expires, _sum, value = row
        return Record(key, value, version, written, expires) if kind == rows.RECORD else None

    monkeypatch.setattr(rows, "believed", credulous)
    # when a bit inside a stored value is flipped
    value = told.values["alpha"]["k0001"][0][2]
    raw = source.read_bytes()
    places = [at for at in range(len(raw)) if raw.startswith(value, at)]
    counted, _ = flip_many(source, told, path, "", [8 * (at + 1) for at in places])
    # then the judge sees a wrong value
    print(f"planted bug: {counted['wrong']} of {len(places)} flips judged wrong")
    assert counted["wrong"] >= 1

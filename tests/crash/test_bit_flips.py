"""One bit flipped anywhere in the files of a store: noticed or harmless, never a wrong value, never silent loss."""

import random
import time
from collections import Counter

import apsw
import pytest
from crash_harness import HERE, beside, copy_store, flip, run
from flip_store import Expected, build, expected, judge, judge_by_writing
from support.long import size

from tenuto import Tenuto
from tenuto.backends.sqlite import rows
from tenuto.backends.sqlite.rows import floor_key
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


def flip_many(source, told: Expected, path, part, bits, judged=judge, *, marked=True):
    """Flip each bit in a copy of its own, with or without its mark, and count what became of it."""
    counted, bad = Counter(), []
    for bit in bits:
        copy_store(source, path)
        if not marked:
            beside(path, "-lock").unlink()
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
        f"{counted['untyped']}, twice {counted['twice']}; {noticed}, {counted['harmless']} harmless, {time.monotonic() - began:.1f} s"
    )


def flips(counted):
    """Return the figures of counted verdicts; an error that is not tenuto's own is wrong too."""
    noticed = sum(counted[kind] for kind in ("open", "read", "check"))
    wrong = counted["wrong"] + counted["untyped"]
    return {"flips": counted.total(), "wrong": wrong, "lost": counted["silent"], "noticed": noticed}


def random_bits(file, count, seed):
    return random.Random(seed).sample(range(8 * file.stat().st_size), count)


def test_an_undamaged_store_is_judged_harmless(whole, with_log, path):
    for source, told in (whole, with_log):
        copy_store(source, path)
        assert judge(path, told) == ("harmless", "")
        for judged in (judge, judge_by_writing):
            copy_store(whole[0], path)
            assert judged(path, whole[1]) == ("harmless", "")
            copy_store(whole[0], path)
            beside(path, "-lock").unlink()
            assert judged(path, whole[1]) == ("harmless", "")


@pytest.mark.slow
@pytest.mark.timeout(size(180, 3_600))
@pytest.mark.parametrize("marked", [True, False], ids=["with its mark", "without"])
@pytest.mark.parametrize("part", range(3))
@pytest.mark.scorecard(7)
def test_a_flipped_bit_in_the_file_is_noticed_or_harmless(whole, path, part, marked, figures):
    # given a closed store, with its lock file or without, when one bit anywhere in it is flipped
    source, told = whole
    began = time.monotonic()
    bits = random_bits(source, size(120 if marked else 100, 5_000), seed=part + 3 * marked)
    counted, bad = flip_many(source, told, path, "", bits, marked=marked)
    # then no read returns what was never written, and nothing goes missing unsaid
    print(
        told_of(f"file of {source.stat().st_size // 1024} KB, {'' if marked else 'not '}marked", counted, began),
        bad[:10],
    )
    figures(**flips(counted))
    assert counted["open"] + counted["read"] + counted["check"] > 50


@pytest.mark.slow
@pytest.mark.timeout(size(180, 3_600))
@pytest.mark.scorecard(7)
def test_a_flipped_bit_in_the_write_ahead_log_is_noticed(with_log, path, figures):
    # given a store whose newest commits are in the log only, when a bit of the log is flipped
    source, told = with_log
    began = time.monotonic()
    log = beside(source, "-wal")
    counted, bad = flip_many(source, told, path, "-wal", random_bits(log, size(80, 3_000), seed=7))
    # then the commits that are lost by it are missed
    print(told_of(f"log of {log.stat().st_size // 1024} KB", counted, began), bad[:10])
    figures(**flips(counted))
    assert counted["harmless"] == 0


@pytest.mark.scorecard(7)
def test_a_flipped_bit_in_the_lock_file_loses_nothing(whole, path, figures):
    # given a closed store, when a bit in the used part of its lock file is flipped
    source, told = whole
    began = time.monotonic()
    counted, bad = flip_many(source, told, path, "-lock", random.Random(8).sample(range(8 * 1_100), 100))
    # then everything is read as before: the other slot's mark is older, which is no loss
    print(told_of("lock file", counted, began), bad[:10])
    figures(**flips(counted))
    assert counted["harmless"] == counted.total()


@pytest.mark.slow
@pytest.mark.timeout(size(180, 3_600))
@pytest.mark.parametrize("marked", [True, False], ids=["with its mark", "without"])
@pytest.mark.parametrize("where", ["requests", "floors"])
@pytest.mark.scorecard(7)
def test_a_flipped_bit_in_the_writers_own_rows_is_noticed(whole, path, where, marked, figures):
    # given the rows that make a retry apply once and keep versions from restarting, when one is damaged
    source, told = whole
    began = time.monotonic()
    in_use = _bits_of_floors(source) if where == "floors" else _bits_in_use(source, where)
    bits = random.Random(9 + marked).sample(in_use, min(len(in_use), size(110, 1_500)))
    counted, bad = flip_many(source, told, path, "", bits, judge_by_writing, marked=marked)
    # then no request is applied again and no version is given twice, unless check() says why
    print(told_of(f"{where}, {'' if marked else 'not '}marked", counted, began), bad[:10])
    figures(**flips(counted))
    assert counted.total() >= 100


@pytest.mark.slow
@pytest.mark.timeout(size(180, 3_600))
@pytest.mark.parametrize("marked", [True, False], ids=["with its mark", "without"])
@pytest.mark.parametrize("index", ["live", "sqlite_autoindex_records_1", "expiring"])
@pytest.mark.scorecard(7)
def test_a_flipped_bit_in_an_index_hides_nothing(whole, path, index, marked, figures):
    # given the indexes by which records are found, when one is damaged
    source, told = whole
    began = time.monotonic()
    in_use = _bits_in_use(source, index)
    bits = random.Random(11 + marked).sample(in_use, min(len(in_use), size(110, 1_500)))
    counted, bad = flip_many(source, told, path, "", bits, marked=marked)
    # then a record that is not found is missed
    print(told_of(f"{index}, {'' if marked else 'not '}marked", counted, began), bad[:10])
    figures(**flips(counted))
    assert counted.total() >= 100


@pytest.mark.slow
@pytest.mark.timeout(size(600, 3_600))
@pytest.mark.parametrize("where", ["requests", "sqlite_autoindex_records_1", "live", "records", "entries"])
@pytest.mark.scorecard(7)
def test_a_pointer_to_a_neighbour_is_noticed(whole, path, where, figures):
    # given the cruellest flips: a page has one of its rows or pages twice and another not at all, and every checksum holds
    source, told = whole
    began = time.monotonic()
    pointers = _bits_to_neighbours(source, where)
    bits = random.Random(12).sample(pointers, min(len(pointers), size(40, 1_500)))
    judges = [judge_by_writing] if where == "requests" else [judge, judge_by_writing]
    # when one of them is met, then nothing is missed silently, and no request is applied again
    for judged in judges:
        counted, bad = flip_many(source, told, path, "", bits, judged)
        print(told_of(f"{where}, pointers ({len(pointers)})", counted, began), bad[:10])
        figures(**flips(counted))
        assert counted["twice"] == 0


def _bits_to_neighbours(path, name):
    """Return the bits that, flipped, make a pointer point to another cell of its page, or another page of its tree."""
    raw, pages, found = path.read_bytes(), _pages(path, name), []
    for page in pages:
        start = (page - 1) * 4096
        inner = raw[start] in (2, 5)
        count = int.from_bytes(raw[start + 3 : start + 5], "big")
        places = [start + (12 if inner else 8) + 2 * n for n in range(count)]
        cells = [int.from_bytes(raw[at : at + 2], "big") for at in places]
        found += _bits_into(raw, places, 2, cells)
        if inner:
            found += _bits_into(raw, [start + 8, *(start + cell for cell in cells)], 4, pages)
    return found


def _bits_into(raw, places, length, targets):
    """Return the bits of the numbers at these places that, flipped, make one of them a target."""
    return [
        8 * (at + length - 1 - n // 8) + n % 8
        for at in places
        for n in range(8 * length)
        if int.from_bytes(raw[at : at + length], "big") ^ 1 << n in targets
    ]


def _bits_of_floors(path):
    """Return the numbers of the bits of every floor, in its row and in the index over the keys."""
    raw = path.read_bytes()
    marker = floor_key(b"")
    found = [at for at in range(len(raw)) if raw.startswith(marker, at)]
    assert found
    return sorted({8 * near + bit for at in found for near in range(at - 20, at + 50) for bit in range(8)})


def _bits_in_use(path, table):
    """Return the numbers of the bits that hold the rows of a table or an index; free space is left out."""
    raw = path.read_bytes()
    used = [
        at for page in _pages(path, table) for at in range((page - 1) * 4096, page * 4096) if raw[at] or at % 4096 < 12
    ]
    return [8 * at + bit for at in used for bit in range(8)]


def _pages(path, name):
    """Return the numbers of the pages of a table or an index."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [page for (page,) in connection.execute("SELECT pageno FROM dbstat WHERE name = ?", (name,)).fetchall()]
    finally:
        connection.close()


@pytest.mark.scorecard(7, planted=True)
def test_a_backend_that_believes_every_row_is_found_out(whole, path, monkeypatch):
    # given the planted bug: sums are not compared
    source, told = whole

    def credulous(row):
        key, kind, version, written, expires, _sum, value = row
        return Record(key, value, version, written, expires) if kind == rows.RECORD else None

    monkeypatch.setattr(rows, "verified_record", credulous)
    # when a bit inside a stored value is flipped
    value = told.values["alpha"]["k0001"][0][2]
    raw = source.read_bytes()
    places = [at for at in range(len(raw)) if raw.startswith(value, at)]
    counted, _ = flip_many(source, told, path, "", [8 * (at + 1) for at in places])
    # then the judge sees a wrong value
    print(f"planted bug: {counted['wrong']} of {len(places)} flips judged wrong")
    assert counted["wrong"] >= 1

"""Checks of checkpointing: what is known after a kill inside a step, growth, expiry, and what is kept apart."""

from __future__ import annotations

from collections.abc import Iterator

from tenuto.audit.bench import Bench, check
from tenuto.audit.findings import Finding, failed, judged, not_offered, not_tested, passed
from tenuto.audit.replicas import Gone, Refused
from tenuto.audit.scratch import kind_of
from tenuto.backends import connect

_TURNS = 80
_PER_DAY = 1_000
"""Conversations a day of 80 turns, for the projection."""
_HURTS = 50 * 1024**3
_STEEP = 1.6
_MORE_FILES = 25
_NO_STEPS = "The target stores values; it records no steps."


@check("T030")
def production(bench: Bench) -> Iterator[Finding]:
    """Survives, is shared, is durable, and opens no connection for each call."""
    problems = [
        text
        for code, text in (("T002", "state is gone with its process"), ("T004", "replicas do not share state"))
        if (before := bench.found.get(code)) is not None and before.status == "failed"
    ]
    survives = _survives(bench)
    if survives not in (None, "kill and power loss"):
        problems.append(f"acknowledged writes survive only {survives}")
    before, after = bench.pair[0]("files", bench.key("files"))
    if after > before + _MORE_FILES:
        problems.append(f"200 calls from 10 threads left {after - before} more files and sockets open")
    about = f"Open files and sockets: {before} before and {after} after 200 calls from 10 threads"
    fine = f"{about}; writes survive {survives}." if survives else f"{about}; state survives its process."
    yield judged("T030", f"{'; '.join(problems)}. {about}." if problems else fine, ok=not problems)


def _survives(bench: Bench) -> str | None:
    url = bench.target.url
    if url is None or kind_of(url) in ("http", "volatile"):
        return None
    backend = connect(url)
    try:
        return str(backend.stats().get("survives", "kill and power loss"))
    finally:
        backend.close()


@check("T031", "T032", "T033")
def in_progress(bench: Bench) -> Iterator[Finding]:
    """A process dies inside a payment: after the effect, before its result is recorded."""
    if bench.kind == "LangGraph checkpointer":
        yield from _pending_writes(bench)
        return
    if "runs" not in bench.abilities:
        for code in ("T031", "T032", "T033"):
            yield not_offered(code, _NO_STEPS)
        return
    run, ledger = bench.key("trip"), str(bench.path("ledger"))
    dying = bench.fresh()
    try:
        dying("run_and_die", run, ledger)
    except Gone:
        dying.stop()
    one = bench.pair[0]
    after = one("steps", run)
    yield judged(
        "T031",
        f"After the kill the record says: {', '.join(f'{name} {status}' for name, status in after.items())}.",
        ok=after.get("search") == "completed" and after.get("pay") not in (None, "completed"),
    )
    noted = one("run_again", run, ledger)
    yield judged(
        "T032",
        f"The resumed run repeated {noted.count('searched') - 1} completed steps and did the rest "
        f"({noted.count('mailed')} mail).",
        ok=noted.count("searched") == 1 and noted.count("mailed") == 1,
    )
    yield judged(
        "T033",
        f"The payment happened before the kill; after the resume it has happened {noted.count('paid')} time"
        f"{'' if noted.count('paid') == 1 else 's'}.",
        ok=noted.count("paid") == 1,
    )


def _pending_writes(bench: Bench) -> Iterator[Finding]:
    yield not_offered("T031", "A checkpoint follows each step and none says that a step has begun.")
    key = bench.key("graph")
    dying = bench.fresh()
    dying("write", key, {"step": 1})
    dying("begun", key)
    dying.kill()
    dying.stop()
    reader = bench.fresh()
    try:
        found = reader("pending", key)
        yield judged(
            "T032", f"Killed between two checkpoints: {found} writes of finished tasks are kept.", ok=found > 0
        )
    except Refused:
        yield failed("T032", "Killed between two checkpoints: the checkpoint and the finished tasks are gone.")
    finally:
        reader.stop()
    yield not_offered("T033", "A task that was cut off is repeated; nothing asks whether its effect happened.")


@check("T034")
def expires(bench: Bench) -> Iterator[Finding]:
    """A value with a time to live is gone after it."""
    if "ttl" not in bench.abilities:
        yield not_offered("T034", "The target takes no ttl: what is old stays until a job of yours ends it.")
        return
    import time  # noqa: PLC0415

    one, key = bench.pair[0], bench.key("ttl")
    one("write", key, {"short": True}, 0.5)
    there = one("read", key) is not None
    time.sleep(0.7)
    gone = one("read", key) is None
    yield judged(
        "T034", f"A value with 0.5 s to live was {'there, then gone' if there and gone else 'not'}.", ok=gone and there
    )


@check("T035")
def growth(bench: Bench) -> Iterator[Finding]:
    """Bytes for each turn of a conversation, early and late."""
    if "size" not in bench.abilities:
        yield not_tested("T035", "The size of this storage is not known. Give the target a method size().")
        return
    sizes = bench.pair[0]("grow", bench.key("grow"), _TURNS)
    half = next(size for turn, size in sizes if turn == _TURNS // 2)
    early, late = (half - sizes[0][1]) / (_TURNS / 2), (sizes[-1][1] - half) / (_TURNS / 2)
    each = sizes[-1][1] - sizes[0][1]
    days = _HURTS / max(each * _PER_DAY, 1)
    yield judged(
        "T035",
        f"{_TURNS} turns of 1 KB take {each / 1024:,.0f} KB: {early / 1024:.1f} KB a turn at first, {late / 1024:.1f} KB "
        f"later. At {_PER_DAY:,} such conversations a day, 50 GB are reached in {days:,.0f} days.",
        ok=late <= max(_STEEP * early, 4_096),
        early=round(early),
        late=round(late),
        days=round(days),
        sizes=sizes,
    )


@check("T036", "T037", "T038")
def apart(bench: Bench) -> Iterator[Finding]:
    """Progress documents, masking and pruning, memory apart from sessions."""
    one = bench.pair[0]
    if "runs" not in bench.abilities:
        yield not_offered("T036", "The target has no progress documents.")
        yield from _deletes(bench)
        return
    found = one("progress", bench.key("progress"))
    yield judged("T036", f"A new session reads the next action: {found}.", ok=found == "compare the two flights")
    tokens, built, before, after = one("masked", bench.key("masked"))
    yield judged(
        "T037",
        f"A conversation of over {tokens:,} tokens was built into a context of {built:,}; pruning left {after} of {before} "
        "checkpoints.",
        ok=built <= 4_000 and (before, after) == (5, 2),
    )
    kept = one("learned", bench.key("ann"), bench.key("chat"))
    yield judged(
        "T038",
        "A conversation was deleted; what it had taught about its user is still recalled."
        if kept
        else "After the conversation was deleted, what it had taught about its user is gone.",
        ok=kept,
    )


def _deletes(bench: Bench) -> Iterator[Finding]:
    if "delete" not in bench.abilities:
        yield not_offered("T037", "The target deletes nothing.")
        yield not_offered("T038", "The target deletes nothing, so what to keep is not a question yet.")
        return
    gone, kept = bench.pair[0]("forget", bench.key("session"), bench.key("user-facts"))
    yield judged("T037", f"A deleted value is {'gone' if gone else 'still there'}.", ok=gone)
    if kept:
        yield passed("T038", "What is known of a user can be kept under another key: it survived the deletion.")
    else:
        yield failed("T038", "Deleting a session also deleted what was stored for its user.")

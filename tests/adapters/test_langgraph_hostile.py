"""Records that somebody else has written: nothing they name is imported or called, and each is a typed error."""

import os
import zlib
from typing import Any

import ormsgpack
import pytest
from graphs import chat, config, say

from tenuto import Damaged, TenutoError, UnknownType
from tenuto.adapters.langgraph import TenutoSaver, TenutoStore
from tenuto.adapters.langgraph.writes import checkpoint_of
from tenuto.capabilities.checkpoints.storage import expanded, place
from tenuto.kernel import codec, keys, tree
from tenuto.kernel.contract import Put


def named(name: str, *lowered: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(codec._REGISTERED, ormsgpack.packb([name, *lowered]))


def langgraphs(module: str, name: str, argument: Any) -> ormsgpack.Ext:
    """What LangGraph's own serializer would import and call."""
    return ormsgpack.Ext(0, ormsgpack.packb((module, name, argument)))


HOSTILE = {
    "os.system by its name": named("os.system", "touch {}"),
    "os.system as LangGraph packs it": langgraphs("os", "system", "touch {}"),
    "a module's function": named("posix:system", ["touch {}"]),
    "a type that is registered, with what it does not take": named("langchain.HumanMessage", 7),
    "a message whose content is a number": named("langchain.HumanMessage", [{"content": 7}, None]),
    "a message without content": named("langchain.AIMessage", [{"id": "x"}, None]),
    "a Send of nothing": named("langgraph.Send", []),
    "an extension that is unknown": ormsgpack.Ext(99, b"x"),
}


def replaced(saver: TenutoSaver, state: Any) -> None:
    """Put another state in place of the newest checkpoint's, with a digest that fits."""
    kernel = saver._agent.kernel
    record = kernel.scan(keys.pack("t-1", "checkpoint", "at"), limit=1, reverse=True)[0]
    placed = place(record)
    grown = tree.regrow(state)
    item = placed.item._replace(
        payload=b"\x00" + b"".join(grown.pieces()), digest=grown.digest, keyframe=placed.number, blob=None
    )
    kernel.commit([], [Put(record.key, codec.encode(list(item)))])


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_value_is_refused(path: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(os, "system", called.append)
    book = {"channel_versions": {}, "versions_seen": {}, "v": 4, "ts": ""}
    with TenutoSaver(path) as saver:
        chat(saver).invoke(say("hello"), config())
        replaced(saver, {"messages": [HOSTILE[what]], "__langgraph__": book})
    for read in (TenutoSaver.get_tuple, lambda saver, where: list(saver.list(where, limit=1))):
        with TenutoSaver(path) as saver, pytest.raises((UnknownType, Damaged)):
            read(saver, config())
    assert called == []


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00\xc6\xff\xff\xff\xff",  # bytes of 4 GB that are not there
        b"\x00\xdd\xff\xff\xff\xff",  # a list of four thousand million elements
        b"\x01" + zlib.compress(b"\x00" * (64 << 20), 9),  # 64 MB in 64 KB
        b"\x01not compressed",
        b"\x00" + b"\x91" * 100_000,  # nested without end
        b"\x00" + ormsgpack.packb(7),
        b"\x00" + ormsgpack.packb({"messages": []}),
        b"",
    ],
    ids=["huge bytes", "huge list", "bomb", "not compressed", "deep", "a number", "no bookkeeping", "nothing"],
)
def test_a_record_that_no_saver_wrote_is_refused(path: str, payload: bytes) -> None:
    with TenutoSaver(path) as saver:
        chat(saver).invoke(say("hello"), config())
        kernel = saver._agent.kernel
        record = kernel.scan(keys.pack("t-1", "checkpoint", "at"), limit=1, reverse=True)[0]
        placed = place(record)
        item = placed.item._replace(payload=payload, keyframe=placed.number)
        kernel.commit([], [Put(record.key, codec.encode(list(item)))])
        task = kernel.scan(keys.pack("t-1", "langgraph", "writes"), limit=1)[0]
        kernel.commit([], [Put(task.key, payload)])
    with TenutoSaver(path) as saver:
        with pytest.raises(Damaged):
            saver.get_tuple(config())
        with pytest.raises(TenutoError):
            saver._graphs.writes.of("t-1", "", checkpoint_of(task))


def test_a_payload_that_expands_without_end_is_cut_short() -> None:
    with pytest.raises(Damaged, match="larger than the limit"):
        expanded(b"\x01" + zlib.compress(b"\x00" * (64 << 20), 9))


@pytest.mark.parametrize("value", [codec.encode(7), codec.encode([1, 2]), b"\x01\xc6\xff\xff\xff\xff"])
def test_an_item_that_no_store_wrote_is_refused(path: str, value: bytes) -> None:
    with TenutoStore(path) as store:
        store.put(("a",), "k", {"n": 1})
        record = store._agent.kernel.scan(keys.pack("langgraph", "item"))[0]
        store._agent.kernel.commit([], [Put(record.key, value)])
        with pytest.raises(Damaged):
            store.get(("a",), "k")

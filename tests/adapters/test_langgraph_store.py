"""LangGraph's long-term memory on `TenutoStore`, on every backend."""

import asyncio
from typing import Any

import pytest
from graphs import config
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore, GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from tenuto import InvalidInput, Tenuto
from tenuto.adapters.langgraph import TenutoSaver, TenutoStore
from tenuto.testing import HeldClock


def test_items_are_put_got_changed_and_deleted(stores: Any) -> None:
    with TenutoStore(stores.new()) as store:
        store.put(("users", "ann"), "seat", {"text": "aisle", "tags": ("a", 1)})
        first = store.get(("users", "ann"), "seat")
        assert first.value == {"text": "aisle", "tags": ("a", 1)}
        store.put(("users", "ann"), "seat", {"text": "window"})
        second = store.get(("users", "ann"), "seat")
        assert second.value == {"text": "window"}
        assert (second.created_at, second.namespace, second.key) == (first.created_at, ("users", "ann"), "seat")
        assert second.updated_at >= first.updated_at
        store.delete(("users", "ann"), "seat")
        assert store.get(("users", "ann"), "seat") is None
        assert store.get(("users",), "ann") is None


def test_the_reads_of_a_batch_come_before_its_puts(stores: Any) -> None:
    with TenutoStore(stores.new()) as store:
        store.put(("a",), "k", {"n": 1})
        results = store.batch(
            [
                PutOp(("a",), "k", {"n": 2}),
                GetOp(("a",), "k"),
                SearchOp(("a",)),
                ListNamespacesOp(),
                PutOp(("b",), "k", {"n": 3}),
                PutOp(("b",), "k", {"n": 4}),
            ]
        )
        assert results[1].value == {"n": 1}
        assert [item.value for item in results[2]] == [{"n": 1}]
        assert results[3] == [("a",)]
        assert [results[0], *results[4:]] == [None, None, None]
        assert store.get(("b",), "k").value == {"n": 4}


def test_a_large_batch_goes_in_parts(stores: Any) -> None:
    with TenutoStore(stores.new()) as store:
        store.batch([PutOp(("n", str(n % 7)), f"{n:04d}", {"n": n}) for n in range(1_100)])
        assert len(store.search(("n",), limit=2_000)) == 1_100
        assert store.list_namespaces(prefix=("n",)) == [("n", str(n)) for n in range(7)]


def test_searching_stays_below_its_prefix_label_by_label(stores: Any) -> None:
    with TenutoStore(stores.new()) as store:
        for namespace in (("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("A",), ("a\n",)):
            store.put(namespace, "k", {"at": "/".join(namespace)})
        assert {item.namespace for item in store.search(("a",))} == {("a",), ("a", "b"), ("a", "b", "c")}
        assert len(store.search(())) == 6
        assert len(store.search((), limit=2, offset=5)) == 1
        conditions = (MatchCondition("prefix", ("a", "*")), MatchCondition("suffix", ("c",)))
        assert store.batch([ListNamespacesOp(match_conditions=conditions)]) == [[("a", "b", "c")]]
        assert store.list_namespaces(max_depth=1) == [("A",), ("a",), ("a\n",), ("ab",)]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ({"n": 2}, [2]),
        ({"n": {"$gt": 1}}, [2, 3]),
        ({"n": {"$gte": 1, "$lt": 3}}, [1, 2]),
        ({"n": {"$ne": 2}, "even": False}, [1, 3]),
        ({"even": 1}, []),
        ({"deep.n": {"$lte": 1}}, [1]),
        ({"deep": {"n": 3}}, [3]),
        ({"n": {"$gt": "x"}}, []),
        ({"missing": {"$gt": 0}}, []),
        ({"missing": None}, [1, 2, 3]),
        ({"') OR 1=1 --": 1}, []),
    ],
    ids=str,
)
def test_filters_compare_values(path: str, condition: Any, found: list[int]) -> None:
    with TenutoStore(path) as store:
        for n in (1, 2, 3):
            store.put(("f",), str(n), {"n": n, "even": n % 2 == 0, "deep": {"n": n}})
        assert sorted(item.value["n"] for item in store.search(("f",), filter=condition)) == found


def test_a_comparison_that_is_none_is_refused(path: str) -> None:
    with TenutoStore(path) as store:
        store.put(("f",), "k", {"n": 1})
        with pytest.raises(InvalidInput, match=r"\$regex"):
            store.search(("f",), filter={"n": {"$regex": ".*"}})


def test_an_item_past_its_time_is_absent_to_everything(clock: HeldClock) -> None:
    with Tenuto("a", "volatile:", clock=clock) as agent:
        store = TenutoStore(agent, ttl={"default_ttl": 10, "refresh_on_read": True})
        store.put(("t",), "default", {"n": 1})
        store.put(("t",), "short", {"n": 2}, ttl=1)
        store.put(("t",), "for ever", {"n": 3}, ttl=None)
        clock.advance(90)
        assert {item.key for item in store.search(("t",), refresh_ttl=False)} == {"for ever", "default"}
        assert store.get(("t",), "short") is None
        clock.advance(500)
        before = store.get(("t",), "default")
        assert before is not None
        clock.advance(500)
        after = store.get(("t",), "default", refresh_ttl=False)
        assert after is not None, "reading it renewed it"
        assert after.updated_at == before.updated_at
        clock.advance(101)
        assert store.get(("t",), "default") is None
        assert store.list_namespaces() == [("t",)]


def test_without_an_index_a_query_is_matched_by_words(stores: Any) -> None:
    with TenutoStore(stores.new()) as store:
        store.put(("m",), "1", {"text": "the user prefers aisle seats"})
        store.put(("m",), "2", {"text": "the user prefers coffee", "more": ["and window seats", {"deep": "Übung"}]})
        store.put(("m",), "3", {"text": "nothing of the kind"})
        found = store.search(("m",), query="Aisle seats")
        assert [item.key for item in found] == ["1", "2"]
        assert found[0].score > found[1].score > 0
        assert [item.key for item in store.search(("m",), query="übung")] == ["2"]
        assert store.search(("m",), query="zebra") == []


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


async def aembed(texts: list[str]) -> list[list[float]]:
    return embed(texts)


def test_with_an_index_a_query_is_matched_by_meaning(stores: Any) -> None:
    with TenutoStore(stores.new(), index={"dims": 3, "embed": embed, "fields": ["text", "tags[*]"]}) as store:
        store.put(("m",), "1", {"text": "aaa", "tags": ["b"]})
        store.put(("m",), "2", {"text": "ccc"})
        store.put(("m",), "3", {"text": "bbb"}, index=False)
        store.put(("m",), "4", {"text": "x", "other": "bb"}, index=["other"])
        found = store.search(("m",), query="b")
        assert {item.key for item in found[:2]} == {"1", "4"}
        assert [item.key for item in found[2:]] == ["2", "3"]
        assert found[0].score == pytest.approx(1.0)
        assert found[-1].score is None
        assert [item.key for item in store.search(("m",), query="c", limit=1)] == ["2"]


def test_async_code_has_the_same(stores: Any) -> None:
    async def main() -> None:
        async with TenutoStore(stores.new(), index={"dims": 3, "embed": aembed}) as store:
            await store.aput(("m",), "1", {"text": "aab"})
            await store.aput(("m",), "2", {"text": "ccc"}, ttl=5)
            assert (await store.aget(("m",), "1")).value == {"text": "aab"}
            assert [item.key for item in await store.asearch(("m",), query="cc")] == ["2", "1"]
            assert await store.alist_namespaces() == [("m",)]
            await store.adelete(("m",), "1")
            assert await store.aget(("m",), "1") is None

    asyncio.run(main())


def test_a_graph_remembers_across_threads(path: str) -> None:
    with Tenuto("a", path) as agent:
        builder = StateGraph(dict)

        def remember(state: Any, *, store: BaseStore) -> Any:
            count = len(store.search(("seen",)))
            store.put(("seen",), str(count), {"n": count})
            return {"count": count}

        builder.add_node("remember", remember)
        builder.add_edge(START, "remember")
        graph = builder.compile(checkpointer=TenutoSaver(agent), store=TenutoStore(agent))
        assert [graph.invoke({}, config(f"t-{n}"))["count"] for n in range(3)] == [0, 1, 2]

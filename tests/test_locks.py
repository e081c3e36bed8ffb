"""Where a lock is held there is no loop: Control-C must not leave it held.

Where a loop begins anew, Python 3.12 and 3.13 look for a signal at an instruction that the `with` around it does not cover
(its compiler leaves such holes when the loop ends with a condition). What a `with` calls is covered, loops and all.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src" / "tenuto"
LOCKS = ("_changed", "_gate", "_guard", "_learning", "_lock", "_mutex", "_opening", "_turn")
LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp)
OTHERS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
NEVER_IN_THE_MAIN_THREAD = {"renewal.py", "_listener.py"}
"""A signal's handler runs in the main thread only."""


def within(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        if not isinstance(node, OTHERS):
            yield node
            yield from within(list(ast.iter_child_nodes(node)))


def held_loops(source: str) -> list[int]:
    """Return the lines of all loops right under a `with` on a lock."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.With):
            names = [getattr(item.context_expr, "attr", getattr(item.context_expr, "id", "")) for item in node.items]
            if any(name.endswith(LOCKS) for name in names):
                found += [loop.lineno for loop in within(list(node.body)) if isinstance(loop, LOOPS)]
    return found


def test_no_loop_is_right_under_a_lock() -> None:
    sources = [path for path in SOURCES.rglob("*.py") if path.name not in NEVER_IN_THE_MAIN_THREAD]
    assert len(sources) > 100
    assert {path.name: lines for path in sources if (lines := held_loops(path.read_text()))} == {}


def test_a_loop_under_a_lock_is_found() -> None:
    assert held_loops("with self._mutex:\n    if a:\n        for b in c:\n            d()\n") == [3]
    assert held_loops("with _gate:\n    a = [b for b in c]\n") == [2]
    assert held_loops("with self._mutex:\n    def a():\n        for b in c:\n            d()\n") == []

"""A state as a tree of encoded pieces, so that storing the next state costs only what changed.

`grow` encodes a state into a tree: a small value is one piece, a large dict has one piece for each key,
a long list one for every 64 elements. Given the tree of the previous state, a piece with equal bytes
is reused. Every value is encoded and compared, so an element that was edited in place, moved, inserted,
removed or changed in type is always found. Finding changes costs one encoding of the state; storing,
hashing and writing cost only what changed.

Texts and bytes above `LARGE` are stored separately and referenced by digest. The digest of a tree covers
every byte, and the tree depends only on the state, not on its history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import ormsgpack

from tenuto.errors import NotStorable
from tenuto.kernel import codec

SMALL: Final = 1_024
"""A dict or list with an encoding up to this length is one piece."""
RUN: Final = 64
"""Number of list elements in one piece."""
WIDE: Final = 65_536
"""A piece of a list that is longer than this is split into its elements."""
LARGE: Final = 65_536
"""A text or bytes of at least this length is stored separately."""

_pack = ormsgpack.packb
_blake2b = hashlib.blake2b

Hold: TypeAlias = Callable[[str | bytes], bytes]
"""Stores a large text or bytes and returns the encoded reference to it."""


class Piece:
    """Bytes that are compared, hashed and stored as a unit."""

    __slots__ = ("data", "digest", "holds", "size")

    def __init__(self, data: bytes, *, holds: bool = False) -> None:
        self.data = data
        self.size: int = len(data)
        self.holds = holds  # contains a reference: encoding the value again would inline the large content
        self.digest: bytes = _blake2b(b"p" + data).digest()[:16]

    def pieces(self) -> Iterator[bytes]:
        """Yield the encoding, piece by piece."""
        yield self.data


class Fields:
    """A dict with text keys; each value is a tree."""

    __slots__ = ("digest", "of", "size")

    def __init__(self, of: dict[str, Node]) -> None:
        self.of = of
        names = [_pack(name) for name in of]
        self.size: int = len(map_head(len(of))) + sum(map(len, names)) + sum([node.size for node in of.values()])
        parts = [part for name, node in zip(names, of.values(), strict=True) for part in (name, node.digest)]
        self.digest: bytes = _blake2b(b"d" + b"".join(parts)).digest()[:16]

    def pieces(self) -> Iterator[bytes]:
        """Yield the encoding, piece by piece."""
        yield map_head(len(self.of))
        for name, node in self.of.items():
            yield _pack(name)
            yield from node.pieces()


class Run:
    """Up to 64 elements of a list that together are too large for one piece."""

    __slots__ = ("digest", "of", "size")

    def __init__(self, of: list[Node]) -> None:
        self.of = of
        self.size: int = len(array_head(len(of))) + sum([node.size for node in of])
        self.digest: bytes = _blake2b(b"r" + b"".join([node.digest for node in of])).digest()[:16]

    def pieces(self) -> Iterator[bytes]:
        """Yield the encoding, piece by piece."""
        yield array_head(len(self.of))
        for node in self.of:
            yield from node.pieces()


class Elements:
    """A list, in runs of 64."""

    __slots__ = ("count", "digest", "runs", "size")

    def __init__(self, runs: list[Piece | Run], count: int) -> None:
        self.runs = runs
        self.count = count
        heads = sum([len(array_head(min(RUN, count - at))) for at in range(0, count, RUN)])
        self.size: int = len(array_head(count)) + sum([run.size for run in runs]) - heads
        self.digest: bytes = _blake2b(b"l" + b"".join([run.digest for run in runs])).digest()[:16]

    def pieces(self) -> Iterator[bytes]:
        """Yield the encoding, piece by piece."""
        yield array_head(self.count)
        for run in self.runs:
            if type(run) is Run:
                for node in run.of:
                    yield from node.pieces()
            else:
                yield without_head(run.data)  # type: ignore[union-attr]


Node: TypeAlias = Piece | Fields | Run | Elements


# -- building --------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How values are encoded: by `pack`, and those above `LARGE` by `hold`."""

    pack: Callable[[Any], bytes]
    hold: Hold | None


def grow(state: Any, old: Node | None = None, hold: Hold | None = None) -> Node:
    """Return the tree of a state, reusing equal pieces of `old`."""
    try:
        return _grow(state, old, Way(codec.pack, hold))
    except NotStorable:
        codec.encode(state)  # raises the same error with the path from the root
        raise


def regrow(plain: Any) -> Node:
    """Return the tree of a state decoded to plain data; it equals the tree that was stored."""
    return _grow(plain, None, Way(ormsgpack.packb, None))


def _grow(value: Any, old: Node | None, way: Way) -> Node:
    kind = type(value)
    if kind is dict and value:
        return _grow_dict(value, old, way)
    if kind is list and value:
        return _grow_list(value, old, way)
    if way.hold is not None and (kind is str or kind is bytes) and len(value) >= LARGE:
        return _piece(way.hold(value), old, holds=True)
    return _piece(way.pack(value), old)


def _piece(data: bytes, old: Node | None, *, holds: bool = False) -> Piece:
    if type(old) is not Piece or old.data != data:
        return Piece(data, holds=holds)
    old.holds = old.holds or holds
    return old


def _grow_dict(value: dict[Any, Any], old: Node | None, way: Way) -> Node:
    if type(old) is not Fields and (type(old) is not Piece or not old.holds) and _looks_small(value):
        data = way.pack(value)
        if len(data) <= SMALL:
            return _piece(data, old)
    if not all(type(name) is str for name in value):
        return _piece(way.pack(value), old)
    before = old.of if type(old) is Fields else {}
    grown = {name: _grow(inner, before.get(name), way) for name, inner in value.items()}
    if (
        type(old) is Fields
        and len(before) == len(grown)
        and all(mine is theirs for mine, theirs in zip(grown.values(), before.values(), strict=True))
        and list(grown) == list(before)
    ):
        return old
    fields = Fields(grown)
    return fields if fields.size > SMALL else _joined(fields, old)


def _looks_small(value: dict[Any, Any]) -> bool:
    if len(value) > RUN:
        return False
    for inner in value.values():
        kind = type(inner)
        if kind is dict or kind is list:
            if len(inner) > 8:
                return False
        elif (kind is str or kind is bytes) and len(inner) > SMALL:
            return False
    return True


def _grow_list(value: list[Any], old: Node | None, way: Way) -> Node:
    if type(old) is not Elements and (type(old) is not Piece or not old.holds) and len(value) <= RUN:
        data = way.pack(value)
        if len(data) <= SMALL:
            return _piece(data, old)
    before = old.runs if type(old) is Elements else []
    known = len(before)
    runs: list[Piece | Run] = []
    for number, at in enumerate(range(0, len(value), RUN)):
        runs.append(_grow_run(value[at : at + RUN], before[number] if number < known else None, way))
    if type(old) is Elements and old.count == len(value) and all(a is b for a, b in zip(runs, before, strict=True)):
        return old
    elements = Elements(runs, len(value))
    return elements if elements.size > SMALL else _joined(elements, old)


def _grow_run(values: list[Any], old: Piece | Run | None, way: Way) -> Piece | Run:
    if (type(old) is Piece and not old.holds) or old is None:
        data = way.pack(values)
        if len(data) <= WIDE:
            return old if old is not None and old.data == data else Piece(data)
    before: list[Node] = old.of if type(old) is Run else []
    known = len(before)
    grown = [_grow(value, before[at] if at < known else None, way) for at, value in enumerate(values)]
    if type(old) is Run and known == len(grown) and all(a is b for a, b in zip(grown, before, strict=True)):
        return old
    run = Run(grown)
    return run if run.size > WIDE else _joined(run, old)


def _joined(node: Node, old: Node | None) -> Piece:
    """Merge a node that turned out small into one piece."""
    return _piece(b"".join(node.pieces()), old, holds=_holds(node))


def _holds(node: Node) -> bool:
    if type(node) is Piece:
        return node.holds
    inner: Any = node.runs if type(node) is Elements else node.of  # type: ignore[union-attr]
    return any(_holds(one) for one in (inner.values() if type(inner) is dict else inner))


def largest(node: Node) -> str:
    """Return the path of the largest part: follow parts of at least half the size."""
    path = ""
    while type(node) is not Piece:
        inner: list[tuple[str, Node]]
        if type(node) is Fields:
            inner = [(f".{name}" if name.isidentifier() else f"[{name!r:.80}]", one) for name, one in node.of.items()]
        elif type(node) is Run:
            inner = [(f"[{at}]", one) for at, one in enumerate(node.of)]
        else:
            inner = [("", run) for run in node.runs]  # type: ignore[union-attr]
        step, biggest = max(inner, key=lambda pair: pair[1].size)
        if biggest.size * 2 < node.size:
            break
        path, node = path + step, biggest
    return path.removeprefix(".") or "the state"


# -- MessagePack headers ---------------------------------------------------------------------------


def map_head(count: int) -> bytes:
    """Return the MessagePack header of a dict."""
    if count < 16:
        return bytes([0x80 | count])
    return b"\xde" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdf" + count.to_bytes(4, "big")


def array_head(count: int) -> bytes:
    """Return the MessagePack header of a list."""
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def count_of(data: bytes) -> int:
    """Return the number of elements of an encoded run."""
    return data[0] & 0x0F if data[0] < 0xDC else int.from_bytes(data[1:3], "big")


def without_head(data: bytes) -> bytes:
    """Return the concatenated elements of an encoded run."""
    return data[1:] if data[0] < 0xDC else data[3:]

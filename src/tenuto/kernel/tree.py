"""A state as a tree of encoded pieces, so that the next one costs what changed.

`grow` encodes a state piece by piece into a tree: small things are one piece, a large dict has a piece
for each key, a long list one for every 64 elements. Given the tree of the state before, a piece whose
bytes are the same *is* the old piece. Nothing is taken on trust: an element edited in place, moved,
inserted, removed or changed in type has other bytes, and is found. Finding costs the encoding of the
state; storing, hashing and writing cost only what changed.

Texts and bytes beyond `LARGE` are held apart, as a reference by digest. The digest of a tree covers every
byte, and the tree depends on the state alone, not on how it came about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import ormsgpack

from tenuto.errors import NotStorable
from tenuto.kernel import codec

SMALL: Final = 1_024
"""A dict or list whose encoding is no longer than this is one piece."""
RUN: Final = 64
"""So many elements of a list make one piece."""
WIDE: Final = 65_536
"""A piece of a list that is longer than this is kept element by element."""
LARGE: Final = 65_536
"""A text or bytes of this length is held apart."""

_pack = ormsgpack.packb
_sha256 = hashlib.sha256

Hold: TypeAlias = Callable[[str | bytes], bytes]
"""Takes a large text or bytes and returns the packed reference that stands for it."""


class Piece:
    """Bytes that are compared, hashed and stored as one."""

    __slots__ = ("data", "digest", "holds", "size")

    def __init__(self, data: bytes, *, holds: bool = False) -> None:
        self.data = data
        self.size: int = len(data)
        self.holds = holds  # a reference is inside: encoding the value anew would bring the large thing back
        self.digest: bytes = _sha256(b"p" + data).digest()[:16]

    def pieces(self) -> Iterator[bytes]:
        """Yield the encoding, piece by piece."""
        yield self.data


class Fields:
    """A dict with text keys, each value a tree of its own."""

    __slots__ = ("digest", "of", "size")

    def __init__(self, of: dict[str, Node]) -> None:
        self.of = of
        names = [_pack(name) for name in of]
        self.size: int = len(map_head(len(of))) + sum(map(len, names)) + sum([node.size for node in of.values()])
        parts = [part for name, node in zip(names, of.values(), strict=True) for part in (name, node.digest)]
        self.digest: bytes = _sha256(b"d" + b"".join(parts)).digest()[:16]

    def pieces(self) -> Iterator[bytes]:
        """Yield the encoding, piece by piece."""
        yield map_head(len(self.of))
        for name, node in self.of.items():
            yield _pack(name)
            yield from node.pieces()


class Run:
    """Up to 64 elements of a list that are too large together to be one piece."""

    __slots__ = ("digest", "of", "size")

    def __init__(self, of: list[Node]) -> None:
        self.of = of
        self.size: int = len(array_head(len(of))) + sum([node.size for node in of])
        self.digest: bytes = _sha256(b"r" + b"".join([node.digest for node in of])).digest()[:16]

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
        self.digest: bytes = _sha256(b"l" + b"".join([run.digest for run in runs])).digest()[:16]

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


# -- growing ---------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How values become bytes: by `pack`, and those beyond `LARGE` by `hold`."""

    pack: Callable[[Any], bytes]
    hold: Hold | None


def grow(state: Any, old: Node | None = None, hold: Hold | None = None) -> Node:
    """Return the tree of a state; what is the same as in `old` is taken from there."""
    try:
        return _grow(state, old, Way(codec.pack, hold))
    except NotStorable:
        codec.encode(state)  # the same complaint, with the path from the top
        raise


def regrow(plain: Any) -> Node:
    """Return the tree of a state that was stored and is plain data now: the same tree as when it was grown."""
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
    """Return as one piece what turned out small."""
    return _piece(b"".join(node.pieces()), old, holds=_holds(node))


def _holds(node: Node) -> bool:
    if type(node) is Piece:
        return node.holds
    inner: Any = node.runs if type(node) is Elements else node.of  # type: ignore[union-attr]
    return any(_holds(one) for one in (inner.values() if type(inner) is dict else inner))


def largest(node: Node) -> str:
    """Return the path of the part that makes a tree large: down to where no part is half of it."""
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


# -- MessagePack's heads ----------------------------------------------------------------------------


def map_head(count: int) -> bytes:
    """Return how MessagePack begins a dict."""
    if count < 16:
        return bytes([0x80 | count])
    return b"\xde" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdf" + count.to_bytes(4, "big")


def array_head(count: int) -> bytes:
    """Return how MessagePack begins a list."""
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def count_of(data: bytes) -> int:
    """Return how many elements an encoded run has."""
    return data[0] & 0x0F if data[0] < 0xDC else int.from_bytes(data[1:3], "big")


def without_head(data: bytes) -> bytes:
    """Return the elements of an encoded run, one behind the other."""
    return data[1:] if data[0] < 0xDC else data[3:]

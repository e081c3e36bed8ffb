"""What a hook raises while a value is packed or unpacked comes out as itself: an interrupt is no damage."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from typing import Any

import ormsgpack
import pytest

from tenuto.errors import Damaged
from tenuto.kernel import codec, packing_errors


class Bomb:
    """A stored type that raises what the test says, while it is packed or unpacked."""

    packing: BaseException | None = None
    unpacking: BaseException | None = None


def _pack(_: Bomb) -> str:
    if Bomb.packing is not None:
        raise Bomb.packing
    return "bomb"


def _unpack(_: str) -> Bomb:
    if Bomb.unpacking is not None:
        raise Bomb.unpacking
    return Bomb()


@pytest.fixture(autouse=True)
def bomb() -> Iterator[None]:
    codec.register(Bomb, name="bomb", encode=_pack, decode=_unpack)
    yield
    Bomb.packing = Bomb.unpacking = None


PASSING = [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), MemoryError(), RecursionError()]


@pytest.mark.parametrize("error", PASSING, ids=repr)
@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: [1, {"k": v}], lambda v: ((v,),)], ids=["bare", "plain", "tuples"]
)
def test_an_interrupt_comes_out_as_itself(error: BaseException, wrap: Any) -> None:
    stored = codec.encode(wrap(Bomb()))
    Bomb.unpacking = error
    for read in (codec.decode, lambda data: codec.decode(data, lambda _: ""), lambda data: codec.unpack(data[1:])):
        with pytest.raises(type(error)) as found:
            read(stored)
        assert found.value is error
    Bomb.packing = error
    for write in (codec.encode, codec.pack, codec.fast_pack):
        with pytest.raises(type(error)) as found:
            write(wrap(Bomb()))
        assert found.value is error


def test_an_interrupt_while_large_parts_are_found_comes_out_as_itself() -> None:
    def find(_: codec.Held) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        codec.unpack(codec.held(bytes(16), 3, text=True), find)


def test_an_interrupt_before_the_hooks_first_line_is_an_interrupt() -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(ValueError, match="ext_hook failed") as found:
        ormsgpack.unpackb(ormsgpack.packb(ormsgpack.Ext(1, b"")), ext_hook=interrupted)
    assert isinstance(packing_errors.raised(found.value), KeyboardInterrupt)
    with pytest.raises(TypeError) as refused:
        ormsgpack.packb(object(), default=interrupted)
    assert isinstance(packing_errors.raised(refused.value), KeyboardInterrupt)


def test_damage_is_still_damage() -> None:
    with pytest.raises(Damaged, match="cannot be decoded"):
        codec.decode(b"\x01" + ormsgpack.packb(ormsgpack.Ext(99, b"")))
    with pytest.raises(Damaged):
        codec.decode(b"\x01\xc1")
    nested = ormsgpack.packb([])
    for _ in range(codec.MAX_WRAPPED + 1):
        nested = ormsgpack.packb([ormsgpack.Ext(1, nested)])
    with pytest.raises(Damaged, match="too deep"):
        codec.unpack(nested)
    with pytest.raises(Damaged):
        codec.held_in(ormsgpack.packb(ormsgpack.Ext(11, b"\xc1")))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer on this system")
def test_a_storm_of_signals_while_decoding_never_reads_as_damage() -> None:
    data = codec.encode([(n, (n,)) for n in range(500)])
    armed, caught = False, 0

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # an error in a callback of the collector, such as hypothesis', is only a warning
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    try:
        while caught < 300:
            try:
                armed = True
                codec.decode(data)
                codec.encode([(caught,)] * 50)
                armed = False  # not between this block and the next
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()
        signal.signal(signal.SIGALRM, before)

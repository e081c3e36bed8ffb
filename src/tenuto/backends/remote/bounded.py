"""Count the values of a MessagePack body before it is decoded.

A body of 20 MB may hold 20 million empty maps, which take 1.4 GB as Python objects. The largest legal call has some thousand
values, whose bytes are skipped here without a copy.
"""

from __future__ import annotations

from typing import Final

from tenuto.errors import InvalidInput, TooLarge

_SMALL: Final = 65_536
"""Bytes that are decoded without counting."""
_MOST: Final = 250_000
"""Values of a body: those of a full `load`, many times over."""
_SIZES: Final[dict[int, tuple[int, int]]] = {
    # first byte: bytes of the length or of the value, and what the length counts: 0 the value itself, 1 bytes, 2 values, 3 pairs
    **dict.fromkeys((0xC0, 0xC2, 0xC3), (0, 0)),
    0xC4: (1, 1), 0xC5: (2, 1), 0xC6: (4, 1), 0xC7: (1, 4), 0xC8: (2, 4), 0xC9: (4, 4),
    0xCA: (4, 0), 0xCB: (8, 0), 0xCC: (1, 0), 0xCD: (2, 0), 0xCE: (4, 0), 0xCF: (8, 0),
    0xD0: (1, 0), 0xD1: (2, 0), 0xD2: (4, 0), 0xD3: (8, 0),
    0xD4: (2, 0), 0xD5: (3, 0), 0xD6: (5, 0), 0xD7: (9, 0), 0xD8: (17, 0),
    0xD9: (1, 1), 0xDA: (2, 1), 0xDB: (4, 1), 0xDC: (2, 2), 0xDD: (4, 2), 0xDE: (2, 3), 0xDF: (4, 3),
}  # fmt: skip


def must_be_bounded(body: bytes) -> None:
    """Raise `TooLarge` if a body has more values than any call, `InvalidInput` if it ends too early."""
    if len(body) <= _SMALL:
        return
    at, left, seen, end = 0, 1, 0, len(body)
    while left:
        if at >= end or seen > _MOST:
            break
        first = body[at]
        at, left, seen = at + 1, left - 1, seen + 1
        if first <= 0x7F or first >= 0xE0:  # a small integer
            continue
        if first <= 0x8F:
            left += 2 * (first & 0x0F)
        elif first <= 0x9F:
            left += first & 0x0F
        elif first <= 0xBF:
            at += first & 0x1F
        else:
            at, left = _skipped(body, at, left, first)
    if seen > _MOST:
        raise TooLarge(f"A call takes up to {_MOST:,} values. Nothing was done; send less.")
    if left or at > end:
        raise InvalidInput("The body is not MessagePack. Nothing was done; send the form of this protocol.")


def _skipped(body: bytes, at: int, left: int, first: int) -> tuple[int, int]:
    """Return the place after the head, or after the bytes, of a value, and how many values are left."""
    width, counts = _SIZES.get(first, (len(body), 0))
    if not counts:
        return at + width, left
    size = int.from_bytes(body[at : at + width], "big")
    at += width
    if counts == 1:
        return at + size, left
    if counts == 4:  # an extension has a byte for its type
        return at + 1 + size, left
    return at, left + size * (counts - 1)

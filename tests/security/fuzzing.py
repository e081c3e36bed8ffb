"""The fuzzer: valid bytes with a few of them changed, cut, repeated or spliced, and bytes by chance, fed to a decoder.

A decoder may return something or raise one of tenuto's errors, in bounded time; everything else is wrong.
"""

import random
import time
from collections import Counter
from collections.abc import Callable

from tenuto.errors import TenutoError

SECONDS = 1.0
"""What one input may take, of the processor: far above what any of these sizes needs."""


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """Return bytes like these, a little wrong."""
    found = bytearray(raw)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(6):
            case 0 if found:
                found[at % len(found)] = chance.randrange(256)
            case 1:
                del found[at : at + chance.randrange(1, 9)]
            case 2:
                found[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                found[at:at] = found[: chance.randrange(len(found) + 1)]
            case 4:
                found[at : at + 4] = b"\xff\xff\xff\xff"
            case _:
                del found[at:]
    return bytes(found)


def fuzz(
    decoder: Callable[[bytes], object], seeds: list[bytes], inputs: int, seed: str
) -> tuple[Counter[str], list[str]]:
    """Feed a decoder; return its outcomes, and what it may not do."""
    chance, outcomes, wrong = random.Random(seed), Counter[str](), []
    for number in range(inputs):
        raw = seeds[number] if number < len(seeds) else mutated(chance.choice(seeds), chance)
        if chance.random() < 0.05:
            raw = chance.randbytes(chance.randrange(80))
        began = time.thread_time()
        try:
            decoder(raw)
            outcomes["decoded"] += 1
        except TenutoError as error:
            outcomes[type(error).__name__] += 1
        except Exception as error:
            wrong.append(f"{error!r} of {raw[:60]!r}")
        if time.thread_time() - began > SECONDS:
            wrong.append(f"{time.thread_time() - began:.1f} s for {raw[:60]!r}")
    return outcomes, wrong

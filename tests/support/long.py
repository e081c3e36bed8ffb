"""The short form of a test, or with TENUTO_LONG=1 the long one."""

import os
from typing import TypeVar

T = TypeVar("T")
LONG = os.environ.get("TENUTO_LONG") == "1"


def size(short: T, long: T) -> T:
    """Return how much a test does."""
    return long if LONG else short

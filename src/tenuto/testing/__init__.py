"""For tests of programs that stand on tenuto, and of backends for it: a clock to hold, faults, kills, the contract."""

from tenuto.testing.clock import HeldClock
from tenuto.wrappers.faults import Faults

__all__ = ["Faults", "HeldClock"]

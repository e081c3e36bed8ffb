"""Tools to test programs that use tenuto, and backends for it: a manual clock, faults, kills, the storage contract."""

from tenuto.testing.clock import HeldClock
from tenuto.wrappers.faults import Faults

__all__ = ["Faults", "HeldClock"]

"""Operations on a whole store: statistics, check, backup, export, import, copy, comparison."""

from tenuto.capabilities.store.compare import Difference, Summary
from tenuto.capabilities.store.export import Exported
from tenuto.capabilities.store.import_ import Imported
from tenuto.capabilities.store.pruned import Pruned
from tenuto.capabilities.store.restore import restored
from tenuto.capabilities.store.rows import Advance, every_stream
from tenuto.capabilities.store.store import Report, Store

__all__ = [
    "Advance",
    "Difference",
    "Exported",
    "Imported",
    "Pruned",
    "Report",
    "Store",
    "Summary",
    "every_stream",
    "restored",
]

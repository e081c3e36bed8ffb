"""Operations on a whole store: statistics, check, backup, export, import, copy, comparison."""

from tenuto.capabilities.store import lines
from tenuto.capabilities.store.archiving import Archived, ArchiveReport
from tenuto.capabilities.store.compare import Difference, Summary
from tenuto.capabilities.store.export import Exported
from tenuto.capabilities.store.import_ import Imported
from tenuto.capabilities.store.pruned import Pruned
from tenuto.capabilities.store.restore import restored
from tenuto.capabilities.store.rows import Advance, Row, Total, batches, every_stream, load
from tenuto.capabilities.store.store import Report, Store

__all__ = [
    "Advance",
    "ArchiveReport",
    "Archived",
    "Difference",
    "Exported",
    "Imported",
    "Pruned",
    "Report",
    "Row",
    "Store",
    "Summary",
    "Total",
    "batches",
    "every_stream",
    "lines",
    "load",
    "restored",
]

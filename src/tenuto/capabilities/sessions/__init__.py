"""Sessions: what one session or agent learned reaches the next one."""

from tenuto.capabilities.sessions.files import name_in, read_file
from tenuto.capabilities.sessions.handoffs import Handoff, HandoffInfo, Handoffs, HandoffStatus
from tenuto.capabilities.sessions.markdown import ProgressItem, Reasoned
from tenuto.capabilities.sessions.merge import Judge, MergeConflict, Merged, MergeVerdict, Rule, Verdict, merge_results
from tenuto.capabilities.sessions.progress import Progress, ProgressEvent, ProgressInfo, Recall, names
from tenuto.capabilities.sessions.session import Session

__all__ = [
    "Handoff", "HandoffInfo", "HandoffStatus", "Handoffs", "Judge", "MergeConflict", "MergeVerdict", "Merged", "Progress",
    "ProgressEvent", "ProgressInfo", "ProgressItem", "Reasoned", "Recall", "Rule", "Session", "Verdict", "merge_results", "name_in",
    "names", "read_file",
]  # fmt: skip

"""Runs: code that resumes from its last completed step."""

from tenuto.capabilities._core.schedules import Missed, ScheduleInfo
from tenuto.capabilities._core.values import MISSING
from tenuto.capabilities.runs.answers import answer_learned
from tenuto.capabilities.runs.arguments import Described, Secret, describe, secret
from tenuto.capabilities.runs.decorated import step_function
from tenuto.capabilities.runs.due import DUE_RUNS
from tenuto.capabilities.runs.durable import Durable, Face, has_run, must_be_run, name_of, register_function
from tenuto.capabilities.runs.engine import Engine, current_step
from tenuto.capabilities.runs.handle import RunHandle
from tenuto.capabilities.runs.history import RunEvent
from tenuto.capabilities.runs.lanes import Lanes
from tenuto.capabilities.runs.log import INTENT, Identity, Op, dollars
from tenuto.capabilities.runs.once import run_once
from tenuto.capabilities.runs.open_run import OpenRun
from tenuto.capabilities.runs.options import (
    Effect,
    Intent,
    MapOptions,
    OnError,
    Retry,
    Step,
    StepOptions,
    Verify,
    called,
)
from tenuto.capabilities.runs.recorded import RunState, RunThread
from tenuto.capabilities.runs.replay import Replay
from tenuto.capabilities.runs.results import error_data, to_stored
from tenuto.capabilities.runs.run import Run, current_run
from tenuto.capabilities.runs.runs import Emitted, Runs
from tenuto.capabilities.runs.step import idempotency_key, recalled, run_step
from tenuto.capabilities.runs.usage import Price, Prices, Usage, forked_from, logs_of, origin_of, priced, usage_of
from tenuto.capabilities.runs.views import ErrorInfo, RepeatInfo, RunInfo, RunRecord, RunStatus, StepInfo, StepStatus
from tenuto.capabilities.runs.worker import Functions, RunSource

__all__ = [
    "DUE_RUNS", "INTENT", "MISSING", "Described", "Durable", "Effect", "Emitted", "Engine", "ErrorInfo", "Face",
    "Functions", "Identity", "Intent", "Lanes", "MapOptions", "Missed", "OnError", "Op", "OpenRun", "Price", "Prices", "RepeatInfo", "Replay",
    "Retry", "Run", "RunEvent", "RunHandle", "RunInfo", "RunRecord", "RunSource", "RunState", "RunStatus", "RunThread", "Runs",
    "ScheduleInfo", "Secret", "Step", "StepInfo", "StepOptions", "StepStatus", "Usage", "Verify", "answer_learned", "called", "current_run",
    "current_step", "describe", "dollars", "error_data", "forked_from", "has_run", "idempotency_key", "logs_of", "must_be_run", "name_of", "origin_of", "priced",
    "recalled", "register_function", "run_once", "run_step", "secret", "step_function", "to_stored", "usage_of",
]  # fmt: skip

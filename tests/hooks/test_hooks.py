"""What hooks make of events: spans and metrics by the SDK's in-memory exporters, Prometheus' text by its parser, log lines."""

import json
import logging
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tenuto import Retry, StateConflict, Tenuto, hooks
from tenuto.kernel import logs

sys.path.insert(0, str(Path(__file__).parent))

import promql

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"


class Telemetry:
    def __init__(self, **options: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = MeterProvider([self.reader])
        self.hook = hooks.OpenTelemetry(tracer_provider=self.tracers, meter_provider=meters, **options)

    def spans(self, begins: str = "") -> list[Any]:
        return [one for one in self.exporter.get_finished_spans() if one.name.startswith(begins)]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


def test_a_resumed_run_begins_a_new_trace_linked_to_the_old_one(tmp_path: Path) -> None:
    telemetry = Telemetry()
    for attempt in range(2):
        with Tenuto("agent", tmp_path / "a.db", hooks=[telemetry.hook]) as agent:
            try:
                with agent.run("trip") as run:
                    run.step("search", lambda: "TP123")
                    run.step("book", lambda attempt=attempt: 1 / attempt)
            except ZeroDivisionError:
                assert not attempt
    first, second = telemetry.spans("invoke_workflow")
    assert first.context.trace_id != second.context.trace_id
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert [link.context.trace_id for link in second.links] == [first.context.trace_id]
    assert not first.links
    assert dict(second.attributes) == {
        "gen_ai.operation.name": "invoke_workflow", "tenuto.run.id": "trip", "tenuto.how": "resumed",
        "tenuto.run.status": "completed", "tenuto.steps.reused": 1,
    }  # fmt: skip
    assert first.status.status_code is trace.StatusCode.ERROR
    steps = telemetry.spans("tenuto.step")
    assert [(one.name, one.attributes["tenuto.outcome"]) for one in steps] == [
        ("tenuto.step search", "completed"),
        ("tenuto.step book", "failed"),
        ("tenuto.step book", "completed"),
    ]
    assert [one.parent.span_id for one in steps] == [first.context.span_id] * 2 + [second.context.span_id]
    assert [(point.attributes["tenuto.how"], point.value) for point in telemetry.points("tenuto.runs")] == [
        ("started", 1),
        ("resumed", 1),
    ]
    assert telemetry.points("tenuto.steps.reused")[0].value == 1


def test_storage_calls_are_spans_below_the_callers_span_and_never_have_contents(tmp_path: Path) -> None:
    telemetry = Telemetry()
    with Tenuto("agent", tmp_path / "a.db", hooks=[telemetry.hook]) as agent:
        agent.state.set("s", "secret-key", "secret-value")
        assert telemetry.spans("tenuto.commit") == [], "no span around it, no span"
        with telemetry.tracers.get_tracer("mine").start_as_current_span("request") as request:
            agent.state.set("s", "secret-key", "secret-value")
            with pytest.raises(StateConflict):
                agent.state.set("s", "secret-key", "secret-value", expect=99)
            agent.memory.remember("secret-value is the answer", user="ann")
            agent.memory.recall("secret-value", user="ann")
    commits = telemetry.spans("tenuto.commit")
    assert commits
    assert {one.parent.span_id for one in commits} == {request.get_span_context().span_id}
    assert commits[0].attributes["tenuto.state.version"] == 2
    assert commits[1].attributes["error.type"] == "Conflict"
    memory = {one.name: dict(one.attributes) for one in telemetry.spans() if one.name.endswith("_memory")}
    assert set(memory) == {"create_memory", "search_memory"}
    assert memory["search_memory"]["gen_ai.operation.name"] == "search_memory"
    assert memory["search_memory"]["gen_ai.memory.record.count"] == 1
    assert telemetry.points("tenuto.conflicts")[0].value == 1
    text = json.dumps([[one.name, dict(one.attributes)] for one in telemetry.spans()])
    assert "secret" not in text


def parsed(text: str) -> dict[str, float]:
    return {
        one.name + "".join(f",{v}" for _, v in sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_prometheus_counts_what_happened(tmp_path: Path) -> None:
    metrics = hooks.Prometheus(CollectorRegistry())
    for attempt in range(2):
        with Tenuto("agent", tmp_path / "a.db", hooks=[metrics]) as agent:
            try:
                with agent.run("trip") as run:
                    run.step("search", lambda: "TP123")
                    run.step("book", lambda attempt=attempt: 1 / attempt, retry=Retry(attempts=3, first=0.001))
            except ZeroDivisionError:
                pass
            with pytest.raises(StateConflict):
                agent.state.set("s", "k", 1, expect=99)
            agent.memory.recall("anything")
    found = parsed(metrics.text())
    assert found["tenuto_runs_opened_total,started"] == 1
    assert found["tenuto_runs_opened_total,resumed"] == 1
    assert found["tenuto_steps_total,completed"] == 2
    assert found["tenuto_steps_total,failed"] == 1
    assert found["tenuto_steps_reused_total"] == 1
    assert found["tenuto_step_retries_total"] == 2
    assert found["tenuto_conflicts_total"] == 2
    assert found["tenuto_calls_total,conflict,commit"] == 2
    assert found["tenuto_lookup_seconds_count,read"] > 2
    assert found["tenuto_memory_seconds_count,search_memory"] == 2
    assert hooks.Prometheus(metrics.registry) is not metrics, "a second hook of one registry shares its metrics"


def test_a_run_taken_over_from_a_dead_process_is_counted(tmp_path: Path) -> None:
    program = "import os,sys; from tenuto import Tenuto\nwith Tenuto('a', sys.argv[1]) as a, a.run('r') as run: run.step('s', int); os._exit(9)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.db")], check=False)
    metrics = hooks.Prometheus(CollectorRegistry())
    for again in range(2):
        if again:
            with pytest.raises(KeyboardInterrupt), Tenuto("b", tmp_path / "a.db", hooks=[metrics]) as agent:
                with agent.run("r") as run:
                    raise KeyboardInterrupt
        else:
            subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.db")], check=False)
    with Tenuto("b", tmp_path / "a.db", hooks=[metrics]) as agent, agent.run("r") as run:
        assert run.step("s", int) == 0
    assert parsed(metrics.text())["tenuto_lease_takeovers_total"] >= 1


def test_log_lines_have_correlation_ids_versions_and_no_contents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tenuto.calls")
    with Tenuto("agent", tmp_path / "a.db", hooks=[hooks.LogCalls()]) as agent, agent.correlation("request-7"):
        agent.state.set("s", "k", "secret-value")
        agent.state.set("s", "k", "secret-value")
        with agent.run("trip") as run:
            run.step("search", lambda query: query, "secret-value")
    lines = [one for one in caplog.records if one.name == "tenuto.calls" and getattr(one, "verb", "") != "read"]
    assert lines
    for one in caplog.records:
        if one.name == "tenuto.calls":
            assert one.correlation_id == "request-7" or getattr(one, "verb", "") == "read"
            assert hasattr(one, "state_version")
            assert "secret" not in one.getMessage() + repr(one.__dict__)
    assert [one.state_version for one in lines if getattr(one, "verb", "") == "commit"][:2] == [1, 2]
    assert [one.event for one in caplog.records if hasattr(one, "event")] == ["opened", "step ended", "left"]


def test_every_line_of_tenuto_has_a_correlation_id_and_a_state_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Path(logs.__file__).parents[1]
    named = {
        name for path in source.rglob("*.py") for name in re.findall(r'getLogger\("tenuto\.(\w+)"', path.read_text())
    }
    assert named == set(logs.NAMES), "each logger of the source is stamped"

    def broken(_: Any) -> None:
        raise RuntimeError("no")

    caplog.set_level(logging.DEBUG, "tenuto")
    with Tenuto("agent", tmp_path / "a.db", hooks=[broken]) as agent, agent.correlation("request-8"):
        agent.state.set("s", "k", 1)
    line = [one for one in caplog.records if one.name == "tenuto.hooks"][-1]
    assert (line.correlation_id, line.state_version) == ("request-8", None)


def test_signs_are_logged_without_their_sentence_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    sign = hooks.SignFound("contradiction", "t", None, "secret sentence", "secret evidence", "request-9")
    hooks.LogCalls()(sign)
    assert "secret" not in caplog.text
    assert "contradiction in t" in caplog.text
    hooks.LogCalls(contents=True)(sign)
    assert "secret sentence (secret evidence)" in caplog.text


@pytest.mark.slow
def test_the_server_has_metrics_that_prometheus_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_TOKEN", "tk_" + "a" * 43)
    with Tenuto("x", tmp_path / "a.db") as agent:
        agent.ask("Buy it?", to="ann")
    server = subprocess.Popen(
        [sys.executable, "-m", "tenuto", "serve", "--url", str(tmp_path / "a.db"), "--port", "0", "--metrics"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        address = re.search(r"serving (\S+)", server.stderr.readline())
        assert address is not None
        with Tenuto("client", address[1], api_key="tk_" + "a" * 43) as agent:
            agent.state.set("s", "k", 1)
            agent.state.get("s", "k")
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(address[1] + "/metrics")
        refused.value.close()
        request = urllib.request.Request(address[1] + "/metrics", headers={"Authorization": "Bearer tk_" + "a" * 43})
        with urllib.request.urlopen(request) as reply:
            assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
            found = parsed(reply.read().decode())
    finally:
        server.terminate()
        server.communicate(timeout=20)
    assert found["tenuto_calls_total,ok,commit"] >= 1
    assert found["tenuto_questions_open"] == 1
    assert found["tenuto_storage_bytes"] > 0
    assert found["tenuto_lookup_p95_seconds"] > 0
    missing = names_used() - {re.sub(r",.*", "", name) for name in found} - LABELLED
    assert missing == set(), "every metric of the rules and of the board is served"


LABELLED = {
    "tenuto_consistency_errors_total", "tenuto_signs_total", "tenuto_steps_total", "tenuto_runs_opened_total",
    "tenuto_audit_failed",
}  # fmt: skip
"""Metrics without a sample before something happened."""


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alert-rules.yml").read_text())["groups"][0]["rules"]
    return found


def board() -> list[str]:
    panels = json.loads((MONITORING / "grafana-board.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def names_used() -> set[str]:
    texts = [one["expr"] for one in rules()] + board()
    return {name for text in texts for name in re.findall(r"tenuto_\w+", text)}


def recorded(bad: bool) -> promql.Series:
    """Scrape a real hook every 15 s for 90 minutes of its time; in the last 30 everything goes wrong, if `bad`."""
    series, metrics = promql.Series(), hooks.Prometheus(CollectorRegistry())
    for at in range(0, 90 * 60, 15):
        wrong = bad and at >= 60 * 60
        for _ in range(10):
            metrics(hooks.Call("read", 0.3 if wrong else 0.002, 1, 10, None, None))
        metrics(hooks.Call("commit", 0.004, 1, 10, None, None))
        for _ in range(20 if wrong else at % 60 == 0):
            metrics(hooks.Call("commit", 0.004, 1, 10, "Conflict", None))
        metrics(hooks.Call("read", 0.1, 0, 0, "StorageUnavailable" if wrong else None, None))
        if wrong:
            metrics(hooks.Call("commit", 0.004, 1, 10, "StaleLease", None))
            metrics(hooks.SignFound("repeated_question", "t", None, "text", "evidence", None))
        metrics(hooks.StepEnded("r", "s", "completed", 0.1, None, None))
        metrics(hooks.RunOpened("r", None, True, False, None, None))
        gauges = {
            name: float(wrong)
            for name in ("runs_in_doubt", "questions_overdue", "tasks_dead", "runs_interrupted", "runs_running")
        }
        gauges |= dict.fromkeys(
            ("runs_waiting", "questions_open", "questions_age", "storage_bytes", "notices_dead", "audit_failed",
             "cost_dollars", "cost_saved_dollars", "model_tokens", "model_cached_tokens"),
            float(at + 1),
        )  # fmt: skip
        text = "".join(f"# TYPE tenuto_{name} gauge\ntenuto_{name} {value}\n" for name, value in gauges.items())
        series.add(at, metrics.text() + text)
    return series


@pytest.fixture(scope="module")
def series() -> dict[bool, promql.Series]:
    return {bad: recorded(bad) for bad in (False, True)}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_fires_over_recorded_series_and_only_when_it_should(rule: Any, series: Any) -> None:
    length = int(rule.get("for", "0m")[:-1]) * 60

    def fires(bad: bool) -> bool:
        since = None
        for at in range(60 * 60, 90 * 60, 15):
            holds = bool(promql.evaluate(rule["expr"], series[bad], at))
            since = (at if since is None else since) if holds else None
            if since is not None and at - since >= length:
                return True
        return False

    assert fires(bad=True)
    assert not fires(bad=False)
    assert set(rule["annotations"]) == {"summary", "action"}


@pytest.mark.parametrize("expression", board())
def test_a_panel_of_the_board_shows_something(expression: str, series: Any) -> None:
    assert promql.evaluate(expression, series[True], 85 * 60), expression


def test_hooks_cost_nothing_when_off_and_little_when_on(tmp_path: Path) -> None:
    """Interleaved: no backend call goes through a wrapper without hooks; with them the ratio is printed."""
    with Tenuto("plain", tmp_path / "a.db") as plain:
        assert type(plain._backend).__name__ == "SQLiteBackend" or "Observe" not in type(plain._backend).__name__
        assert not plain._context.observed
        watched = Tenuto("watched", tmp_path / "a.db", hooks=[hooks.Prometheus(CollectorRegistry())])
        took: dict[str, list[float]] = {"plain": [], "watched": []}
        for number in range(150):
            for name, agent in (("plain", plain), ("watched", watched)):
                began = time.perf_counter()
                agent.state.set("s", name, number)
                took[name].append(time.perf_counter() - began)
        watched.close()
    ratio = sorted(took["watched"])[75] / sorted(took["plain"])[75]
    print(f"a write with hooks.Prometheus takes {ratio:.3f} times as long")

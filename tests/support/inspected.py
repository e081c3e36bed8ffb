"""A store with what an inspector is for: a run that waits for a person, one that failed yesterday, a fork, a conversation."""

import json
import time
from contextlib import suppress

import tenuto
from tenuto import InDoubt, Retry, StepFailed, Tenuto, Waiting
from tenuto.capabilities.audits import AuditFinding, AuditSummary
from tenuto.capabilities.runs import step
from tenuto.capabilities.runs.log import STARTED, Head, RunLog
from tenuto.kernel.durations import moment
from tenuto.testing import HeldClock

DAY = 86_400.0
POLICY = "Invoices above 1,000 EUR without a receipt are approved by finance."


class Rejected(Exception):
    """The bank refused a transfer."""


def agent_of(url, clock=None):
    """Return a client, with the durable functions that the workers of the tests execute."""
    agent = Tenuto("invoices", url, clock=clock)

    @agent.durable
    def pay_invoice(run, number):
        invoice = run.step("read invoice", _read, number)
        match = run.step("match order", _match, invoice["supplier"])
        decision = run.ask(
            f"Pay invoice {number} without a receipt?",
            to="finance",
            context={"invoice": invoice, "match": match},
            choices=["approve", "reject"],
            deadline="24h",
            policy=POLICY,
        )
        if decision != "approve":
            return {"paid": False}
        return run.step("pay", _pay, number, invoice["amount"], effect="once")

    @agent.durable
    def summarize(run, city):
        found = run.step("search", _search, city)
        return run.step("write summary", lambda found: f"{len(found)} hotels in {city}", found)

    return agent, pay_invoice, summarize


def _read(number):
    return {"number": number, "supplier": "Kontor Nord GmbH", "amount": 1480.0, "currency": "EUR", "receipt": None}


def _match(supplier):
    return {"order": "PO-2231", "supplier": supplier, "confidence": 0.94}


def _pay(number, amount):
    return {"paid": True, "transfer": f"T-{number}", "amount": amount}


def _search(city):
    return [f"{city} hotel {number}" for number in range(1, 4)]


class Slow:
    """Steps that take time on a held clock, and models that cost something."""

    def __init__(self, clock):
        self.clock = clock

    def __call__(self, seconds, result, cost=None, run=None):
        def called(*_args):
            self.clock.advance(seconds)
            if cost is not None:
                run.usage("claude-sonnet-4-5", input_tokens=5_200, output_tokens=640, cost=cost)
            if isinstance(result, Exception):
                raise result
            return result

        return called


def story(url, *, runs=24):
    """Fill a store."""
    clock = HeldClock(time.time() - 1.5 * DAY)
    slow = Slow(clock)
    real, step.time = step.time, _Watch(clock)  # how long a step took is measured by the machine's own clock
    agent, pay_invoice, summarize = agent_of(url, clock)
    try:
        _failed_yesterday(agent, clock, slow)
        for number in range(runs):
            with agent.run(f"triage-{4100 + number}", user=("ann", "ben", "cho")[number % 3]) as run:
                run.step("classify", slow(0.8, "invoice", 0.0031, run), f"mail {number}")
                run.step("extract", slow(1.7, {"total": 120 + number}, 0.0124, run), f"mail {number}")
                run.step("file", slow(0.2, "filed"))
                run.result = "filed"
            agent.alerts.sample()
            clock.advance(1_700 if number < runs - 6 else 300)
        _in_doubt(agent, slow)
        _conversation(agent, clock)
        _audited(agent)
        clock.advance(max(0.0, time.time() - clock.time() - 2_400))
        with suppress(Waiting), agent.correlation("req-7f3a"):
            pay_invoice.run("invoice-881", "881")
        clock.advance(300)
        agent.ask(
            "Which supplier should deliver the samples?",
            to="purchasing",
            context={"needed": "2026-12-01", "offers": {"Kontor Nord": 310, "Weber & Sons": 285}},
            schema={
                "type": "object",
                "properties": {
                    "supplier": {"type": "string", "enum": ["Kontor Nord", "Weber & Sons"]},
                    "quantity": {"type": "integer", "minimum": 1, "description": "How many samples"},
                    "note": {"type": "string"},
                },
                "required": ["supplier", "quantity"],
            },
            deadline="2h",
        )
        clock.advance(200)
        summarize.start("summary-porto", "Porto")
        _resumed(agent, slow)
        clock.advance(max(0.0, time.time() - clock.time() - 1))
    finally:
        step.time = real
        agent.close()


class _Watch:
    """The module `time`, as far as it measures, on a held clock."""

    def __init__(self, clock):
        self.perf_counter = self.monotonic = clock.time


def _failed_yesterday(agent, clock, slow):
    """A run that fails in its fourth step, after three attempts, about noon of yesterday."""
    now = time.localtime()
    noon = time.mktime((now.tm_year, now.tm_mon, now.tm_mday - 1, 12, 0, 0, 0, 0, -1))
    clock.advance(max(0.0, noon - clock.time()))
    with suppress(StepFailed), agent.correlation("req-51c0"), agent.run("refund-3107", user="ann") as run:
        run.step("load order", slow(0.4, {"order": 3107, "total": 89.9, "items": ["lamp", "bulb"]}), 3107)
        run.step("check policy", slow(2.3, {"allowed": True, "rule": "30 days"}, 0.0188, run), {"order": 3107})
        run.step("draft reply", slow(3.9, "Dear Ann, we refund 89.90 EUR …", 0.0412, run), "polite")
        run.step(
            "refund",
            slow(1.1, Rejected("account 4471 is closed (R02): return to sender")),
            {"account": "4471", "amount": 89.9},
            retry=Retry(attempts=3, first=2.0, on=(Rejected,)),
        )


def _in_doubt(agent, slow):
    """A step with an effect whose outcome is unknown when the run is resumed."""

    def unknown(_intent):
        return tenuto.Unknown("no receipt")

    lost = ConnectionError("the connection was closed before the reply")
    for _ in range(2):
        with suppress(InDoubt, ConnectionError), agent.run("export-77", user="cho") as run:
            run.step("collect", slow(1.4, ["a.csv", "b.csv"]))
            run.step("send", slow(0.6, lost), "partner@example.com", effect="once", verify=unknown)


def _resumed(agent, slow):
    """A run that was interrupted by an error, and resumed: its first steps are reused."""
    for broken in (True, False):
        with suppress(RuntimeError), agent.run("report-w47", user="ben") as run:
            run.step("collect", slow(2.2, [3, 5, 8]))
            run.step("analyse", slow(6.1, {"mean": 5.33}, 0.0544, run))
            run.step("render", slow(0.9, RuntimeError("no fonts") if broken else "report.pdf"))
            run.result = "report.pdf"
        slow.clock.advance(900)


def _conversation(agent, clock):
    thread = agent.thread("trip-lisbon", user="ann")
    state = {"goal": "Lisbon in May", "budget": 600, "plan": []}
    turns = [
        ("Find me a flight to Lisbon on 9 May, back on the 13th.", "Looking for flights.", "search_flights", {"from": "HAM", "to": "LIS", "date": "2026-05-09"}, [{"id": "TP571", "price": 184}, {"id": "LH1172", "price": 231}]),
        ("Take the cheaper one, aisle seat.", "TP571 has an aisle seat in row 12.", "hold_seat", {"flight": "TP571", "seat": "12C"}, {"held": True}),
        ("And a hotel near the river?", "Three fit your budget.", "search_hotels", {"city": "Lisbon", "near": "Tejo"}, ["Casa do Rio", "Hotel Mar", "Alfama 21"]),
    ]  # fmt: skip
    for number, (asked, said, tool, args, result) in enumerate(turns, 1):
        call = {"id": f"call-{number}", "type": "function", "function": {"name": tool, "arguments": json.dumps(args)}}
        thread.append({"role": "user", "content": asked})
        thread.append({"role": "assistant", "content": said, "tool_calls": [call]})
        thread.append({"role": "tool", "tool_call_id": f"call-{number}", "content": json.dumps(result)})
        state["plan"].append({"step": tool, "done": True})
        state["budget"] -= 184 if number == 2 else 0
        agent.checkpoint.create("trip", dict(state), thread="trip-lisbon")
        clock.advance(40)
    thread.append(
        {"role": "assistant", "content": "Casa do Rio is 90 EUR a night, 300 m from the river. Shall I book it?"}
    )
    agent.memory.remember("Ann prefers aisle seats", user="ann", kind="preference", about="ann", predicate="seat")
    agent.memory.remember("Ann's budget for a weekend trip is 600 EUR", user="ann", about="ann", predicate="budget")
    agent.memory.remember("Hotels in Lisbon charge a city tax of 4 EUR per night", kind="policy")
    agent.tasks.enqueue("reviews", {"file": 31}, user="ann")
    agent.tasks.enqueue("reviews", {"file": 32}, user="ben")


def _audited(agent):
    """Two audits, the second after a repair, as `tenuto audit` records them; and two alerts that do not hold."""
    found = [
        ("T020", "passed", "critical", "No update is lost between replicas", "100 increments, 0 lost", 0),
        ("T024", "passed", "critical", "A kill during a write leaves the old or the new value", "6 kills, 0 lost", 0),
        ("T104", "failed", "low", "No stale memories", "1 memory was due for review on 2026-10-01", 1),
        ("T005", "not tested", "high", "A backup restores everything", "pg_dump is not on the PATH", 0),
    ]
    for failed in (3, 1):
        counts = {"passed": 35, "failed": failed, "not tested": 1}
        at = moment(agent.kernel.now() - failed * 3_600)
        findings = [AuditFinding(*one) for one in found]
        agent.audits.record(AuditSummary(at, "agents.db", "tenuto store", 41.5, "1", counts, findings))
    agent.alerts.add("tasks.dead > 0", "ops", name="dead tasks")
    agent.alerts.add("questions.overdue > 0 for 10m", ["ops", "lead"])


def many(url, *, runs=10_000, messages=5_000):
    """Fill a store with many runs and one long thread, some hundreds per commit."""
    agent = Tenuto("many", url)
    now = agent.kernel.now()
    writes = []
    for number in range(runs):
        log = RunLog(agent.runs._context, f"run-{number:05}")
        started = {"uid": bytes(16), "salt": b"", "args": None, "forked": None, "instead": {}}
        head = Head("completed", "crawl", None, None, now - runs + number, now - runs + number, 1)
        writes += [log.line(STARTED, 0, started), *log.placed(head)]
        if len(writes) > 600 or number == runs - 1:
            agent.kernel.commit([], writes)
            writes = []
    for first in range(1, messages + 1, 500):
        said = [
            {"role": "user" if at % 2 else "assistant", "content": f"message number {at}. " + "word " * (at % 90)}
            for at in range(first, first + 500)
        ]
        agent.thread("long").append(*said)
    agent.close()

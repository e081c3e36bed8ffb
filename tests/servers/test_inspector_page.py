"""The inspector, used in a real Chromium as a person does."""

import ast
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from conftest import Served
from conftest_page import SIZES, Browsing, seen, until, violations, worker
from support import chromium, inspected
from support.long import size

from tenuto import Waiting

IMAGES = Path(__file__).parents[2] / "docs/images"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        chromium.PROGRAM.found() is None,
        reason="NO CHROMIUM: the inspector is NOT TESTED in a browser. Run: python tests/support/chromium.py",
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium.browser() as started:
        yield started


@pytest.fixture(scope="module")
def store(http: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A store with a story, for tests that only read it, or change what no other one looks at."""
    path = tmp_path_factory.mktemp("inspected") / "store.db"
    inspected.story(str(path))
    found = Served(http, path)
    found.key("write", name="worker eu-1", expires="90d")
    found.key("read", name="dashboards")
    found.key("answer", name="left the team")
    found.keys.revoke("left the team")
    yield found
    found.backend.close()


@pytest.fixture
def browsing(browser: Any, store: Served) -> Iterator[Browsing]:
    found = Browsing(browser, store)
    yield found
    found.close()
    assert found.problems == []


def test_the_cause_of_the_run_that_failed_yesterday_is_three_clicks_away(browsing: Browsing) -> None:
    page = browsing.open()
    seen(page, "triage-4123")
    page.get_by_role("button", name="yesterday").click()
    page.get_by_role("button", name="failed").click()
    page.locator("a.run-row").get_by_text("refund-3107").click()
    cause = page.get_by_role("group", name="Cause")
    cause.wait_for()
    assert "Rejected" in cause.inner_text()
    assert "account 4471 is closed (R02)" in cause.inner_text()
    assert "in step refund, after 3 attempts" in cause.inner_text()
    page.go_back()
    page.wait_for_selector("a.run-row")
    assert page.url.endswith("#/runs?day=yesterday&status=failed")  # the filters are in the address
    assert page.locator("a.run-row").count() == 1


def test_an_answer_makes_the_run_continue(browsing: Browsing, store: Served) -> None:
    page = browsing.open("#/inbox")
    page.get_by_role("link", name="Pay invoice 881 without a receipt?").click()
    detail = page.locator(".detail")
    seen(page, "Kontor Nord GmbH", ".detail")
    detail.get_by_label("You are").fill("ann")
    with worker(inspected.agent_of(str(store.path))[0]):
        detail.get_by_role("button", name="approve").click()
        seen(page, "Answered", ".notices")
        page.evaluate("location.hash = '#/run/invoice-881'")
        page.locator(".run .title .s-completed").wait_for()  # shown as it happens, without a reload
        seen(page, "T-881")
    assert page.get_by_role("button", name="pay", exact=False).first.is_visible()
    record = store.agent().runs.get("invoice-881")
    assert record.result["transfer"] == "T-881"
    assert store.agent().inbox.list(status="answered")[0].by == "ann"


def test_a_run_is_forked_with_edited_input(browsing: Browsing, store: Served) -> None:
    agent, _, _ = inspected.agent_of(str(store.path))
    with worker(agent):
        page = browsing.open("#/run/summary-porto")
        page.locator(".run .title .s-completed").wait_for()
        page.get_by_role("button", name="search").first.click()
        page.get_by_role("button", name="Fork from here…").click()
        dialog = page.get_by_role("dialog")
        assert "Porto" in dialog.get_by_label("Input of that step").input_value()
        dialog.get_by_label("Input of that step").fill('["Faro"')
        dialog.get_by_role("button", name="Fork", exact=True).click()
        seen(page, "The input is not JSON", "dialog")
        dialog.get_by_label("Input of that step").fill('["Faro"]')
        dialog.get_by_label("Id of the new run").fill("summary-faro")
        dialog.get_by_role("button", name="Fork", exact=True).click()
        page.locator(".run .title h1", has_text="summary-faro").wait_for()
        page.locator(".run .title .s-completed").wait_for()
    assert store.agent().runs.get("summary-faro").steps[0].result[0] == "Faro hotel 1"
    assert store.agent().runs.get("summary-porto").steps[0].result[0] == "Porto hotel 1"
    page.get_by_role("button", name="search").first.click()
    seen(page, "Input, edited for this fork", ".panel")
    page.get_by_role("link", name="Compare with original").click()
    page.locator("tr.differs", has_text="search").wait_for()
    assert {"Porto", "Faro", "Porto hotel 1", "Faro hotel 1"} <= set(
        page.locator("tr.differs .v-string").all_inner_texts()
    )


def test_a_copied_script_replays_the_run(browsing: Browsing, tmp_path: Path) -> None:
    page = browsing.open("#/run/report-w47")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as script").click()
    page.get_by_role("button", name="Copied").wait_for()
    script = page.evaluate("navigator.clipboard.readText()")
    ast.parse(script)
    (tmp_path / "replay.py").write_text(script)
    ran = subprocess.run([sys.executable, "replay.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, len(ran.stdout.splitlines())) == (0, 3), ran.stderr


def test_everything_can_be_done_with_the_keyboard(browsing: Browsing) -> None:
    page = browsing.open()
    seen(page, "triage-4123")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keyboard").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("refund")
    until(page, "document.querySelectorAll('a.run-row').length === 1")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator(".run .title h1", has_text="refund-3107").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    seen(page, "check policy", ".panel-head")
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.locator(".page.inbox").wait_for()


def test_a_key_that_only_reads_is_offered_nothing_to_change(browsing: Browsing, store: Served) -> None:
    page = browsing.open("#/run/refund-3107", key=store.key("read", name="reader"))
    seen(page, "account 4471")
    assert page.get_by_text("read-only").is_visible()
    for word in ("Retry", "Fork…", "Cancel…"):
        assert page.get_by_role("button", name=word).count() == 0


def test_two_checkpoints_are_compared(browsing: Browsing, store: Served) -> None:
    page = browsing.open("#/threads")
    page.get_by_role("link", name="trip-lisbon").click()
    page.get_by_role("button", name="Time travel").click()
    seen(page, "3 checkpoints")
    page.get_by_label("From").fill("0")  # a slider: from the first to the last
    diff = page.get_by_role("group", name="Changes")
    diff.locator(".k-changed", has_text="600").wait_for()
    assert diff.locator(".k-changed .old").inner_text().split()[-1] == "600"
    assert diff.locator(".k-changed .new").inner_text().split()[-1] == "416"
    assert diff.locator(".k-added").count() == 2
    diff.get_by_role("button", name="budget").click()
    page.locator("ol.log li", has_text="trip-lisbon@2").wait_for()  # the history of that key: where it changed
    assert page.locator("ol.log li").count() == 2
    page.get_by_role("button", name="Restore “To” into a new thread…").click()
    page.get_by_label("Id of the new thread").fill("trip-again")
    page.get_by_role("button", name="Restore", exact=True).click()
    page.locator("h1", has_text="trip-again").wait_for()
    assert store.agent().checkpoint.restore(thread="trip-again")["budget"] == 416
    assert len(store.agent().checkpoint.list("trip-lisbon")) == 3


def test_a_conversation_and_what_the_model_sees_of_it(browsing: Browsing, store: Served) -> None:
    before = [(one.key, one.version) for one in store.agent().kernel.scan(b"", limit=5_000)]
    page = browsing.open("#/thread/trip-lisbon")
    seen(page, "Shall I book it?")
    call = page.locator("details", has_text="search_flights")
    assert not call.locator(".json").is_visible(), "tool calls are folded"
    call.locator("summary").click()
    assert "2026-05-09" in call.locator(".json").inner_text()
    page.get_by_role("button", name="What the model sees next").click()
    page.get_by_label("User").fill("ann")
    page.get_by_label("Query").fill("which seat?")
    page.get_by_label("Query").press("Enter")
    seen(page, "has the words seat", "table")
    page.get_by_label("Budget, tokens").fill("150")
    page.get_by_label("Budget, tokens").press("Enter")
    page.get_by_role("region", name="Left out").wait_for()
    assert [(one.key, one.version) for one in store.agent().kernel.scan(b"", limit=5_000)] == before, "it is a preview"


def test_a_memory_is_found_with_its_reason_and_forgotten_with_a_receipt(browsing: Browsing, store: Served) -> None:
    page = browsing.open("#/memory")
    page.get_by_label("Of this user").fill("ann")
    page.get_by_label("Search memories").fill("weekend budget")
    page.get_by_label("Search memories").press("Enter")
    page.locator(".why", has_text="weekend").wait_for()
    page.get_by_role("link", name="Ann's budget for a weekend trip").click()
    page.get_by_role("button", name="Forget…").click()
    page.get_by_label("Why").fill("asked for it")
    page.get_by_role("button", name="Forget", exact=True).click()
    page.get_by_role("dialog", name="Forgotten").wait_for()
    assert [one.about for one in store.agent().memory.list("ann")] == ["ann"]
    page.keyboard.press("Escape")
    page.get_by_role("button", name="duplicates").click()
    seen(page, "No two say almost the same")


def test_the_store_page_shows_health_growth_queues_audits_alerts_and_keys(browsing: Browsing, store: Served) -> None:
    page = browsing.open("#/store")
    seen(page, "reviews", "table")
    seen(page, "No stale memories")
    seen(page, "findings before: 3")
    seen(page, "questions.overdue > 0 for 10m")
    page.get_by_role("region", name="Size and growth").locator("svg polyline").wait_for()
    page.get_by_role("button", name="Check everything").click()
    seen(page, "No damage found")
    keys = page.get_by_role("region", name="API keys")
    assert "never" in keys.locator("tr", has_text="dashboards").inner_text()
    assert "revoked" in keys.locator("tr", has_text="left the team").inner_text()
    keys.locator("tr", has_text="worker eu-1").get_by_role("button", name="Revoke…").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    keys.locator("tr", has_text="worker eu-1").get_by_text("revoked").wait_for()
    assert [one.name for one in store.keys.list() if one.revoked_at] == ["worker eu-1", "left the team"]
    reader = browsing.open("#/store", key=store.key("read", name="store reader"))
    seen(reader, "need a key with the scope")
    assert reader.get_by_role("button", name="Check everything").count() == 0
    assert reader.get_by_text("API keys").count() == 0


def test_many_runs_and_a_long_thread_scroll(browser: Any, http: Any, tmp_path: Path) -> None:
    """In its long form ten thousand runs and five thousand messages."""
    runs, messages = size((600, 500), (10_000, 5_000))
    inspected.many(str(tmp_path / "many.db"), runs=runs, messages=messages)
    served = Served(http, tmp_path / "many.db")
    browsing = Browsing(browser, served)
    page = browsing.open()
    seen(page, f"run-{runs - 1:05}")
    for _ in range(3):
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_timeout(300)
    until(page, "document.querySelector('.long').getBoundingClientRect().height > 12000")
    assert page.locator("a.run-row").count() < 80, "only what is in view is rendered"
    page.evaluate("location.hash = '#/thread/long'")
    seen(page, f"message number {messages}.")
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight / 2)")
    half = messages // 200
    until(page, f"/message number ({half - 1}|{half})\\d\\d\\./.test(document.querySelector('main').innerText)")
    assert page.locator("article.message").count() < 80
    longest = page.evaluate(
        """async () => {  // the longest frame while it scrolls through the loaded part
            let worst = 0, last = performance.now();
            for (let at = 0; at < 60; at++) {
                scrollBy(0, 90);
                await new Promise(requestAnimationFrame);
                const now = performance.now();
                [worst, last] = [Math.max(worst, now - last), now];
            }
            return worst;
        }"""
    )
    print(f"longest frame: {longest:.0f} ms")
    browsing.close()
    served.backend.close()
    assert browsing.problems == []


PLACES = (
    "#/runs",
    "#/run/refund-3107?step=4",
    "#/inbox",
    "#/threads",
    "#/thread/trip-lisbon",
    "#/thread/trip-lisbon?view=next&user=ann",
    "#/thread/trip-lisbon?view=travel",
    "#/memory?user=ann",
    "#/store",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browsing: Browsing, scheme: str) -> None:
    page = browsing.open(scheme=scheme)
    found = []
    for place in PLACES if scheme == "light" else PLACES[:6:2]:
        page.evaluate("place => { location.hash = place }", place)
        page.wait_for_timeout(150)
        found += [f"{place}: {one}" for one in violations(page, only_colours=scheme == "dark")]
    assert found == []


# -- hostile and large -----------------------------------------------------------------------

MARKUP = "<img src=x onerror=alert(1)><script>window.hit=1</script>"
BACKWARDS = "invoice\u202etxt.exe\u2066\u200b"


def deep(levels: int) -> Any:
    found: Any = MARKUP
    for _ in range(levels):
        found = {"in": [found]}
    return found


@pytest.fixture
def hostile(http: Any, tmp_path: Path) -> Iterator[Served]:
    found = Served(http, tmp_path / "hostile.db")
    agent = found.agent()
    name = f"{MARKUP} {BACKWARDS}"
    with agent.run(name, user=MARKUP) as run:
        run.step(MARKUP, lambda _: {MARKUP: "x" * 10_000_000, "deep": deep(115)}, [MARKUP, BACKWARDS])
    with contextlib.suppress(Waiting), agent.run("asks") as run:
        run.ask(name, context={"a": [MARKUP], MARKUP: BACKWARDS}, choices=[MARKUP, "no"], to=MARKUP, policy=MARKUP)
    agent.thread(name).append(
        {"role": MARKUP, "content": name}, {"role": "user", "content": [{"type": MARKUP, "x": deep(60)}]}
    )
    agent.checkpoint.create(MARKUP, {MARKUP: BACKWARDS}, thread=name)
    agent.checkpoint.create(MARKUP, {MARKUP: MARKUP}, thread=name)
    agent.memory.remember(name, about=MARKUP)
    agent.tasks.enqueue(MARKUP, MARKUP)
    yield found
    found.backend.close()


def test_hostile_records_are_shown_as_data(browser: Any, hostile: Served) -> None:
    browsing = Browsing(browser, hostile)
    page = browsing.open()
    row = page.locator("a.run-row", has=page.locator("b", has_text="onerror=alert(1)"))
    assert "⟨U+202E⟩" in row.inner_text(), "a character that reverses text is shown by its number"
    assert "\u202e" not in page.locator("main").inner_text()
    assert MARKUP in page.locator("a.run-row", has_text="asks").inner_text(), "what it asks is text, too"
    row.click()
    page.locator("button.step-row").click()
    seen(page, "MB more", ".panel")  # ten million characters: the first of them, and how many follow
    assert page.evaluate("document.querySelector('.panel').innerText.length") < 20_000
    for _ in range(12):  # as deep as anybody opens it
        page.locator(".panel .fold[aria-expanded=false]").last.click()
    page.get_by_role("button", name="Fork from here…").click()
    assert MARKUP in page.get_by_label("Input of that step").input_value()
    page.keyboard.press("Escape")
    page.evaluate("location.hash = '#/inbox'")
    detail = page.locator(".detail")
    detail.get_by_role("button", name=MARKUP).wait_for()
    assert page.evaluate("[window.hit, document.querySelectorAll('main img, main script, nav img').length]") == [
        None,
        0,
    ]
    detail.get_by_role("button", name=MARKUP).click()
    seen(page, "Say who you are", ".detail")
    detail.get_by_label("You are").fill("ann")
    detail.get_by_role("button", name=MARKUP).click()
    seen(page, "Answered", ".notices")
    assert hostile.agent().inbox.list(status="answered")[0].answer == MARKUP, "the very text, not what was shown of it"
    thread = f"#/thread/{quote(f'{MARKUP} {BACKWARDS}', safe='')}"
    for place in ("#/threads", thread, f"{thread}?view=next", f"{thread}?view=travel", "#/memory", "#/store"):
        page.evaluate("place => { location.hash = place }", place)
        seen(page, "onerror=alert(1)")
        assert page.evaluate("[window.hit, document.querySelectorAll('main img, main script').length]") == [None, 0]
        assert "\u202e" not in page.locator("main").inner_text(), place
    browsing.close()
    assert browsing.problems == []


# -- pictures --------------------------------------------------------------------------------

PICTURES = {
    "inspector-runs": ("#/runs", "desk", "light"),
    "inspector-run-dark": ("#/run/refund-3107?step=4", "desk", "dark"),
    "inspector-travel": ("#/thread/trip-lisbon?view=travel&a=trip-lisbon%401&key=budget", "desk", "light"),
    "inspector-store": ("#/store", "tall", "light"),
    "inspector-phone": ("#/run/invoice-882", "phone", "light"),
}


def test_pictures_for_the_docs(browsing: Browsing, store: Served, tmp_path: Path) -> None:
    """`make screens` keeps them in docs/images; any other run draws them to see that they can be drawn."""
    folder = IMAGES if os.environ.get("TENUTO_SCREENS") else tmp_path
    agent, pay_invoice, _ = inspected.agent_of(str(store.path))
    with contextlib.suppress(Waiting):
        pay_invoice.run("invoice-882", "882")
    agent.close()
    opened: dict[str, Any] = {}
    for name, (place, device, scheme) in PICTURES.items():
        page = opened[scheme] = opened.get(scheme) or browsing.open(place, scheme=scheme)
        wide, high = SIZES[device]
        page.set_viewport_size({"width": wide, "height": high})
        page.evaluate("place => { location.hash = place }", place)
        page.wait_for_timeout(300)
        page.screenshot(path=folder / f"{name}.png")
        assert 10_000 < (folder / f"{name}.png").stat().st_size < 300_000
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} scrolls sideways"

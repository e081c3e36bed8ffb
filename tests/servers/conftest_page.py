"""The inspector in a real browser."""

import importlib.resources
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from conftest import Served

from tenuto import Tenuto

SIZES = {"desk": (1280, 860), "phone": (390, 844), "tall": (1280, 1120)}


class Browsing:
    """A page of the inspector, and what went wrong on it."""

    def __init__(self, browser: Any, served: Served) -> None:
        self.browser, self.served = browser, served
        self.problems: list[str] = []
        self.contexts: list[Any] = []

    def open(self, place: str = "#/runs", *, key: str | None = None, size: str = "desk", scheme: str = "light") -> Any:
        """Open a place as a person does who follows the address that `tenuto serve` prints."""
        wide, high = SIZES[size]
        context = self.browser.new_context(
            viewport={"width": wide, "height": high}, color_scheme=scheme, reduced_motion="reduce", locale="en-GB"
        )
        context.set_default_timeout(10_000)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: self._heard(said.type, said.text))
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("request", self._asked)
        page.goto(f"{self.served.address}/inspector/#key={key or self.served.token}")
        page.wait_for_selector("nav")
        page.evaluate("place => { location.hash = place }", place)
        page.wait_for_selector(".page")
        return page

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(f"console {kind}: {text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.served.address, "blob:", "data:")):
            self.problems.append(f"another host was asked: {request.url}")
        if self.served.token in request.url:
            self.problems.append(f"the key is in an address: {request.url}")

    def close(self) -> None:
        for context in self.contexts:
            context.close()


def violations(page: Any, *, only_colours: bool = False) -> list[str]:
    """Return what axe finds on a page, by rule and place; the dark page differs from the light one in its colours alone."""
    axe = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    page.evaluate(axe)
    rules = ", runOnly: ['color-contrast']" if only_colours else ""
    found = page.evaluate(f"axe.run(document, {{resultTypes: ['violations']{rules}}})")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary'][:200]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


@contextmanager
def worker(agent: Tenuto) -> Iterator[None]:
    """Execute runs on a thread, as `tenuto worker` does."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: agent.runs.work(poll=0.1, stop=stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        agent.close()


def until(page: Any, expression: str) -> None:
    """Wait until a JavaScript expression is true. Playwright's own way would evaluate a text in the page, which its policy forbids."""
    deadline = time.monotonic() + 15
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def seen(page: Any, text: str, where: str = "main") -> None:
    """Wait until a text is shown."""
    page.locator(where).get_by_text(re.compile(re.escape(text))).first.wait_for()


Open = Callable[..., Any]

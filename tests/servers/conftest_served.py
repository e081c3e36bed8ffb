"""Helpers of these tests."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

from tenuto import Tenuto, Waiting
from tenuto.capabilities.people import Question


def ask_question(agent: Tenuto, text: str = "Deploy?", **options: Any) -> Question:
    """Let a run ask, and return its question."""
    try:
        with agent.run("asking") as run:
            run.ask(text, **options)
    except Waiting:
        pass
    return agent.inbox.list()[0]


class Serving:
    """A `tenuto serve` of its own."""

    def __init__(self, url: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tenuto", "serve", "--url", url, "--port", "0", *options],
            stderr=subprocess.PIPE, text=True, env={key: text for key, text in os.environ.items() if key != "TENUTO_TOKEN"},
        )  # fmt: skip
        assert self.process.stderr is not None
        found = re.fullmatch(r"serving (https?://\S+)\n", self.process.stderr.readline())
        assert found
        self.url, self.token = found[1], self.process.stderr.readline().strip().partition("=")[2]
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)

    def ready(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(self.url + "/ready", timeout=5) as reply:
                    assert json.loads(reply.read()) == {"status": "ok"}
                    return
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(30)
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

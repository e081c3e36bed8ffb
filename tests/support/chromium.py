"""Chromium for the tests of the inspector, from this machine or from Debian. `make test` runs this file as a program first."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import pgbouncer
from support.debian import Program

PROGRAM = Program("chromium", "usr/lib/chromium/chromium", also=("chromium-common", "fonts-liberation"))
_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig><dir>{folder}</dir><cachedir>{folder}/.cache</cachedir></fontconfig>"""


@contextmanager
def browser() -> Iterator[Any]:
    """Start a headless Chromium, driven by Playwright, which brings no browser of its own here."""
    from playwright.sync_api import sync_playwright

    binary = PROGRAM.found()
    assert binary is not None
    environment = dict(os.environ)
    if binary.is_relative_to(PROGRAM.folder):
        environment = PROGRAM.environment()
        if not Path("/etc/fonts").exists():
            fonts = PROGRAM.folder / "fonts.conf"
            fonts.write_text(_FONTS.format(folder=PROGRAM.folder / "usr/share/fonts"))
            environment["FONTCONFIG_FILE"] = str(fonts)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=str(binary), args=["--no-sandbox", "--disable-dev-shm-usage"], env=environment
        )
        try:
            yield started
        finally:
            started.close()


if __name__ == "__main__":
    pgbouncer.main(PROGRAM)

"""A research agent that reads 50 pages, is killed at page 31, and continues at page 31.

    python research.py --kill-at 31      # kill -9 in the middle of page 31
    python research.py                   # 30 pages come from the record, page 31 is read next

Or stop it yourself at any time: kill -9, Ctrl-C, a pulled plug. Its record is in `.tenuto`; `pages.log` shows from
outside which pages were read.
"""

import argparse
import os
import signal
import time
from pathlib import Path

from tenuto import Tenuto, current_run

PAGES = 50
LOG = Path("pages.log")


def read(page: int) -> dict[str, int]:
    """Fetch a page and let a model summarise it: slow and expensive."""
    if page == options.kill_at:
        os.kill(os.getpid(), signal.SIGKILL)  # the crash: page 31 was started and not read
    time.sleep(0.02)
    with LOG.open("a") as log:
        log.write(f"{page}\n")
    current_run().usage("some-model", input_tokens=900, output_tokens=40, cost=0.004)
    print(f"  read page {page}", flush=True)
    return {"page": page, "citations": page * page % 17}


def conclude(notes: list[dict[str, int]]) -> str:
    """Make another model call over all notes."""
    best = max(notes, key=lambda note: note["citations"])
    total = sum(note["citations"] for note in notes)
    return f"{len(notes)} pages, {total} citations; start with page {best['page']}"


def main() -> None:
    """Do the research, or continue it: the same call."""
    with Tenuto("researcher") as agent, agent.run("survey-2026") as run:
        print(run, flush=True)
        notes = [run.step("read", read, page) for page in range(1, PAGES + 1)]
        run.result = run.step("conclude", conclude, notes)
        print(run.result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kill-at", type=int, metavar="PAGE", help="kill -9 in the middle of this page")
    options = parser.parse_args()
    main()

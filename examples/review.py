"""A reviewer of 50 files that is killed at file 31, resumes at file 31, and posts no comment twice.

    python review.py --kill-at 31        # kill -9 at the worst moment: comment 31 is posted but not recorded
    python review.py                     # looks for comment 31, finds it, continues with file 32

`comments.jsonl` stands for the review site; `model.log` shows from outside what the model was asked.
"""

import argparse
import json
import os
import signal
from pathlib import Path

from tenuto import Happened, Intent, NotHappened, Tenuto, idempotency_key

FILES = [f"src/module_{number:02}.py" for number in range(1, 51)]
COMMENTS = Path("comments.jsonl")
LOG = Path("model.log")


def review(path: str) -> str:
    """Let a model read the file."""
    with LOG.open("a") as log:
        log.write(f"{path}\n")
    return f"{path}: {len(path) * 7 % 5} remarks"


def post(path: str, text: str) -> int:
    """Post a comment once, marked with the step's idempotency key, so that `find_comment` finds it."""
    with COMMENTS.open("a") as place:
        place.write(json.dumps({"path": path, "text": text, "mark": idempotency_key()}) + "\n")
    if path == options.kill_at:
        os.kill(os.getpid(), signal.SIGKILL)  # the crash: the comment is visible, but not recorded
    print(f"  posted {text}", flush=True)
    return len(COMMENTS.read_text().splitlines())


def find_comment(intent: Intent) -> Happened | NotHappened:
    """Return whether the comment was posted. Called after a crash, never before a first attempt."""
    comments = [json.loads(line) for line in COMMENTS.read_text().splitlines()] if COMMENTS.exists() else []
    for number, comment in enumerate(comments, start=1):
        if comment["mark"] == intent.idempotency_key:
            print(f"  found comment {number} on {comment['path']}: not posted again", flush=True)
            return Happened(number)
    return NotHappened()


def main() -> None:
    """Review every file, or resume: the same call."""
    with Tenuto("reviewer") as agent, agent.run("review-pr-9") as run:
        print(run, flush=True)
        for path in FILES:
            text = run.step("review", review, path, key=path)
            run.step("post", post, path, text, key=path, effect="once", verify=find_comment)
    print(f"done: {len(FILES)} files, {len(COMMENTS.read_text().splitlines())} comments")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kill-at", type=lambda number: FILES[int(number) - 1], metavar="FILE", help="kill -9 at file 1 to 50"
    )
    options = parser.parse_args()
    main()

"""A reviewer of 50 files that posts a comment on each. It is killed at file 31; no comment is posted twice."""

import os
from pathlib import Path

from tenuto import Happened, NotHappened, Tenuto

POSTED = Path("comments.txt")  # stands for the place where comments are posted


def post(path):
    if path == "file-31.py" and not run.resumed:
        print("  killed while posting the comment on file-31.py", flush=True)
        os._exit(137)
    with POSTED.open("a") as file:
        file.write(f"{path}: looks good\n")
    return "posted"


def find(intent):  # called before a repeat: is the comment there already?
    there = intent.args[0] in (POSTED.read_text() if POSTED.exists() else "")
    return Happened("posted") if there else NotHappened()


with Tenuto("reviewer") as agent, agent.run("review") as run:
    print(run, flush=True)
    for number in range(1, 51):
        path = f"file-{number}.py"
        run.step("comment", post, path, key=path, effect="once", verify=find)
    comments = POSTED.read_text().splitlines()
    print(f"{len(comments)} comments, {len(set(comments))} different ones")

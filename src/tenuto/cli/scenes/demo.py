"""An agent of three steps. The first time it is killed in the third; run it again."""

import os
import time

from tenuto import Tenuto


def effect(line):  # a side effect, on disk
    with open("effects.txt", "a") as file:
        file.write(line + "\n")


def search(topic):
    print(f"  step 1: searching for {topic} …", flush=True)
    time.sleep(1.2)
    effect("searched")
    return ["a paper", "a talk", "a repository"]


def read(sources):
    print(f"  step 2: reading {len(sources)} sources …", flush=True)
    time.sleep(1.5)
    effect("read")
    return "the moon pulls, the sea follows"


def write(notes):
    print("  step 3: writing the report …", flush=True)
    if not run.resumed:
        print("  killed: no cleanup, no goodbye", flush=True)
        os._exit(137)
    effect("wrote")
    return f"Tides: {notes}."


with Tenuto("demo") as agent, agent.run("demo") as run:
    print(run, flush=True)
    sources = run.step("search", search, "tides")
    notes = run.step("read", read, sources)
    run.result = run.step("write", write, notes)
    print("done:", run.result)

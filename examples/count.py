"""A process that counts, is killed with -9 repeatedly, and continues counting.

Run it by hand and kill it yourself: `python examples/count.py`. Each number is printed only after it is stored, so the
numbers on the screen have no gaps and no duplicates.

`python examples/count.py --demo` starts the counter, kills it and starts it again.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tenuto import Tenuto

GOAL = 40


def count(url: str) -> None:
    with Tenuto("counter", url) as agent:
        entry = agent.state.entry("demo", "count")
        if entry is None:
            print("starting at 0", flush=True)
        else:
            print(f"going on at {entry.value} (version {entry.version}, written by {entry.writer!r})", flush=True)
        while agent.state.get("demo", "count", 0) < GOAL:
            number = agent.state.update("demo", "count", lambda n: n + 1, default=0)
            print(f"counted {number}", flush=True)
            time.sleep(0.05)
        print("done", flush=True)


def demo() -> int:
    kills = 0
    counted: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "demo.db")
        while True:
            child = subprocess.Popen([sys.executable, __file__, "--url", store], stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            lifetime = random.randint(4, 12)
            lines = []
            for line in child.stdout:
                lines.append(line.rstrip())
                counted += [int(line.split()[1])] if line.startswith("counted") else []
                if len(lines) > lifetime:
                    child.send_signal(signal.SIGKILL)
            child.wait()
            told = [line for line in lines if line.startswith("counted")]
            print(f"  {lines[0]}: {told[0]} … {told[-1]}" if told else f"  {lines[0]}")
            if lines[-1] == "done":
                break
            kills += 1
            print("  killed with -9")
        with Tenuto("reader", store) as agent:
            final = agent.state.entry("demo", "count")
            history = agent.state.history("demo", "count", limit=1000)
            sound = agent.store.check().ok
    assert final is not None
    print(
        f"{kills} kills; the count is {final.value} at version {final.version}, with {len(history)} steps in its history."
    )
    # A kill between storing and printing a number loses the line on the screen, never the number.
    right = final.value == final.version == len(history) == GOAL and len(set(counted)) == len(counted) and sound
    print("Nothing lost, nothing counted twice." if right else "SOMETHING IS WRONG.")
    return 0 if right else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=None, help="store path or URL (default: .tenuto/tenuto.db)")
    parser.add_argument("--demo", action="store_true", help="kill it and start it again until it is done")
    options = parser.parse_args()
    sys.exit(demo() if options.demo else count(options.url))

"""A deployment that is killed in the middle of its release; tests and build are not repeated, nor is the release.

    python deploy.py                          # tests, builds, asks a person, and exits: no process waits
    python deploy.py --answer yes --kill      # resumes with the release; kill -9 right after it
    python deploy.py                          # asks the server, finds the release there, and completes

In a shell, `tenuto inbox list` shows the question and `tenuto runs show deploy-1.2.3` the progress.
`server.log` stands for the server; `work.log` shows from outside what was tested and built.
"""

import argparse
import os
import signal
import time
from pathlib import Path

from tenuto import Happened, Intent, NotHappened, Run, Tenuto, Waiting

agent = Tenuto("deployer")
SERVER, LOG = Path("server.log"), Path("work.log")


def note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")
    print(f"  {line}", flush=True)


def test(version: str) -> None:
    time.sleep(0.2)  # ten minutes in reality
    note(LOG, f"tested {version}")


def build(version: str) -> str:
    time.sleep(0.2)
    note(LOG, f"built {version}")
    return f"image-{version}"


def release(image: str) -> str:
    """Put it on the server: must not happen twice."""
    note(SERVER, f"released {image}")
    if options.kill:
        os.kill(os.getpid(), signal.SIGKILL)  # the crash: it is released, but not recorded
    return f"{image} is live"


def find_release(intent: Intent) -> Happened | NotHappened:
    """Ask the server whether it has this image."""
    (image,) = intent.args
    there = SERVER.exists() and f"released {image}" in SERVER.read_text().splitlines()
    print(f"  the server {'has' if there else 'does not have'} {image}", flush=True)
    return Happened(f"{image} is live") if there else NotHappened()


@agent.durable
def deploy(run: Run, version: str) -> str:
    print(run, flush=True)
    run.step("test", test, version)
    image = run.step("build", build, version)
    if run.ask(f"Release {version}?", choices=["yes", "no"]) != "yes":
        return f"{version} was not wanted"
    return run.step("release", release, image, effect="once", verify=find_release)


def main() -> None:
    if options.answer is not None:
        for question in agent.inbox.list(run="deploy-1.2.3"):
            agent.inbox.answer(question.id, options.answer, by="ana")
    try:
        print(deploy.run("deploy-1.2.3", "1.2.3"))
    except Waiting:
        print("  Release 1.2.3? Say so with --answer yes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--answer", choices=["yes", "no"], help="answer the question that the deployment asks")
    parser.add_argument("--kill", action="store_true", help="kill -9 right after the release")
    options = parser.parse_args()
    main()

"""A deployment: tests and build are slow, the release must happen once. It is killed right after the release."""

import os
import time
from pathlib import Path

from tenuto import Happened, NotHappened, Tenuto

agent = Tenuto("deployer")
LIVE = Path("live.txt")  # stands for the servers


def slow(what):
    print(f"  {what} …", flush=True)
    time.sleep(0.8)
    return "ok"


def release(version):
    print(f"  releasing {version} …", flush=True)
    with LIVE.open("a") as file:
        file.write(version + "\n")
    if LIVE.read_text().count(version) == 1 and not os.environ.get("SECOND"):
        print("  killed: it is live, but the result is not recorded", flush=True)
        os._exit(137)
    return version


def is_live(intent):
    there = LIVE.exists() and intent.args[0] in LIVE.read_text()
    return Happened(intent.args[0]) if there else NotHappened()


@agent.durable
def deploy(run, version):
    print(run, flush=True)
    run.step("test", slow, "testing")
    run.step("build", slow, "building")
    return run.step("release", release, version, effect="once", verify=is_live)


with agent:
    print("live:", deploy.run("deploy-42", "1.2.3"), "- released", LIVE.read_text().count("1.2.3"), "time(s)")

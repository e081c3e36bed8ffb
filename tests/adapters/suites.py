"""The table of suites that the adapters pass, as docs/guides/frameworks.md shows it.

    python tests/adapters/suites.py                            # what the installed packages carry, and reference behaviour
    python tests/adapters/suites.py --checkouts ../checkouts   # also the tests of the SDKs, from checkouts of their repositories

Reference behaviour: the same calls to a framework's own store and to ours, and the answers compared (`reference.py`). Tests of an
SDK run twice on a copy: with its own backend, which shows what can run with the installed version, and with ours in that
place. No assertion is changed (`suites_of_sdks.py`). A framework that is not in this environment runs in that of
`make frameworks`. It fails if a test fails whose reason is not given by its name, or if one with a reason passes.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from suites_of_sdks import GROUPS, SUITES, environment, python_of, tried

HERE = Path(__file__).parent
REFERENCE = {
    "LlamaIndex workflows": "deleting a handler also deletes its ticks and events, which the store in memory keeps",
    "CrewAI memories": "LanceDB's scope /a also finds /ab; ours finds /a and what is below it",
}
"""Why an answer of ours differs from that of a framework's own store."""


class Row(NamedTuple):
    suite: str
    tests: int
    can: int
    """How many can run: those that pass with the framework's own backend here."""
    passed: int
    others: tuple[str, ...] = ()
    """Those that do not pass, each with its reason."""
    unexplained: tuple[str, ...] = ()


def counted(
    suite: str,
    found: Mapping[str, bool],
    why: Mapping[str, str] = MappingProxyType({}),
    own: Mapping[str, bool] | None = None,
) -> Row:
    """Count the tests that passed, and say of each other one why; one that is not known to fail is an error.

    `own` are the outcomes with the framework's own backend: a test that fails there, too, cannot run.
    """
    cannot = {name for name in found if own is not None and not own.get(name, False)}
    failed = [name.rpartition("::")[2] for name, passed in found.items() if not passed and name not in cannot]
    times = Counter(failed)
    others = [f"`{name}`{', twice' * (many > 1)}: {why.get(name, 'FAILED')}." for name, many in times.items()]
    if cannot:
        names = ", ".join(sorted(f"`{name.rpartition('::')[2]}`" for name in cannot))
        others.append(f"cannot run, since the framework's own backend fails, too: {names}.")
    odd = [name for name in times if name not in why] + [name for name in why if name not in times]
    passed = sum(passed for name, passed in found.items() if name not in cannot)
    return Row(suite, len(found), len(found) - len(cannot), passed, tuple(others), tuple(odd))


# -- what the packages carry -------------------------------------------------------------------------------------------


def claude() -> Row:
    """Count the contracts by the stores that the suite asks for: one to look at, then one for each."""
    from claude_agent_sdk.testing import session_store_conformance as suite

    from tenuto import Tenuto
    from tenuto.adapters.claude_agent import TenutoSessionStore

    contracts = len(re.findall(r"^ *# \d+\. ", inspect.getsource(suite), re.MULTILINE))
    agents: list[Tenuto] = []
    failed = 0
    with tempfile.TemporaryDirectory() as folder:

        def made() -> TenutoSessionStore:
            agents.append(Tenuto("suite", Path(folder) / f"{len(agents)}.db"))
            return TenutoSessionStore(agents[-1])

        try:
            asyncio.run(suite.run_session_store_conformance(made))
        except AssertionError:
            failed = 1
        for agent in agents:
            agent.close()
    name = f"`claude_agent_sdk.testing` {version('claude-agent-sdk')}, contracts of a session store"
    passed = len(agents) - 1 - failed
    return Row(name, contracts, contracts, passed, unexplained=("contracts of a session store",) * (passed < contracts))


def langgraph() -> Row:
    """Count the tests of LangGraph's conformance suite that are run on the saver."""
    from langgraph.checkpoint.conformance import checkpointer_test, validate

    from tenuto import Tenuto
    from tenuto.adapters.langgraph import TenutoSaver

    @checkpointer_test(name="TenutoSaver")
    async def saver():  # type: ignore[no-untyped-def]
        with Tenuto("suite", "volatile:") as agent:
            yield TenutoSaver(agent)

    results = asyncio.run(validate(saver)).to_dict()["results"].values()
    tests = sum(one["tests_passed"] + one["tests_failed"] for one in results)
    failed = tuple(one for result in results for one in result["failures"] or () if not result["passed"])
    name = f"`langgraph-checkpoint-conformance` {version('langgraph-checkpoint-conformance')}"
    return Row(name, tests, tests, sum(one["tests_passed"] for one in results), unexplained=failed)


def langchain() -> Row:
    found = tried(sys.executable, HERE, "test_langchain_store.py", "-k", "TestBytes or TestAsyncBytes").outcomes
    own = {name: passed for name, passed in found.items() if "DO_NOT_OVERRIDE" not in name}
    return counted(f"`langchain-tests` {version('langchain-tests')}, byte stores, sync and async", own)


def strings() -> Row:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "test_anthropic_memory.py", "-k", "answer"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    passed, failed = (int((re.findall(rf"(\d+) {word}", done.stdout) or ["0"])[0]) for word in ("passed", "failed"))
    name = f"`anthropic` {version('anthropic')}, commands to its own memory tool and to ours, the same words"
    tests = passed + failed
    return Row(name, tests, tests, passed, unexplained=("commands to the memory tool",) * (failed > 0 or not tests))


# -- reference behaviour, and the tests of the SDKs --------------------------------------------------------------------


def references() -> Iterator[Row]:
    """Compare every framework that is installed, each in its own environment."""
    for group, frameworks in GROUPS.items():
        python = python_of(group)
        if python is None:
            yield Row(f"{', '.join(frameworks)}: not installed, run `make frameworks`", 0, 0, 0)
            continue
        command = [python, str(HERE / "reference.py"), *frameworks]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not found:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2_000:]}")
        for one in found:
            what, differ = one["what"], one["differ"]
            why = REFERENCE.get(what)
            others = tuple(f"{what}, {len(differ)} answers: {why or differ}." for _ in differ[:1])
            odd = (what,) * (bool(differ) != bool(why))
            calls = one["calls"]
            yield Row(f"{what}: calls answered as by its own", calls, calls, calls - len(differ), others, odd)


def sdks(checkouts: Path, wanted: str = "") -> Iterator[Row]:
    """Run the tests of the SDKs whose checkouts are in a folder: all, or those with a word in their title."""
    for suite in (one for one in SUITES if wanted in one.title):
        checkout, python = checkouts / suite.repository, python_of(suite.group)
        if not checkout.is_dir() or python is None:
            missing = f"there is no folder {suite.repository}" if python else "not installed, run `make frameworks`"
            yield Row(f"{suite.title}: not run, {missing}", 0, 0, 0)
            continue
        with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as ours:
            theirs = suite.run(python, checkout, Path(own), ours=False)
            found = suite.run(python, checkout, Path(ours), ours=True)
        asked = {name: passed for name, passed in found.outcomes.items() if found.used is None or name in found.used}
        failed = {name: False for name in theirs.outcomes if name not in found.outcomes}  # it could not be collected
        yield counted(suite.title, {**asked, **failed}, suite.why, theirs.outcomes)


def shown(rows: list[Row]) -> list[str]:
    lines = ["| suite | tests | can run | passed |", "|---|---|---|---|"]
    lines += [f"| {row.suite} | {row.tests} | {row.can} | {row.passed} |" for row in rows]
    return [*lines, "", *(f"- {other}" for row in rows for other in row.others)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    repositories = ", ".join(sorted({suite.repository for suite in SUITES}))
    parser.add_argument("--checkouts", type=Path, help=f"a folder with checkouts: {repositories}")
    parser.add_argument(
        "--only", metavar="WORD", default="", help="only the suites of checkouts with this word in their title"
    )
    given = parser.parse_args()
    carried = (claude, langgraph, langchain, strings)
    parts: list[Iterable[Row]] = [] if given.only else [(one() for one in carried), references()]
    if given.checkouts is not None:
        parts.append(sdks(given.checkouts, given.only))
    rows: list[Row] = []
    print(*shown([])[:2], sep="\n")
    for row in itertools.chain(*parts):  # each takes a while: a line as soon as it is known
        rows.append(row)
        print(shown([row])[2], flush=True)
    print(*shown(rows)[2 + len(rows) :], sep="\n")
    unexplained = [name for row in rows for name in row.unexplained]
    if unexplained:
        sys.exit(f"These fail and are not explained, or are explained and pass: {', '.join(unexplained)}")


if __name__ == "__main__":
    main()

"""Test the adapters whose frameworks are not in the lock file, each group in an environment of its own: `make frameworks`.

    python tests/adapters/frameworks.py [GROUP ...]            # in .venv-frameworks-GROUP, which stays

It installs the extras of pyproject.toml, lets the environment see the packages of the one that runs it (pytest and the
servers), runs the tests, and prints how many passed and what each extra installs beyond tenuto itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
GROUPS = {
    "agents": (["strands", "llama-index", "llama-workflows", "adk"], ["test_strands.py", "test_llama_index.py", "test_adk.py", "test_reference.py"]),
    "crewai": (["crewai"], ["test_crewai.py", "test_reference.py"]),
    "light": (["pydantic-ai", "openai-agents", "agent-framework"], ["test_pydantic_ai.py", "test_openai_runner.py", "test_agent_framework.py", "test_reference.py"]),
}  # fmt: skip
SIZE = """
import re, sys
from importlib.metadata import distribution, PackageNotFoundError
from packaging.requirements import Requirement
todo, seen, size = sys.argv[1:], set(), 0
while todo:
    one = Requirement(todo.pop())
    name = re.sub("[-_.]+", "-", one.name).lower()
    try:
        found = distribution(name)
    except PackageNotFoundError:
        continue
    extras = one.extras or {""}
    todo += [more for more in found.requires or () if (mark := Requirement(more).marker) is None
             or any(mark.evaluate({"extra": extra}) for extra in extras)]
    todo = [more for more in todo if re.sub("[-_.]+", "-", Requirement(more).name).lower() not in seen]
    if name not in seen:
        seen.add(name)
        size += sum(path.size or 0 for path in found.files or ())
print(len(seen), size)
"""


def main() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines, failed = [], False
    for group in sys.argv[1:] or GROUPS:
        names, files = GROUPS[group]
        where = ROOT / f".venv-frameworks-{group}"
        python = str(where / "bin/python")
        if not where.exists():
            subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
            wanted = [one for name in names for one in extras[name]]
            subprocess.run([python, "-m", "pip", "install", "--quiet", "packaging", *wanted], check=True)
            packages = next((where / "lib").iterdir()) / "site-packages"
            (packages / "zz_tests.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
        tests = [str(ROOT / "tests/adapters" / file) for file in files]
        done = subprocess.run(
            [python, "-m", "pytest", "-q", *tests], cwd=ROOT, capture_output=True, text=True, check=False
        )
        failed |= done.returncode != 0
        print(done.stdout[-3_000:] if done.returncode else done.stdout.splitlines()[-1], flush=True)
        for name in names:
            sized = subprocess.run([python, "-c", SIZE, *extras[name]], capture_output=True, text=True, check=True)
            count, size = map(int, re.findall(r"\d+", sized.stdout))
            lines.append(f"| `{name}` | {count} | {size / 1e6:,.0f} MB |")
    print("\n| extra | packages | size |\n|---|---|---|", *lines, sep="\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()

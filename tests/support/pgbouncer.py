"""PgBouncer for the tests, from this machine or from Debian (`debian`). `make test` runs this file as a program first."""

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.debian import Missing, Program

PROGRAM = Program("pgbouncer", "usr/sbin/pgbouncer")
found = PROGRAM.found


def placed(binary: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """Return a binary that any user of this machine may run, and the environment to run it in."""
    if not binary.is_relative_to(PROGRAM.folder):
        return binary, dict(os.environ)
    shutil.copytree(
        PROGRAM.folder, folder / "pgbouncer", symlinks=True
    )  # a checkout may lie where only its owner looks
    return folder / "pgbouncer" / PROGRAM.path, PROGRAM.environment(folder / "pgbouncer")


def main(program: Program = PROGRAM) -> None:
    """Bring a program if it is not here, and say where it is, or why it could not be brought."""
    try:
        print(f"{program.package}: {program.found() or program.bring()}")
    except Missing as missing:
        needed = os.environ.get(f"TENUTO_REQUIRE_{program.package.upper()}")
        sys.exit(f"{program.package}: {missing}") if needed else print(f"{program.package}: {missing}")


if __name__ == "__main__":
    main()

"""PgBouncer for the tests: this machine's own, or Debian's package unpacked in `.servers`, without root.

No wheel carries PgBouncer (the one of that name on PyPI is a test fixture without a binary). So where none is
installed, `python tests/support/pgbouncer.py`, which `make test` runs first, lets apt-get download the package and
those of its libraries that are missing here, into folders of its own, and unpacks them there. Nothing is
installed, and nothing outside `.servers` is written. Where there is no apt-get it says so and the test is skipped.
TENUTO_PGBOUNCER names another binary to use.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / ".servers" / "pgbouncer"
_DEPTH = 4


class Missing(Exception):
    """There is no PgBouncer here, and none could be brought; the sentence says why."""


def found() -> Path | None:
    """Return the binary to use, or None."""
    if named := os.environ.get("TENUTO_PGBOUNCER"):
        return Path(named)
    installed = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if installed:
        return Path(installed)
    binary = _binary(FOLDER)
    return binary if binary.exists() else None


def placed(binary: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """Return a binary that any user of this machine may run, and the environment to run it in."""
    if not binary.is_relative_to(FOLDER):
        return binary, dict(os.environ)
    shutil.copytree(FOLDER, folder / "pgbouncer", symlinks=True)  # a checkout may lie where only its owner looks
    return _binary(folder / "pgbouncer"), _with_libraries(folder / "pgbouncer")


def bring() -> Path:
    """Download and unpack PgBouncer into `FOLDER`, whole or not at all, and return the binary."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Missing(
            "PgBouncer is not installed, and there is no apt-get here to bring it; install it to run its test"
        )
    FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as temporary:
        work = Path(temporary)
        apt = _apt(work)
        _run([*apt, "update"], work)
        root = work / "root"
        wanted, seen = ["pgbouncer"], {"pgbouncer"}
        for _ in range(_DEPTH):
            depended = [name for package in wanted for name in _unpack(apt, package, work, root)]
            lacking = _lacking(root)
            if not lacking:
                break
            wanted = [name for name in dict.fromkeys(depended) if name not in seen]
            seen.update(wanted)
        else:
            raise Missing(f"PgBouncer was unpacked, but lacks {', '.join(lacking)}; install it with its libraries")
        _run([str(_binary(root)), "--version"], work, _with_libraries(root))
        root.chmod(0o755)
        shutil.rmtree(FOLDER, ignore_errors=True)
        root.rename(FOLDER)
    return _binary(FOLDER)


def _binary(root: Path) -> Path:
    return root / "usr" / "sbin" / "pgbouncer"


def _libraries(root: Path) -> list[Path]:
    return sorted({path.parent for path in root.rglob("*.so.*")})


def _with_libraries(root: Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, _libraries(root)))}


def _apt(work: Path) -> list[str]:
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    settings = {
        "Dir::State": work / "state",
        "Dir::Cache": work / "cache",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "20",
        "Acquire::https::Timeout": "20",
        "APT::Sandbox::User": "",
    }
    return ["apt-get", "-q", *(part for name, value in settings.items() for part in ("-o", f"{name}={value}"))]


def _unpack(apt: list[str], package: str, work: Path, root: Path) -> list[str]:
    """Unpack a package beside what is there, and return the libraries that it depends on."""
    before = set(work.glob("*.deb"))
    _run([*apt, "download", package], work)
    (archive,) = set(work.glob("*.deb")) - before
    _run(["dpkg-deb", "-x", str(archive), str(root)], work)
    depends = _run(["dpkg-deb", "-f", str(archive), "Depends"], work)
    return re.findall(r"\blib(?!c6\b)[a-z0-9][a-z0-9.+-]+", depends)


def _lacking(root: Path) -> list[str]:
    """Return what the dynamic linker does not find for the binary and for the libraries that it has found."""
    told = _run(["ldd", str(_binary(root))], root, _with_libraries(root))
    return sorted(set(re.findall(r"(\S+) => not found", told)))


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if ran.returncode:
        said = (ran.stderr.strip() or ran.stdout.strip()).splitlines()[-1:]
        raise Missing(f"PgBouncer could not be brought: {command[0]} said {' '.join(said) or ran.returncode}")
    return ran.stdout


def main() -> None:
    binary = found()
    try:
        print(f"pgbouncer: {binary or bring()}")
    except Missing as missing:
        sys.exit(str(missing) if os.environ.get("TENUTO_REQUIRE_PGBOUNCER") else print(missing))


if __name__ == "__main__":
    main()

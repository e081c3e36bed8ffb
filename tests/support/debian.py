"""Programs for the tests that no wheel carries: this machine's own, or Debian's package unpacked in `.servers`, without root.

Where a program is not installed, `bring` lets apt-get download its package and those of its libraries that are missing here, into
folders of its own, and unpacks them there. Nothing is installed, and nothing outside `.servers` is written.
"""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SERVERS = Path(__file__).parent.parent.parent / ".servers"
_DEPTH = 4


class Missing(Exception):
    """There is no such program here, and none could be brought; the sentence says why."""


@dataclass(frozen=True)
class Program:
    """A program of a Debian package."""

    package: str
    path: str
    """Where the package has the binary."""
    also: tuple[str, ...] = ()
    """Packages that it needs and does not name as libraries."""

    @property
    def folder(self) -> Path:
        return SERVERS / self.package

    @property
    def variable(self) -> str:
        return f"TENUTO_{self.package.upper()}"

    def found(self) -> Path | None:
        """Return the binary to use, or None. TENUTO_… names another binary."""
        if named := os.environ.get(self.variable):
            return Path(named)
        installed = shutil.which(self.package, path=os.environ.get("PATH", "") + ":/usr/sbin")
        if installed:
            return Path(installed)
        binary = self.folder / self.path
        return binary if binary.exists() else None

    def environment(self, folder: Path | None = None) -> dict[str, str]:
        """Return the environment in which an unpacked binary finds its libraries."""
        found = sorted({path.parent for path in (folder or self.folder).rglob("lib*.so*")})
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, found))}

    def bring(self) -> Path:
        """Download and unpack the program into its folder, whole or not at all, and return the binary."""
        name = self.package
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise Missing(
                f"{name} is not installed, and there is no apt-get here to bring it; install it for its tests"
            )
        SERVERS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SERVERS) as temporary:
            work = Path(temporary)
            apt = _apt(work)
            _run([*apt, "update"], work)
            root = work / "root"
            wanted, seen = [name, *self.also], {name, *self.also}
            for _ in range(_DEPTH):
                depended = [one for package in wanted for one in _unpack(apt, package, work, root)]
                lacking = self._lacking(root)
                if not lacking:
                    break
                wanted = [one for one in dict.fromkeys(depended) if one not in seen]
                seen.update(wanted)
            else:
                raise Missing(f"{name} was unpacked, but lacks {', '.join(lacking)}; install it with its libraries")
            _run([str(root / self.path), "--version"], work, self.environment(root))
            root.chmod(0o755)
            shutil.rmtree(self.folder, ignore_errors=True)
            root.rename(self.folder)
        return self.folder / self.path

    def _lacking(self, root: Path) -> list[str]:
        """Return what the dynamic linker does not find for the binary and for the libraries that it has found."""
        told = _run(["ldd", str(root / self.path)], root, self.environment(root))
        return sorted(set(re.findall(r"(\S+) => not found", told)))


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
    """Unpack a package, and return the libraries that it depends on."""
    before = set(work.glob("*.deb"))
    _run([*apt, "download", package], work)
    (archive,) = set(work.glob("*.deb")) - before
    _run(["dpkg-deb", "-x", str(archive), str(root)], work)
    depends = _run(["dpkg-deb", "-f", str(archive), "Depends"], work)
    return re.findall(r"\blib(?!c6\b)[a-z0-9][a-z0-9.+-]+", depends)


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if ran.returncode:
        said = (ran.stderr.strip() or ran.stdout.strip()).splitlines()[-1:]
        raise Missing(f"{command[0]} said {' '.join(said) or ran.returncode}")
    return ran.stdout

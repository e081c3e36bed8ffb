"""Make a release: `make release` builds wheel and sdist, tries both in empty environments, and lists what is in them.

1. The version of the package has a section in CHANGELOG.md, with "Stored data"; the stored formats are those below.
2. The wheel is installed in a new environment: `tenuto demo`, `init`, `state set`, `check`.
3. The sdist is unpacked elsewhere, and both commands of the README run from it: `make demo`, then `make test`
   (with --quick: `make demo` and `make lint`).
4. `dist/` receives a bill of materials (CycloneDX) of what a user installs, and the digests of all files.

Nothing is uploaded.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from importlib import metadata
from pathlib import Path

TOP = Path(__file__).parents[1]
DIST = TOP / "dist"
FORMATS = {"SQLite": 1, "values": 1}
"""The stored formats that this code writes. A change here needs a line under "Stored data"."""


def run(*command, **options):
    print("$", *command, flush=True)
    return subprocess.run([str(one) for one in command], check=True, **options)


def empty_environment(home):
    """Return the variables that an empty machine has: where programs are, a home, a language."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}


def signed_off():
    """Check version, changelog and stored formats; return the version."""
    import tenuto
    from tenuto.backends.sqlite import schema
    from tenuto.kernel import codec

    changelog = (TOP / "CHANGELOG.md").read_text()
    section = re.search(
        rf"^## (?:{re.escape(tenuto.__version__)}\b|Unreleased).*?(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if section is None or "Stored data" not in section[0]:
        sys.exit(f"CHANGELOG.md has no section for {tenuto.__version__} with a line on stored data. Nothing was built.")
    found = {"SQLite": schema.FORMAT, "values": codec.FORMAT}
    if found != FORMATS:
        sys.exit(f"The stored formats are {found}, and tests/release.py expects {FORMATS}. Nothing was built.")
    return tenuto.__version__


def build():
    """Build sdist and wheel from what git has; return both."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, TOP, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def try_wheel(wheel, folder):
    """Install the wheel alone, use it, and return what was installed."""
    place = folder / "installed"
    venv.create(place, with_pip=True)
    constraints = {"PIP_CONSTRAINT": str(TOP / "requirements.lock"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run(place / "bin" / "python", "-m", "pip", "install", "-q", wheel, env={**os.environ, **constraints})
    work = folder / "work"
    work.mkdir()
    options = {"cwd": work, "env": empty_environment(work)}
    for command in (["--version"], ["demo"], ["init"], ["state", "set", "s", "k", "1"], ["check"]):
        run(place / "bin" / "tenuto", *command, **options, stdout=subprocess.DEVNULL)
    listed = run(place / "bin" / "python", "-m", "pip", "list", "--format", "json", capture_output=True, text=True)
    return {
        one["name"]: one["version"] for one in json.loads(listed.stdout) if one["name"] not in ("pip", "setuptools")
    }


def try_sdist(sdist, folder, *, quick):
    """Unpack the sdist and run both commands of the README from it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (place,) = folder.glob("tenuto-*")
    for target in ("demo", "lint" if quick else "test"):
        run("make", target, cwd=place, env=empty_environment(folder), stdout=subprocess.DEVNULL)


def bill_of_materials(version, installed):
    """Return the CycloneDX document of what a user installs."""

    def component(name, number, kind="library"):
        url = f"pkg:pypi/{name.lower()}@{number}"
        found = {"type": kind, "bom-ref": url, "name": name, "version": number, "purl": url}
        try:
            licence = metadata.metadata(name).get("License-Expression") or metadata.metadata(name).get("License")
        except metadata.PackageNotFoundError:
            licence = None
        return {**found, "licenses": [{"license": {"name": licence.splitlines()[0]}}]} if licence else found

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component("tenuto", version, "application")},
        "components": [component(name, number) for name, number in sorted(installed.items()) if name != "tenuto"],
    }


def main():
    quick = "--quick" in sys.argv
    version = signed_off()
    wheel, sdist = build()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        installed = try_wheel(wheel, folder)
        try_sdist(sdist, folder, quick=quick)
    (DIST / "sbom.json").write_text(json.dumps(bill_of_materials(version, installed), indent=1) + "\n")
    files = sorted(one for one in DIST.iterdir() if one.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}" for one in files]
    (DIST / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print(f"tenuto {version}: {len(installed)} packages for a user; dist/ has", *(one.name for one in files))


if __name__ == "__main__":
    main()

"""Who this process is: the machine's boot, the process, and whether another one is still alive."""

from __future__ import annotations

import functools
import os
import re
import uuid
from pathlib import Path


@functools.cache
def boot_id() -> bytes:
    """Return 16 bytes that change with every boot, or zeros where the system does not tell."""
    try:
        return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    except (OSError, ValueError):
        return bytes(16)


def host() -> str:
    """Return what two processes have in common that can see each other's process ids.

    Containers share the machine's boot id and not its process ids, so the namespace counts too.
    """
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return f"{boot_id().hex()}/{namespace}"


def started(pid: int) -> str | None:
    """Return when a process began, in the system's own ticks, or None where that is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command stands in parentheses and may contain anything; the fields are behind the last one.
    return stat.rpartition(")")[2].split()[19]


def is_gone(pid: int, since: str | None) -> bool:
    """Tell whether the process `pid` that began at `since` surely no longer runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    now = started(pid)
    if now is None or since is None:
        return False
    return now != since or _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return False


def network_filesystem(path: Path) -> str | None:
    """Return the type of the network file system that holds `path`, or None if it is a local one.

    Known on Linux only, where the kernel lists what is mounted.
    """
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    where = str(path.resolve())
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = _octal.sub(lambda found: chr(int(found[1], 8)), left.split()[4])
        if (where == point or where.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind if kind.removeprefix("fuse.") in _NETWORKED else None


_octal = re.compile(r"\\(\d{3})")  # how a space or a tab in a path is written there
_NETWORKED = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "rclone",
        "s3fs",
        "smb3",
        "smbfs",
        "sshfs",
    ]
)

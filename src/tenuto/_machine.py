"""Identify this machine and its processes: boot id, process start time, liveness.

An unknown id equals no other id, not even another unknown one.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
import sys
import uuid
from pathlib import Path
from typing import Final

UNKNOWN_BOOT: Final = bytes(16)


@functools.cache
def boot_id() -> bytes:
    """Return 16 bytes that change with every boot, or `UNKNOWN_BOOT` if the system does not provide an id.

    Compare boot ids with `same_boot`.
    """
    for source in _SOURCES:
        try:
            return uuid.UUID(source().strip()).bytes
        except (OSError, ValueError, AttributeError, TypeError):  # not available on this system
            continue
    return UNKNOWN_BOOT


def is_known_boot(boot: bytes) -> bool:
    """Return whether a boot id is known."""
    return boot != UNKNOWN_BOOT


def same_boot(one: bytes, other: bytes) -> bool:
    """Return whether two boot ids are known and equal."""
    return one == other and is_known_boot(one)


def _linux_boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _sysctl_boot(name: bytes = b"kern.bootsessionuuid") -> str:
    """Read the boot id through sysctl, as macOS provides it; fails on other systems."""
    import ctypes  # noqa: PLC0415 - only without /proc

    found, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    failed = ctypes.CDLL(None).sysctlbyname(name, found, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else found.value.decode("ascii", "replace")


_SOURCES = [_linux_boot, _sysctl_boot]


def host() -> str:
    """Return a string that two processes share only if they can see each other's process ids.

    Containers share the boot id of the machine but not its process ids, so the PID namespace is part of it. If
    either is unknown, the string is unique to this process.
    """
    boot = boot_id()
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink()) if sys.platform == "linux" else ""
    except OSError:
        boot, namespace = UNKNOWN_BOOT, ""
    return f"{boot.hex()}/{namespace}" if is_known_boot(boot) else f"unknown/{_own_name(os.getpid())}"


@functools.lru_cache(1)
def _own_name(pid: int) -> str:  # noqa: ARG001 - part of the cache key: a forked child needs another name
    return secrets.token_hex(16)


def started(pid: int) -> str | None:
    """Return the start time of a process in system ticks, or None if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command is in parentheses and may contain any character; the fields follow the last parenthesis.
    return stat.rpartition(")")[2].split()[19]


def is_gone(pid: int, since: str | None) -> bool:
    """Return whether the process `pid` started at `since` has certainly ended on this machine."""
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
    """Return the type of the network file system that contains `path`, or None if it is local.

    Known on Linux only, from the kernel's list of mounts.
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


_octal = re.compile(r"\\(\d{3})")  # escapes for spaces and tabs in mount paths
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

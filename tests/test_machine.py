"""Which boot and which host this is; what the system does not tell is equal to nothing."""

from __future__ import annotations

import ctypes
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenuto import _machine

BOOT = "8C4F2A58-9B1D-4E9A-8E0F-6D2F0E5C7A11"


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    _machine.boot_id.cache_clear()
    yield
    _machine.boot_id.cache_clear()


def test_an_unknown_boot_is_the_same_as_no_other() -> None:
    unknown, known, other = _machine.UNKNOWN_BOOT, uuid.uuid4().bytes, uuid.uuid4().bytes
    assert not _machine.same_boot(unknown, unknown)
    assert not _machine.same_boot(unknown, known)
    assert not _machine.same_boot(known, other)
    assert _machine.same_boot(known, known)
    assert not _machine.is_known_boot(unknown)
    assert len(unknown) == len(_machine.boot_id()) == 16


def test_a_system_that_does_not_tell_its_boot_has_an_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine, "_SOURCES", [lambda: Path("/nowhere/boot_id").read_text(), lambda: "no uuid"])
    assert _machine.boot_id() == _machine.UNKNOWN_BOOT


def test_two_processes_of_unknown_machines_never_have_the_same_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine, "boot_id", lambda: _machine.UNKNOWN_BOOT)
    mine = _machine.host()
    assert mine == _machine.host()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert _machine.host() != mine


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_without_its_namespace_a_linux_process_has_no_host_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> Path:
        raise PermissionError

    known = _machine.host()
    assert known.startswith(_machine.boot_id().hex())
    monkeypatch.setattr(Path, "readlink", refused)
    assert _machine.host().startswith("unknown/")


@pytest.mark.skipif(sys.platform == "darwin", reason="this system has the real one")
def test_the_boot_session_is_asked_for_as_macos_does(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a C function that answers as macOS documents it; Linux has none
    signature = ctypes.CFUNCTYPE(
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.c_void_p,
        ctypes.c_size_t,
    )

    def answer(name: bytes, into: int, size: Any, new: Any, _: int) -> int:
        text = BOOT.encode() + b"\0"
        if name != b"kern.bootsessionuuid" or size[0] < len(text) or new:
            return -1
        ctypes.memmove(into, text, len(text))
        size[0] = len(text)
        return 0

    class Library:
        sysctlbyname = signature(answer)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    monkeypatch.setattr(_machine, "_SOURCES", [lambda: Path("/nowhere").read_text(), _machine._sysctl_boot])
    assert _machine.boot_id() == uuid.UUID(BOOT).bytes


def test_a_system_without_that_function_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine, "_SOURCES", [lambda: ctypes.CDLL(None).no_such_function()])
    assert _machine.boot_id() == _machine.UNKNOWN_BOOT

"""What the other capabilities need of the archive: bring back a part that they find missing, and end one for good."""

from __future__ import annotations

from typing import Protocol

from tenuto.kernel.work import Work


class Archive(Protocol):
    """The archived parts of a tenant's threads, runs and checkpoints."""

    def bring_back(self, kind: str, name: str, number: int) -> bool:
        """Store again what was archived of a thing from `number` on; return whether there was any."""
        ...

    def bring_back_all(self, kind: str, name: str) -> Work[None]:
        """Store again all that was archived of a thing."""
        ...

    def end(self, kind: str, name: str) -> Work[None]:
        """Make all that was archived of a thing absent for good; a later `archive` removes the objects."""
        ...


class _Nothing:
    """The archive of a client that has none."""

    def bring_back(self, kind: str, name: str, number: int) -> bool:  # noqa: ARG002 - the protocol's arguments
        return False

    def bring_back_all(self, kind: str, name: str) -> Work[None]:  # noqa: ARG002 - the protocol's arguments
        yield from ()

    def end(self, kind: str, name: str) -> Work[None]:  # noqa: ARG002 - the protocol's arguments
        yield from ()


NOTHING: Archive = _Nothing()

"""What a disk may hold after a power loss: the recorded I/O of a store, replayed with what was not synced in doubt.

A sync of a file makes the writes to it before the sync durable. Each write since may have reached the disk, or not, or
in part: sectors of 512 bytes are whole. Creating and deleting files is durable with a sync of the folder; before that, some
of it may be, in order (a journaling file system keeps the order).

A failed sync loses the writes that it should have covered, as Linux does: they stay in the page cache, but a later
sync takes them for written.
"""

import pathlib

from io_recorder import FOLDER, PARTS

SECTOR = 512


class Inode:
    """A file, whatever its name: its bytes on the disk, and the operations that no sync has covered yet."""

    def __init__(self, content=b""):
        self.synced = bytearray(content)
        self.pending = []

    def sync(self):
        for operation in self.pending:
            _apply(self.synced, operation)
        self.pending = []


class Disk:
    """The disk under one store, event after event."""

    def __init__(self):
        self._names = {}
        self._synced_names = {}
        self._moves = []

    @classmethod
    def of(cls, store):
        """Return a disk on which a store's files are as they are now, all of them synced."""
        disk = cls()
        for part in PARTS:
            file = pathlib.Path(f"{store}{part}")
            if file.exists():
                disk._names[part] = disk._synced_names[part] = Inode(file.read_bytes())
        return disk

    def play(self, event):
        """Take in one event."""
        kind, *rest = event
        if kind == "note":
            return
        part = rest[0]
        if kind == "create" or (kind == "write" and part not in self._names):
            self._names[part] = Inode()
            self._moves.append((part, self._names[part]))
        if kind == "delete":
            del self._names[part]
            self._moves.append((part, None))
        elif kind in ("write", "truncate"):
            self._names[part].pending.append((kind, *rest[1:]))
        elif kind == "failed" and part in self._names:
            self._names[part].pending = []
        elif kind == "sync" and part == FOLDER:
            self._synced_names, self._moves = dict(self._names), []
        elif kind == "sync":
            self._names[part].sync()

    def save(self, store, fate):
        """Write the files as a power loss may leave them at this moment.

        `fate(part, size)` decides what becomes of one pending write: the indexes of the sectors that reach the disk,
        or True for all of them, or False for none. `fate("folder", n)` returns how many of n renamings do.
        """
        names = self._synced_names | dict(self._moves[: fate(FOLDER, len(self._moves))])
        for part in (*PARTS, "-shm"):
            pathlib.Path(f"{store}{part}").unlink(missing_ok=True)
        for part, inode in names.items():
            if inode is not None:
                pathlib.Path(f"{store}{part}").write_bytes(_survived(inode, part, fate))


def nothing(part, size):
    """The fate of unsynced writes on a disk that lost them all."""
    return 0


def everything(part, size):
    """The fate of unsynced writes on a disk that was lucky."""
    return size if part == FOLDER else True


def by_chance(rng):
    """Return a fate that differs from write to write: dropped, whole or torn."""
    kept, torn = rng.choice([0.0, 0.1, 0.5, 0.9]), rng.choice([0.0, 0.3])

    def fate(part, size):
        if part == FOLDER:
            return rng.randint(0, size)
        if rng.random() < torn:
            return {sector for sector in range(size) if rng.random() < 0.5}
        return rng.random() < kept

    return fate


def _survived(inode, part, fate):
    content = bytearray(inode.synced)
    for operation in inode.pending:
        if operation[0] == "truncate":
            if fate(part, 1) is True:
                _apply(content, operation)
            continue
        _, offset, data = operation
        pieces = _sectors(offset, data)
        chosen = fate(part, len(pieces))
        for index, piece in enumerate(pieces):
            if chosen is True or (chosen and index in chosen):
                _apply(content, ("write", *piece))
    return bytes(content)


def _sectors(offset, data):
    """Cut a write where the sectors of the disk begin."""
    ends = [*range(offset - offset % SECTOR + SECTOR, offset + len(data), SECTOR), offset + len(data)]
    begins = [offset, *ends[:-1]]
    return [(begin, data[begin - offset : end - offset]) for begin, end in zip(begins, ends, strict=True)]


def _apply(content, operation):
    if operation[0] == "truncate":
        size = operation[1]
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    _, offset, data = operation
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data

"""Records what a process writes to the files of a SQLite store, and what it syncs, in the order in which it happens.

SQLite's own files are seen by a VFS between SQLite and the system. The lock file, and syncs made from Python, are
seen by wrapping `os.pwrite` and `os.fsync`. The shared index (-shm) is not recorded: it does not outlive the machine.

Every event is appended to a log file before the next one happens, so the log is complete when the process is killed.
Several processes may record into one log, one after the other. `disk_image.py` replays it.
"""

import contextlib
import errno
import marshal
import os
import struct
import threading

import apsw

PARTS = ("", "-wal", "-journal", "-lock")
FOLDER = "folder"
_LENGTH = struct.Struct(">I")


class Recorder:
    """Records the file I/O of this process on one store, from `install` on."""

    def __init__(self, store, log):
        self._folder = os.path.dirname(os.path.realpath(store))  # noqa: PTH120
        self._names = {os.path.realpath(store) + part: part for part in PARTS} | {self._folder: FOLDER}
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._order = threading.RLock()
        self._fsync, self._pwrite = os.fsync, os.pwrite
        self.before_sync = lambda part: None
        """Called before each sync; what it raises is the sync's error, and nothing is synced."""

    def install(self):
        """Begin to record: for connections and files that are opened from now on."""
        self._vfs = _RecordingVFS(self)
        os.fsync, os.pwrite = self._recorded_fsync, self._recorded_pwrite
        return self

    def note(self, *what):
        """Record something that the process did besides I/O, such as an acknowledged commit."""
        self.add("note", *what)

    def part(self, path):
        """Return which file of the store a path is, or None."""
        return self._names.get(path)

    def add(self, *event):
        raw = marshal.dumps(event)
        os.write(self._log, _LENGTH.pack(len(raw)) + raw)

    @contextlib.contextmanager
    def ordered(self):
        """Keep other threads from I/O, so that the log has the order in which things happened."""
        with self._order:
            yield

    def sync(self, part, really, failure):
        """Make a sync, or fail as `before_sync` wants it."""
        with self.ordered():
            try:
                self.before_sync(part)
            except OSError as error:
                self.add("failed", part)
                raise failure(error) from error
            really()
            self.add("sync", part)

    def _recorded_fsync(self, fd):
        part = self.part(_path_of(fd))
        if part is None:
            self._fsync(fd)
        else:
            self.sync(part, lambda: self._fsync(fd), lambda error: error)

    def _recorded_pwrite(self, fd, data, offset):
        part = self.part(_path_of(fd))
        with self.ordered():
            written = self._pwrite(fd, data, offset)
            if part is not None:
                self.add("write", part, offset, bytes(data)[:written])
        return written


def disk_error():
    """Return the error of a disk that fails."""
    return OSError(errno.EIO, os.strerror(errno.EIO))


def _path_of(fd):
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115


class _RecordingVFS(apsw.VFS):
    def __init__(self, recorder):
        self._recorder = recorder
        super().__init__("recording", "unix", makedefault=True)

    def xOpen(self, name, flags):
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        part = self._recorder.part(path)
        with self._recorder.ordered():
            created = part is not None and not os.path.exists(path)  # noqa: PTH110
            file = _RecordedFile(self._recorder, part, name, flags)
            if created:
                self._recorder.add("create", part)
            file.syncs_folder = part in ("-wal", "-journal") and bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        return file

    def xDelete(self, name, sync_folder):
        part = self._recorder.part(name)
        with self._recorder.ordered():
            super().xDelete(name, sync_folder)
            if part is not None:
                self._recorder.add("delete", part)
                if sync_folder:
                    self._recorder.add("sync", FOLDER)


class _RecordedFile(apsw.VFSFile):
    def __init__(self, recorder, part, name, flags):
        self._recorder, self._part, self.syncs_folder = recorder, part, False
        super().__init__("unix", name, flags)

    def xWrite(self, data, offset):
        with self._recorder.ordered():
            super().xWrite(data, offset)
            if self._part is not None:
                self._recorder.add("write", self._part, offset, bytes(data))

    def xTruncate(self, size):
        with self._recorder.ordered():
            super().xTruncate(size)
            if self._part is not None:
                self._recorder.add("truncate", self._part, size)

    def xSync(self, flags):
        if self._part is None:
            super().xSync(flags)
            return
        self._recorder.sync(self._part, lambda: super(_RecordedFile, self).xSync(flags), apsw.IOError)
        if self.syncs_folder:  # SQLite syncs the folder with the first sync of a log, whichever process has created it
            self._recorder.add("sync", FOLDER)
            self.syncs_folder = False


def events(log):
    """Return the recorded events, in order."""
    found = []
    with open(log, "rb") as file:  # noqa: PTH123
        while head := file.read(_LENGTH.size):
            found.append(marshal.loads(file.read(*_LENGTH.unpack(head))))
    return found

"""State managers with one planted fault each: the audit has to find that fault. `good` has none."""

import contextlib
import fcntl
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace


class Conflict(Exception):
    pass


class Good:
    """A folder of JSON files: a lock, versions, atomic replacement, sync."""

    sync = True

    def __init__(self, folder=None):
        self.folder = Path(folder or os.environ["PLANTED_FOLDER"])
        self.folder.mkdir(parents=True, exist_ok=True)

    def _file(self, key):
        return self.folder / f"{key}.json"

    def _load(self, key):
        if not self.folder.exists():
            raise OSError("the folder is gone")
        try:
            return json.loads(self._file(key).read_text())
        except FileNotFoundError:
            return {"value": None, "version": 0, "until": None, "past": []}

    @contextlib.contextmanager
    def _locked(self):
        if not self.folder.exists():
            raise OSError("the folder is gone")
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def get(self, key):
        return self.entry(key).value

    def entry(self, key):
        found = self._load(key)
        if found["until"] is not None and time.time() > found["until"]:
            return SimpleNamespace(value=None, version=found["version"])
        return SimpleNamespace(value=found["value"], version=found["version"])

    def set(self, key, value, expect=None, ttl=None):
        with self._locked():
            self._put(key, value, expect, ttl)

    def _put(self, key, value, expect=None, ttl=None):
        old = self._load(key)
        if expect is not None and old["version"] != expect:
            raise Conflict(f"{key} is at version {old['version']}")
        text = json.dumps(
            {
                "value": value,
                "version": old["version"] + 1,
                "until": None if ttl is None else time.time() + ttl,
                "past": [*old["past"][-10:], old["version"]],
            }
        )
        new = self._file(key).with_suffix(f".{os.getpid()}")
        new.write_text(text)
        new.replace(self._file(key))

    def update(self, key, change):
        with self._locked():
            self._put(key, change(self._load(key)["value"]))

    def history(self, key):
        return self._load(key)["past"]

    def delete(self, key):
        self._file(key).unlink(missing_ok=True)

    def backup(self, folder):
        import shutil

        return type(self)(shutil.copytree(self.folder, Path(folder) / "copy"))

    def outage(self):
        away = type(self)(self.folder / "away")
        away.folder.rmdir()
        return away


class Cached(Good):
    """Caches what it has read: replicas see old values."""

    def __init__(self, folder=None):
        super().__init__(folder)
        self.cache = {}

    def get(self, key):
        if key not in self.cache:
            self.cache[key] = super().get(key)
        return self.cache[key]

    def set(self, key, value, expect=None, ttl=None):
        super().set(key, value, expect, ttl)
        self.cache[key] = value


class Unlocked(Good):
    """An update without a lock."""

    def update(self, key, change):
        old = self.get(key)
        time.sleep(0.001)
        self._put(key, change(old))


class Blind(Good):
    """Takes a version and does not look at it."""

    def _put(self, key, value, expect=None, ttl=None):
        super()._put(key, value, None, ttl)


class Late(Good):
    """Acknowledges a write before it is made."""

    def set(self, key, value, expect=None, ttl=None):
        threading.Thread(target=self._later, args=(key, value, expect, ttl)).start()

    def _later(self, key, value, expect, ttl):
        time.sleep(0.05)
        super().set(key, value, expect, ttl)


class Torn(Good):
    """Writes the file in place."""

    def _put(self, key, value, expect=None, ttl=None):
        with self._file(key).open("w") as file:
            json.dump({"value": value, "version": 1, "until": None, "past": []}, file)


class Partial(Good):
    """Its backup leaves something out."""

    def backup(self, folder):
        copy = super().backup(folder)
        sorted(copy.folder.glob("*backup*.json"))[7].unlink()
        return copy


class Soft(Good):
    """Answers None when its storage is gone."""

    def _load(self, key):
        return super()._load(key) if self.folder.exists() else {"value": None, "version": 0, "until": None, "past": []}


class Eternal(Good):
    """Takes a ttl and keeps everything."""

    def _put(self, key, value, expect=None, ttl=None):
        super()._put(key, value, expect)


class Leaky(Good):
    """Opens a file for each call."""

    open_files = []

    def get(self, key):
        self.open_files.append((self.folder / "lock").open("a"))
        return super().get(key)


class Heavy(Good):
    """Keeps every version of a value whole."""

    def _put(self, key, value, expect=None, ttl=None):
        super()._put(key, value, expect, ttl)
        with (self.folder / "log").open("a") as file:
            file.write(json.dumps(value))

    def size(self):
        return sum(one.stat().st_size for one in self.folder.iterdir())


class Slow(Good):
    """A lookup takes 150 ms."""

    def get(self, key):
        time.sleep(0.15)
        return super().get(key)

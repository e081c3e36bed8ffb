"""Stores with one planted bug each, all of them around a store without: what a check of histories must find."""

import itertools
import random
import time

from tenuto.kernel.contract import Append, Commit

_seeds = itertools.count()


class Sound:
    """Passes everything on, so that only what a subclass does otherwise is a bug."""

    def __init__(self, store):
        self._store = store
        self._dice = random.Random(next(_seeds))

    def read(self, keys):
        return self._store.read(keys)

    def commit(self, checks, writes, *, request=None):
        return self._store.commit(checks, writes, request=request)

    def scan(self, prefix, **page):
        return self._store.scan(prefix, **page)

    def entries(self, stream, **page):
        return self._store.entries(stream, **page)

    def __getattr__(self, name):
        return getattr(self._store, name)


class StaleRead(Sound):
    """Answers one read in twenty with what it answered before."""

    def __init__(self, store):
        super().__init__(store)
        self._before = {}

    def read(self, keys):
        found = self._store.read(keys)
        before = self._before.get(tuple(keys), found)
        self._before[tuple(keys)] = found
        return before if self._dice.random() < 0.05 else found


class TornRead(Sound):
    """Reads one key after the other."""

    def read(self, keys):
        found = []
        for key in keys:
            found += self._store.read([key])
            time.sleep(0)
        return found


class LostUpdate(Sound):
    """Checks, lets others in, and writes: two may pass the same check, and one's update is lost."""

    def commit(self, checks, writes, *, request=None):
        if not checks or not writes:
            return self._store.commit(checks, writes, request=request)
        self._store.commit(checks, [])
        time.sleep(0)
        return self._store.commit([], writes, request=request)


class TornCommit(Sound):
    """Commits the first of two writes, lets others in, and commits the second."""

    def commit(self, checks, writes, *, request=None):
        if len(writes) < 2:
            return self._store.commit(checks, writes, request=request)
        first = self._store.commit(checks, writes[:1])
        time.sleep(0)
        return first._replace(versions=first.versions + self._store.commit([], writes[1:]).versions)


class Forgotten(Sound):
    """Acknowledges one commit in fifty of those with checks, and does not write."""

    def commit(self, checks, writes, *, request=None):
        if self._dice.random() < 0.02 and writes and checks:
            self._store.commit(checks, [])
            found = self._store.read([write[0] for write in writes])
            return Commit(tuple(record.version + 1 if record else 1 for record in found), self.now())
        return self._store.commit(checks, writes, request=request)


class AppliedTwice(Sound):
    """Does not know request ids."""

    def commit(self, checks, writes, *, request=None):
        return self._store.commit(checks, writes)


class HastyConflict(Sound):
    """Holds a check in fifty against what was there before."""

    def commit(self, checks, writes, *, request=None):
        if checks and self._dice.random() < 0.02:
            checks = [type(check)(check[0], max(0, check[1] - 1)) for check in checks]
        return self._store.commit(checks, writes, request=request)


class MissedKey(Sound):
    """Leaves one record out of one scan in ten."""

    def scan(self, prefix, **page):
        found = self._store.scan(prefix, **page)
        if len(found) > 1 and self._dice.random() < 0.1:
            found.pop(self._dice.randrange(len(found)))
        return found


class TornScan(Sound):
    """Reads a page record by record."""

    def scan(self, prefix, *, after=None, limit=100, reverse=False):
        found = []
        while len(found) < limit:
            page = self._store.scan(prefix, after=after, limit=1, reverse=reverse)
            if not page:
                break
            found += page
            after = page[0].key
            time.sleep(0)
        return found


class EarlyEntry(Sound):
    """Shows an entry before it is committed: it may never be."""

    _coming = {}

    def commit(self, checks, writes, *, request=None):
        for write in writes:
            if isinstance(write, Append):
                self._coming[write.stream] = write.value
        time.sleep(0)
        try:
            return self._store.commit(checks, writes, request=request)
        finally:
            for write in writes:
                self._coming.pop(write[0], None)

    def entries(self, stream, **page):
        coming = self._coming.get(stream)
        found = self._store.entries(stream, **page)
        if coming is not None and found and not page.get("reverse") and found[-1].value != coming:
            found = [*found, found[-1]._replace(number=found[-1].number + 1, value=coming)][: page["limit"]]
        return found


class MissedEntry(Sound):
    """Does not show the newest entry at one of ten looks."""

    def entries(self, stream, **page):
        found = self._store.entries(stream, **page)
        newest = 0 if page.get("reverse") else -1
        if len(found) > 1 and self._dice.random() < 0.1:
            found.pop(newest)
        return found


class LateStream(Sound):
    """Does not list a stream that has one entry."""

    def streams(self, prefix, **page):
        return [one for one in self._store.streams(prefix, **page) if len(self._store.entries(one, limit=2)) > 1]


class Unchecked(Sound):
    """Applies one commit in five whether its checks hold or not."""

    def commit(self, checks, writes, *, request=None):
        if writes and self._dice.random() < 0.2:
            checks = []
        return self._store.commit(checks, writes, request=request)


BUGS = [
    StaleRead,
    TornRead,
    LostUpdate,
    TornCommit,
    Forgotten,
    AppliedTwice,
    HastyConflict,
    MissedKey,
    TornScan,
    EarlyEntry,
    MissedEntry,
    LateStream,
]

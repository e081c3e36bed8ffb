"""Stores with one planted bug each, all of them around a store without: what a check of histories must find."""

import itertools
import random
import time

from tenuto.kernel.contract import Commit

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

    def now(self):
        return self._store.now()


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
            checks = [check._replace(version=max(0, check.version - 1)) for check in checks]
        return self._store.commit(checks, writes, request=request)


BUGS = [StaleRead, TornRead, LostUpdate, TornCommit, Forgotten, AppliedTwice, HastyConflict]

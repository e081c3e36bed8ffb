"""One SQLite file, shared by the threads, clients and processes of one machine.

backend      the verbs, opening and closing
commit       one write transaction: decide every commit, then write it
reading      the statements that read, and the proof of absence
rows         what each checksum covers
schema       tables, format numbers, migrations
group        group commit inside a process
lockfile     the fair queue between processes, and the mark of the last commit
connections  connections, and what a fork does to them
files        the files on disk: replaced ones, failed syncs, permissions
upkeep       WAL checkpoints and expiry, off the commit path
backup, check, errors
"""

from tenuto.backends.sqlite.backend import Durability, NetworkFilesystemWarning, SqliteBackend

__all__ = ["Durability", "NetworkFilesystemWarning", "SqliteBackend"]

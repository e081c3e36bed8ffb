"""A nursery of processes that upgrade a store and die at their nth write or sync: each line on stdin, a JSON object, forks one.

store, at, point    which file; the number of the write or sync, counted over all files; "write" or "sync"
planted             "no transaction": the statements of a migration are committed one by one
"""

import contextlib
import json
import os
import sys

import worker_faults

from tenuto import Tenuto
from tenuto.backends.sqlite import schema

NEXT = schema.Migration(
    len(schema.MIGRATIONS) + 1,
    "one more",
    "CREATE TABLE extra (x); INSERT INTO extra VALUES (1); CREATE INDEX extra_by_x ON extra (x);",
    1,
    len(schema.MIGRATIONS) + 1,
)


def work(order):
    schema.MIGRATIONS = [*schema.MIGRATIONS, NEXT]
    if order.get("planted") == "no transaction":
        schema.transaction = contextlib.nullcontext
    worker_faults.fault = worker_faults.Fault(order["point"], order["at"], "exit")
    worker_faults.fault.note = lambda *_: None
    worker_faults.fault.armed = True
    Tenuto("upgrader", order["store"]).open()


def main():
    vfs = worker_faults.FaultyVFS()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            work(json.loads(line))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    del vfs


if __name__ == "__main__":
    main()

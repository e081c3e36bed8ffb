"""The access log and the audit log: one JSON object a line, without values, keys or secrets.

Every request is logged by `tenuto.access`. Every request that may write is also logged by `tenuto.audit`, with the name of its API key.
The audit log is not in the store: an entry in each commit would make all writers of a tenant wait for each other.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from tenuto.servers.http.exchange import Exchange

access_log = logging.getLogger("tenuto.access")
audit_log = logging.getLogger("tenuto.audit")


def logged(exchange: Exchange, *, wrote: bool) -> None:
    """Write the log lines of one request."""
    chosen = [
        log for log, wanted in ((access_log, True), (audit_log, wrote)) if wanted and log.isEnabledFor(logging.INFO)
    ]
    if not chosen:
        return
    caller = exchange.access
    line: dict[str, Any] = {
        "log": "access",
        "time": round(time.time(), 3),
        "method": exchange.method,
        "path": exchange.raw_path[:200],
        "status": exchange.status,
        "ms": round(1000 * (time.monotonic() - exchange.began), 1),
        "bytes": exchange.sent,
        "request_id": exchange.request_id,
    }
    if exchange.correlation:
        line["correlation_id"] = exchange.correlation
    if caller is not None:
        line |= {"key": caller.name, "key_id": caller.id, "tenant": caller.tenant}
    for log in chosen:
        log.info(json.dumps({**line, "log": log.name.partition(".")[2]}))


def configure(*, access: bool) -> None:
    """Send the log lines of a server process to stderr."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lines = logging.StreamHandler()
    lines.setFormatter(logging.Formatter("%(message)s"))
    for log, wanted in ((access_log, access), (audit_log, True)):
        log.propagate = False
        log.handlers = [lines]
        log.setLevel(logging.INFO if wanted else logging.WARNING)

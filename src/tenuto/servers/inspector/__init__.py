"""The inspector: a local page for debugging runs, replaying, time travel and answering questions.

`static/` has the page, its style and its program, built from `inspector/` of the repository and committed, so that nothing is built
at installation. The files hold no data: the program reads and writes with the JSON API alone, with the API key that
`tenuto serve` prints. The key is in the fragment of the address, which browsers send to no server, and travels in the
Authorization header, never in a cookie: a page of another origin can neither read nor write with it.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import Final, NamedTuple

PATH: Final = "/inspector"
_MEDIA: Final = {
    "app.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "index.html": "text/html; charset=utf-8",
}
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class File(NamedTuple):
    """A file of the page."""

    content: bytes
    media: str
    digest: str


def file_at(path: str) -> File | None:
    """Return the file at a path of the server, or None."""
    name = path.removeprefix(f"{PATH}/") or "index.html"
    return _file(name) if name in _MEDIA else None


@functools.cache
def _file(name: str) -> File:
    content = resources.files(__name__).joinpath("static", name).read_bytes()
    return File(content, _MEDIA[name], hashlib.sha256(content).hexdigest()[:24])

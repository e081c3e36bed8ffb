"""Objects in a bucket of S3, or of a store that speaks its protocol. Needs the extra `s3`.

`s3://bucket/prefix?endpoint=https://host&region=eu-central-1`. Credentials, and endpoint and region unless the URL has
them, come from the environment as for other tools: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, …
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from tenuto.capabilities.archive.places import checked
from tenuto.errors import AccessDenied, InvalidInput, MissingDriver, NotFound, StorageUnavailable, TenutoError

try:
    import obstore
    from obstore import exceptions
    from obstore.store import S3Store
except ImportError as missing:
    raise MissingDriver('An archive on S3 needs obstore. Install it with: pip install "tenuto[s3]"') from missing

_OPTIONS: Final = ("endpoint", "region")
_CHUNK: Final = 1 << 20


class Bucket:
    """Objects below a prefix of a bucket."""

    def __init__(self, place: str) -> None:
        url = urlsplit(place)
        options: dict[str, Any] = dict(parse_qsl(url.query, keep_blank_values=True))
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise InvalidInput(f"The URL of an archive takes {' and '.join(_OPTIONS)}, not {unknown[0]!r}.")
        self._shown = place
        self._store: Any = S3Store(
            url.hostname,
            prefix=url.path.strip("/") or None,
            client_options={"timeout": "300s", "read_timeout": "20s", "connect_timeout": "5s", "allow_http": True},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=60)},
            disable_bulk_delete=True,  # one request an object: not every server has bulk deletion
            **options,
        )

    def put(self, name: str, file: Path) -> None:
        """Store a file as an object."""
        try:
            obstore.put(self._store, _path(name), file)
        except (exceptions.BaseError, OSError) as error:
            raise self._translated("write to", error) from error

    def get(self, name: str) -> Iterator[bytes]:
        """Yield an object's content."""
        try:
            for chunk in obstore.get(self._store, _path(name)).stream(min_chunk_size=_CHUNK):
                yield bytes(chunk)
        except FileNotFoundError as error:
            raise NotFound(f"The archive {self._shown} has no object {name}.") from error
        except (exceptions.BaseError, OSError) as error:
            raise self._translated("read from", error) from error

    def delete(self, name: str) -> None:
        """Delete an object."""
        try:
            obstore.delete(self._store, _path(name))
        except FileNotFoundError:
            return
        except (exceptions.BaseError, OSError) as error:
            raise self._translated("erase from", error) from error

    def _translated(self, what: str, error: Exception) -> TenutoError:
        kind: type[TenutoError] = StorageUnavailable
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            kind = AccessDenied
        reason = str(error).split("\n", 1)[0][:300]
        return kind(
            f"tenuto cannot {what} the archive {self._shown}: {reason}. Nothing is lost; check the bucket, the "
            "credentials and the network, and retry."
        )


def _path(name: str) -> str:
    return f"{checked(name)}.jsonl"

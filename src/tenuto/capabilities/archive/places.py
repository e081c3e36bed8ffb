"""Where archived objects are: a folder, or a bucket (`bucket`). An object is complete under its name, or absent.

Objects have random names, so that nothing that exists is overwritten, and the names tell nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from tenuto.errors import InvalidInput, NotFound, StorageFull, StorageUnavailable

_CHUNK: Final = 1 << 20
_name = re.compile(r"[0-9a-f]{32}").fullmatch


class Place(Protocol):
    """A folder or bucket of objects."""

    def put(self, name: str, file: Path) -> None:
        """Store a file as an object, durably; an object of this name is replaced as a whole."""
        ...

    def get(self, name: str) -> Iterator[bytes]:
        """Yield an object's content; raise `NotFound` if it is absent."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object, also if it is absent."""
        ...


class Folder:
    """Objects as files of a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, name: str, file: Path) -> None:
        """Store a file as an object: written under another name, synced, renamed."""
        target = self._file(name)
        partial = target.with_suffix(".partial")
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as source, partial.open("wb") as written:
                while chunk := source.read(_CHUNK):
                    written.write(chunk)
                written.flush()
                os.fsync(written.fileno())
            partial.replace(target)
            self._sync()
        except OSError as error:
            raise self._away("write to", error) from error

    def get(self, name: str) -> Iterator[bytes]:
        """Yield an object's content."""
        try:
            with self._file(name).open("rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
        except FileNotFoundError as error:
            if not self._path.is_dir():  # not mounted
                raise self._away("read from", error) from error
            raise NotFound(f"The archive in {self._path} has no object {name}.") from error
        except OSError as error:
            raise self._away("read from", error) from error

    def delete(self, name: str) -> None:
        """Delete an object."""
        if not self._path.is_dir():
            raise self._away("erase from", FileNotFoundError("there is no such folder"))
        try:
            self._file(name).unlink(missing_ok=True)
            self._file(name).with_suffix(".partial").unlink(missing_ok=True)
            self._sync()
        except OSError as error:
            raise self._away("erase from", error) from error

    def _file(self, name: str) -> Path:
        return self._path / f"{checked(name)}.jsonl"

    def _sync(self) -> None:
        if os.name == "posix":
            handle = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _away(self, what: str, error: OSError) -> StorageUnavailable:
        kind = StorageFull if error.errno == 28 else StorageUnavailable
        return kind(
            f"tenuto cannot {what} the archive {self._path}: {error}. Nothing is lost; make the folder available and retry."
        )


def checked(name: str) -> str:
    """Return the name of an object, or raise `InvalidInput`."""
    if not _name(name):
        raise InvalidInput(f"{name!r} is not the name of an archived object.")
    return name


def normal(place: str | os.PathLike[str]) -> str:
    """Return the recorded form of a place: an absolute path, or the URL of a bucket."""
    text = os.fspath(place)
    url = urlsplit(text)
    if not text or (url.scheme and len(url.scheme) > 1 and url.scheme not in ("file", "s3")):
        raise InvalidInput(f"An archive is a folder or s3://bucket/prefix, not {text!r}. Nothing was archived.")
    if url.scheme == "s3":
        if not url.hostname or "@" in url.netloc:
            raise InvalidInput(
                "An archive on S3 is s3://bucket/prefix, with the credentials in $AWS_ACCESS_KEY_ID and "
                "$AWS_SECRET_ACCESS_KEY, not in the URL. Nothing was archived."
            )
        return text
    path = Path(unquote(url.path) if url.scheme == "file" else text).absolute()
    if path.is_file():
        raise InvalidInput(f"{path} is a file. Name a folder for the archive; nothing was archived.")
    return str(path)


def opened(place: str) -> Place:
    """Return the place of its recorded form."""
    if not place.startswith("s3:"):
        return Folder(Path(place))
    from tenuto.capabilities.archive.bucket import Bucket  # noqa: PLC0415 - needs the extra `s3`

    return Bucket(place)

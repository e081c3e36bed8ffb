"""Progress documents in files: Markdown, and feature lists in JSON.

Writing takes in what was edited in the file, by a three-way merge with the text that the file had before. Order of
writes: the merged document, then the file (replaced atomically), then the git commit, then the record of the file's
text. After a crash between any two of them, the next call finds the merged text in both places and continues.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenuto.capabilities.sessions import git, markdown
from tenuto.capabilities.sessions.markdown import Entry, Markdown
from tenuto.capabilities.sessions.three_way import Overlap, merge
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Put
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work

if TYPE_CHECKING:
    from tenuto.capabilities.sessions.progress import Progress


def read_file(progress: Progress, path: str | os.PathLike[str]) -> Work[None]:
    """Take in what was edited in a file."""
    place = Path(path)
    text = _text_of(place)
    if text is None:
        raise NotFound(f"There is no file {place}. Write the document first with p.write({str(place)!r}).")
    if is_features(place):
        yield from progress._change(lambda doc: _absorb(doc, _features(text, place)[0], place.name))
        return
    yield from _merged(progress, place, text)
    yield from _remember(progress, place, text)


def write_file(progress: Progress, path: str | os.PathLike[str], *, commit: bool) -> Work[bool]:
    """Write the document to a file, with what was edited there; return whether the file changed."""
    place = Path(path)
    before = _text_of(place)
    if is_features(place):
        features, whole = ([], None) if before is None else _features(before, place)
        doc = yield from progress._change(lambda doc: _absorb(doc, features, place.name))
        after = _json_of(doc, features, whole)
    else:
        doc = yield from _merged(progress, place, before)
        after = doc.text
    if after != before:
        _replace(place, after)
    if commit:
        yield from git.commit_change(place, progress.name, progress.history)
    if not is_features(place):
        yield from _remember(progress, place, after)
    return after != before


def name_in(path: str | os.PathLike[str]) -> str:
    """Return the name of the document in a file: its title, or the name of a feature list's file."""
    place = Path(path)
    text = _text_of(place)
    if text is None:
        raise NotFound(f"There is no file {place}. Check the path.")
    title = place.stem if is_features(place) else Markdown(text).title
    if title is None:
        raise InvalidInput(f"{place} has no title, such as `# Progress: book-flight`. Pass name=, or add a title.")
    return title


def is_features(path: Path) -> bool:
    """Return whether a path is that of a feature list."""
    return path.suffix.lower() == ".json"


# -- Markdown ----------------------------------------------------------------------------------------------------------


def _merged(progress: Progress, place: Path, text: str | None) -> Work[Markdown]:
    """Bring the edits of a file into the document; return it."""
    record = progress._context.kernel.read([_key(progress, place)])[0]
    base = None if record is None else str(codec.decode(record.value))

    def merged(doc: Markdown) -> list[Entry]:
        if text is None or text in (doc.text, base):
            return [Entry("started")] if text is None else []
        stored = progress._current()[0].text
        new = text if stored is None else _three_way(base, doc.text, text, place)
        if new == doc.text:
            return []
        doc.replace(new)
        return [Entry("edited", place.name)]

    return (yield from progress._change(merged))


def _three_way(base: str | None, stored: str, text: str, place: Path) -> str:
    if base is None:
        raise Conflict(
            f"{place} and the stored progress document differ and have no common version; nothing was written. "
            "Read the file under another name, or move it away and write the document again."
        )
    styles = {_ending(one) for one in (base, stored, text)}
    if len(styles) > 1 and None not in styles:  # the file's line endings were converted as a whole
        base, stored = (_converted(one, _ending(text)) for one in (base, stored))
    try:
        return "".join(merge(*(_lines(one) for one in (base, stored, text))))
    except Overlap as overlap:
        raise Conflict(
            f"Lines {overlap.first} to {overlap.last} of {place} were changed both in the file and in the store; nothing "
            "was written. Save your lines elsewhere, restore the file's earlier version, and enter them again."
        ) from overlap


def _lines(text: str) -> list[str]:
    """Return the lines with their endings; a last line without one gets it."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return lines if not last else [*lines, last + (_ending(text) or "\n")]


def _ending(text: str) -> str | None:
    """Return the line ending of a text; None if it has both."""
    windows = text.count("\r\n")
    return "\n" if not windows else "\r\n" if windows == text.count("\n") else None


def _converted(text: str, ending: str | None) -> str:
    plain = text.replace("\r\n", "\n")
    return plain if ending == "\n" else plain.replace("\n", "\r\n")


def _remember(progress: Progress, place: Path, text: str) -> Work[None]:
    """Record the text of a file, the base of the next merge."""
    key, value = _key(progress, place), codec.encode(text)
    record = progress._context.kernel.read([key])[0]
    if record is None or record.value != value:
        yield from commit_once(progress._context.kernel, [], [Put(key, value)])


def _key(progress: Progress, place: Path) -> bytes:
    named = f"{socket.gethostname()}\0{place.absolute()}".encode(errors="surrogateescape")
    return progress._stream + keys.pack("file", hashlib.blake2b(named, digest_size=16).digest())


def _text_of(place: Path) -> str | None:
    """Return the text of a file with its line endings; None if there is no file."""
    try:
        return place.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{place} is not UTF-8 text: {error}. Convert it, then read it again.") from error


def _replace(place: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, finds the old text or the new one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    whole = place.resolve()  # replace what a symbolic link points to, not the link
    fresh = whole.with_name(f".{whole.name}.{os.getpid()}.new")
    try:
        with fresh.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if whole.exists():
            fresh.chmod(whole.stat().st_mode)
        fresh.replace(whole)
    finally:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()


# -- feature lists -----------------------------------------------------------------------------------------------------


def _features(text: str, place: Path) -> tuple[list[dict[str, Any]], Any]:
    """Return the features of a list, and the whole JSON value that holds them."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{place} is not JSON: {error}. Correct the file, then read it again.") from error
    found = whole.get("features") if isinstance(whole, dict) else whole
    if not isinstance(found, list):
        raise InvalidInput(f"{place} must hold a list of features, or an object with the list `features`.")
    for at, one in enumerate(found):
        if not isinstance(one, dict) or not isinstance(one.get("description"), str) or not one["description"].strip():
            raise InvalidInput(f"{place}: [{at}].description must be a text. Correct the file, then read it again.")
        if not isinstance(one.get("passes", False), bool):
            raise InvalidInput(f"{place}: [{at}].passes must be true or false. Correct the file, then read it again.")
    return found, whole


def _absorb(doc: Markdown, features: list[dict[str, Any]], file: str) -> list[Entry]:
    """Add the features that are no items yet, and mark the items that pass."""
    entries: list[Entry] = []
    for one in features:
        item = doc.find(one["description"])
        if item is None:
            steps = one.get("steps")
            test = "; ".join(map(str, steps)) if isinstance(steps, list) and steps else None
            item = doc.add(one["description"], test)
            entries.append(Entry("added", item.text, test))
        if one.get("passes") and not item.done:
            doc.tick(item, f"passes in {file}")
            entries.append(Entry("completed", item.text, f"passes in {file}"))
    return entries or [Entry("started")]


def _json_of(doc: Markdown, features: list[dict[str, Any]], whole: Any) -> str:
    """Return the feature list with the state of the items; other fields and the order stay."""
    listed = {markdown.one_line(one["description"]).casefold() for one in features}
    for one in features:
        item = doc.find(one["description"])
        one["passes"] = item is not None and item.done
    features += [
        {"description": item.text, "steps": [item.test] if item.test else [], "passes": item.done}
        for item in doc.items()
        if markdown.one_line(item.text).casefold() not in listed
    ]
    return json.dumps(features if whole is None else whole, ensure_ascii=False, indent=2) + "\n"

"""Progress documents in files: Markdown, and feature lists in JSON.

Writing takes in what was edited in the file, by a three-way merge with the text that the file had before.

Keys, below the tenant: `(name, "progress", "file", digest)` is the text that a file of this machine, named by a digest of
its path, had when it was last equal to the document; with `"next"` at the end, the text that is being written to it;
`(name, "file", "token")` and `(name, "file", "beat")` are the lease of the process that reads or writes files of the document.
Without it an older text could replace a newer one, and would look like an edit.

Order of writes: the merged document, the text to come, the file (replaced atomically), the git commit, then the text of
the file, which deletes the text to come. After a crash between any two of them the file has either text, so the next call
knows what was edited since.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenuto.capabilities._core.base import commit as committed
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.sessions import git, markdown
from tenuto.capabilities.sessions.markdown import Entry, Markdown, NewItem
from tenuto.capabilities.sessions.three_way import Overlap, merge
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Delete, Put, Write
from tenuto.kernel.work import Work, work_of

if TYPE_CHECKING:
    from tenuto.capabilities.sessions.progress import Progress


T = TypeVar("T")
_PATIENCE: Final = 60.0
"""Seconds to wait for another process that writes a file of the same document."""


def read_file(progress: Progress, path: str | os.PathLike[str]) -> Work[None]:
    """Take in what was edited in a file."""
    yield from _alone(progress, lambda held: _read(progress, Path(path), held))


def _read(progress: Progress, place: Path, held: Lease) -> Work[None]:
    text = _text_of(place)
    if text is None:
        raise NotFound(f"There is no file {place}. Write the document first with p.write({str(place)!r}).")
    if is_features(place):
        yield from progress._change(lambda doc: _absorb(doc, _features(text, place)[0], place.name))
        return
    yield from _merged(progress, place, text)
    yield from _remember(progress, place, text, held)


def write_file(progress: Progress, path: str | os.PathLike[str], *, commit: bool) -> Work[bool]:
    """Write the document to a file, with what was edited there; return whether the file changed."""
    changed: bool = yield from _alone(progress, lambda held: _written(progress, Path(path), held, commit=commit))
    return changed


def _written(progress: Progress, place: Path, held: Lease, *, commit: bool) -> Work[bool]:
    while True:
        before = _text_of(place)
        after = yield from _taken_in(progress, place, before)
        if after == before:
            break
        _ = held.check  # raises if the lease was lost
        if not is_features(place):
            yield from _put(progress, place, held, [Put(_next(progress, place), codec.encode(after))])
        if _text_of(place) == before and not held.lost:
            _replace(place, after)
            break
        if not is_features(place):  # it was edited meanwhile: look again
            yield from _put(progress, place, held, [Delete(_next(progress, place))])
    if commit:
        yield from git.commit_change(place, progress.name, progress.history)
    if not is_features(place):
        yield from _remember(progress, place, after, held)
    return after != before


def _taken_in(progress: Progress, place: Path, before: str | None) -> Work[str]:
    """Take in what was edited in a file; return its new text."""
    if not is_features(place):
        return (yield from _merged(progress, place, before)).text
    features, whole = ([], None) if before is None else _features(before, place)
    doc = yield from progress._change(lambda doc: _absorb(doc, features, place.name))
    return _json_of(doc, features, whole)


def _alone(progress: Progress, work: Callable[[Lease], Work[T]]) -> Work[T]:
    """Do something with the files of a document while no other process does."""
    lease = Lease(progress._context, progress._renewer, progress.name, kind="file", ttl=10, wait=_PATIENCE)
    yield from work_of(lease.acquire)()
    try:
        return (yield from work(lease))
    finally:
        yield from work_of(lease.release)()


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
    base = None if text is None else _base(progress, place, text)

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


def _base(progress: Progress, place: Path, text: str) -> str | None:
    """Return the text that a file had before it was edited.

    After a crash while it was written, that is one of two: the one which the file's text is closer to.
    """
    next_one, last = progress._context.kernel.read([_next(progress, place), _key(progress, place)])
    texts = [str(codec.decode(one.value)) for one in (next_one, last) if one is not None]
    if next_one is None or text in texts:
        return text if text in texts else texts[0] if texts else None
    closeness = {one: SequenceMatcher(None, _lines(one), _lines(text), autojunk=False).ratio() for one in texts}
    closest = max(texts, key=lambda one: closeness[one])
    return closest if last is not None or closeness[closest] > 0.5 else None


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


def _remember(progress: Progress, place: Path, text: str, held: Lease) -> Work[None]:
    """Record the text of a file, the base of the next merge."""
    key, value = _key(progress, place), codec.encode(text)
    record, begun = progress._context.kernel.read([key, _next(progress, place)])
    writes: list[Write] = [] if begun is None else [Delete(begun.key)]
    if record is None or record.value != value:
        writes.append(Put(key, value))
    if writes:
        yield from _put(progress, place, held, writes)


def _key(progress: Progress, place: Path) -> bytes:
    named = f"{socket.gethostname()}\0{place.absolute()}".encode(errors="surrogateescape")
    return progress._stream + keys.pack("file", hashlib.blake2b(named, digest_size=16).digest())


def _put(progress: Progress, place: Path, held: Lease, writes: Sequence[Write]) -> Work[None]:
    yield from committed(progress._context, [], writes, held, str(place))


def _next(progress: Progress, place: Path) -> bytes:
    return _key(progress, place) + keys.pack("next")


def _text_of(place: Path) -> str | None:
    """Return the text of a file with its line endings; None if there is no file."""
    try:
        return place.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"{place} cannot be read: {error.strerror}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{place} is not UTF-8 text: {error}. Convert it, then read it again.") from error


def _replace(place: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, finds the old text or the new one."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{place.parent} cannot be made: {error.strerror}; the document is stored.") from error
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
    except OSError as error:
        raise InvalidInput(
            f"{place} cannot be written: {error.strerror}; the document is stored. Correct this and repeat the call."
        ) from error
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
    proof, known = f"passes in {file}", doc.index()
    new: dict[str, NewItem] = {}
    done: dict[int, str] = {}
    for one in features:
        text, key = markdown.one_line(one["description"]), markdown.key_of(one["description"])
        item = known.get(key)
        if item is None and key not in new:
            steps = one.get("steps")
            test = "; ".join(map(str, steps)) if isinstance(steps, list) and steps else None
            new[key] = NewItem(text, test)
            entries.append(Entry("added", text, test))
        if not one.get("passes"):
            continue
        if item is not None and not item.done and item.number not in done:
            done[item.number] = proof
            entries.append(Entry("completed", item.text, proof))
        elif item is None and not new[key].done:
            new[key] = new[key]._replace(done=True, evidence=proof)
            entries.append(Entry("completed", text, proof))
    doc.tick_all(done)
    if new:
        doc.add_all([*new.values()])
    return entries or [Entry("started")]


def _json_of(doc: Markdown, features: list[dict[str, Any]], whole: Any) -> str:
    """Return the feature list with the state of the items; other fields and the order stay."""
    known = doc.index()
    listed = {markdown.key_of(one["description"]) for one in features}
    for one in features:
        item = known.get(markdown.key_of(one["description"]))
        one["passes"] = item is not None and item.done
    features += [
        {"description": item.text, "steps": [item.test] if item.test else [], "passes": item.done}
        for item in doc.items()
        if markdown.key_of(item.text) not in listed
    ]
    return json.dumps(features if whole is None else whole, ensure_ascii=False, indent=2) + "\n"

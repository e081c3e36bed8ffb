"""The form of the storage verbs on the wire, shared by the client and the server.

Each call is one POST to `/kernel/1/VERB` with a MessagePack body. A reply is `[time, result]`, with the store's time; an
error is a map with its type, its message and what belongs to its type. Only types of a closed list are rebuilt.
Keys on the wire have no tenant: the server adds the tenant of the API key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import ormsgpack

from tenuto import errors
from tenuto.backends.remote.bounded import must_be_bounded
from tenuto.errors import Conflict, InvalidInput, StorageUnavailable, TenutoError
from tenuto.kernel.contract import AnyCheck, Append, Check, CheckEnd, Commit, Delete, Entry, Forget, Put, Record, Write

PROTOCOL: Final = 1
MEDIA: Final = "application/vnd.tenuto+msgpack"
HELLO: Final = "/kernel"
VERBS: Final = ("read", "scan", "entries", "commit", "streams", "load", "trim", "watch", "check", "stats")
_WRITES: Final[tuple[type, ...]] = (Put, Delete, Append, Forget)
_CHECKS: Final[tuple[type, ...]] = (Check, CheckEnd)
_ERRORS: Final[dict[str, type[TenutoError]]] = {
    one.__name__: one
    for one in (
        errors.AccessDenied,
        errors.Closed,
        errors.Conflict,
        errors.Damaged,
        errors.InvalidInput,
        errors.NewerFormat,
        errors.NotFound,
        errors.ReadOnly,
        errors.RequestExpired,
        errors.RequestReused,
        errors.StorageFull,
        errors.StorageUnavailable,
        errors.TooLarge,
    )
}


def path_of(verb: str) -> str:
    """Return the path of a verb."""
    return f"{HELLO}/{PROTOCOL}/{verb}"


def packed(value: Any) -> bytes:
    """Encode a body."""
    return ormsgpack.packb(value)


def unpacked(body: bytes) -> Any:
    """Decode a body; `InvalidInput` if it is not MessagePack."""
    try:
        return ormsgpack.unpackb(body, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError:
        raise InvalidInput("The body is not MessagePack. Nothing was done; send the form of this protocol.") from None


# -- commits -----------------------------------------------------------------------------------------


def commit_body(checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None, cut: int) -> bytes:
    """Encode a commit; `cut` is the length of the tenant, which every key loses."""
    return packed(
        [
            [(_CHECKS.index(type(one)), one[0][cut:], one[1]) for one in checks],
            [(_WRITES.index(type(one)), one[0][cut:], *one[1:]) for one in writes],
            request,
        ]
    )


def commit_of(body: bytes) -> tuple[list[AnyCheck], list[Write], bytes | None]:
    """Decode a commit; `InvalidInput` if it is malformed."""
    must_be_bounded(body)
    given = unpacked(body)
    if not (isinstance(given, list) and len(given) == 3 and isinstance(given[0], list) and isinstance(given[1], list)):
        raise _malformed("commit")
    checks = [cast("AnyCheck", _built(_CHECKS, one)) for one in given[0]]
    writes = [cast("Write", _built(_WRITES, one)) for one in given[1]]
    if given[2] is not None and not isinstance(given[2], bytes):
        raise _malformed("commit")
    return checks, writes, given[2]


_FIELDS: Final[dict[type, tuple[tuple[type, ...], ...]]] = {
    Check: ((bytes,), (int,)),
    CheckEnd: ((bytes,), (int,)),
    Put: ((bytes,), (bytes,), (int, float, type(None))),
    Delete: ((bytes,),),
    Append: ((bytes,), (bytes,)),
    Forget: ((bytes,), (int,), (int,)),
}


def _built(kinds: tuple[type, ...], given: Any) -> Any:
    """Return a check or a write, if every part has its type; a bool is no number here."""
    if isinstance(given, list) and given and type(given[0]) is int and 0 <= given[0] < len(kinds):
        kind = kinds[given[0]]
        fields = _FIELDS[kind]
        if len(given) == 1 + len(fields) and all(map(_is_one_of, given[1:], fields)):
            return kind(*given[1:])
    raise _malformed("commit")


def _is_one_of(part: Any, kinds: tuple[type, ...]) -> bool:
    return type(part) in kinds


def outcome_of(result: Any) -> Commit:
    """Decode the outcome of a commit."""
    versions, at, repeated = result
    return Commit(tuple(versions), at, repeated)


# -- reads -------------------------------------------------------------------------------------------


def arguments_of(body: bytes, *kinds: tuple[type, ...]) -> list[Any]:
    """Decode the arguments of a verb, each of one of its types; `InvalidInput` otherwise."""
    must_be_bounded(body)
    given = unpacked(body)
    if isinstance(given, list) and len(given) == len(kinds) and all(map(_is_one_of, given, kinds)):
        return given
    raise _malformed("call")


def keys_of(given: Sequence[Any]) -> list[bytes]:
    """Return a list of keys; `InvalidInput` if one is not bytes."""
    if any(type(key) is not bytes for key in given):
        raise _malformed("call")
    return list(given)


def record_of(raw: Sequence[Any], tenant: bytes) -> Record:
    """Decode a record, with its tenant in front of its key."""
    return Record(tenant + raw[0], *raw[1:])


def entry_of(raw: Sequence[Any]) -> Entry:
    """Decode an entry."""
    number, value, at, digest, previous, versions, forgotten = raw
    return Entry(number, value, at, digest, previous, tuple(versions), forgotten)


def load_body(records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]], cut: int) -> bytes:
    """Encode the rows of a load; `cut` is the length of the tenant, which every key loses."""
    return packed(
        [
            [(one.key[cut:], *one[1:]) for one in records],
            [
                (stream[cut:], [(*one[:5], list(one.versions), one.forgotten) for one in given])
                for stream, given in entries.items()
            ],
        ]
    )


def load_of(body: bytes) -> tuple[list[Record], dict[bytes, list[Entry]]]:
    """Decode the rows of a load; `InvalidInput` if it is malformed."""
    rows, streams = arguments_of(body, (list,), (list,))
    records = [Record(*_typed(one, _RECORD)) for one in rows]
    if not all(_is_pair(one) for one in streams):
        raise _malformed("call")
    found = {stream: [_entry_in(one) for one in given] for stream, given in streams}
    return records, found


def _entry_in(raw: Any) -> Entry:
    number, value, at, own, previous, versions, forgotten = _typed(raw, _ENTRY)
    if any(type(version) is not int for version in versions):
        raise _malformed("call")
    return Entry(number, value, float(at), own, previous, tuple(versions), forgotten)


def _is_pair(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and type(one[0]) is bytes and type(one[1]) is list


def _typed(given: Any, kinds: Sequence[tuple[type, ...]]) -> list[Any]:
    if isinstance(given, list) and len(given) == len(kinds) and all(map(_is_one_of, given, kinds)):
        return given
    raise _malformed("call")


_RECORD: Final[tuple[tuple[type, ...], ...]] = ((bytes,), (bytes,), (int,), (int, float), (int, float, type(None)))
_ENTRY: Final[tuple[tuple[type, ...], ...]] = ((int,), (bytes,), (int, float), (bytes,), (bytes,), (list,), (bool,))


def _malformed(what: str) -> InvalidInput:
    return InvalidInput(f"The {what} is malformed. Nothing was done; use the client of this version.")


# -- errors ------------------------------------------------------------------------------------------


def error_body(error: TenutoError) -> bytes:
    """Encode an error with its message and what belongs to its type."""
    kind = next(one.__name__ for one in type(error).__mro__ if one.__name__ in _ERRORS or one is TenutoError)
    fields: dict[str, Any] = {"type": kind, "message": str(error)}
    if isinstance(error, Conflict):
        fields["keys"] = list(error.keys)
    if isinstance(error, StorageUnavailable):
        fields["outcome"] = error.outcome
    return packed(fields)


def error_of(body: bytes, *, tenant: bytes, request: bytes | None) -> TenutoError | None:
    """Rebuild an error of the server; None if the body is not one."""
    try:
        fields = unpacked(body)
        kind, message = _ERRORS.get(fields["type"], TenutoError), str(fields["message"])
    except (InvalidInput, KeyError, TypeError):
        return None
    if kind is Conflict:
        return Conflict(message, [tenant + key for key in fields.get("keys", ())])
    if issubclass(kind, StorageUnavailable):
        lost = fields.get("outcome") == "unknown"
        return kind(message, outcome="unknown" if lost else "not applied", request=request)
    return kind(message)

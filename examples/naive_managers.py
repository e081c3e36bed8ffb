"""Three state managers that many agents begin with, and that `tenuto audit` must catch.

    cd examples
    tenuto audit --target naive_managers:memory_dict
    NAIVE_FOLDER=$(mktemp -d) tenuto audit --target naive_managers:json_files      # a torn file stays torn
    REDIS_URL=redis://… tenuto audit --target naive_managers:redis_dict

Each passes its unit tests. Each loses state in production, in its own way.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def memory_dict() -> dict[str, Any]:
    """A dict: fast, and gone with its process."""
    return {}


class JsonFiles:
    """Three JSON files: read the whole file, change it, write the whole file."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _file(self, key: str) -> Path:
        kind = "users" if "user" in key or "preferences" in key else "work" if "work" in key else "conversations"
        return self.folder / f"{kind}.json"

    def _load(self, key: str) -> Any:
        file = self._file(key)
        return json.loads(file.read_text()) if file.exists() else {}

    def get(self, key: str) -> Any:
        return self._load(key).get(key)

    def set(self, key: str, value: Any) -> None:
        everything = self._load(key)
        everything[key] = value
        with self._file(key).open("w") as file:
            json.dump(everything, file)

    def size(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.json"))

    def outage(self) -> "JsonFiles":
        """The same with its folder gone: a missing file is taken for an empty one."""
        return JsonFiles(self.folder / "gone")


def json_files() -> JsonFiles:
    """Three JSON files in $NAIVE_FOLDER."""
    return JsonFiles(os.environ.get("NAIVE_FOLDER") or Path(tempfile.gettempdir()) / "naive-managers")


class RedisDict:
    """One JSON document for each key in Redis: GET, change, SET."""

    def __init__(self, url: str) -> None:
        import redis

        self.url = url
        self.client = redis.Redis.from_url(url)

    def get(self, key: str) -> Any:
        found = self.client.get(f"naive:{key}")
        return None if found is None else json.loads(found)

    def set(self, key: str, value: Any) -> None:
        self.client.set(f"naive:{key}", json.dumps(value))

    def delete(self, key: str) -> None:
        self.client.delete(f"naive:{key}")

    def close(self) -> None:
        self.client.close()


def redis_dict() -> RedisDict:
    """A dict in the Redis of $REDIS_URL."""
    return RedisDict(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"))

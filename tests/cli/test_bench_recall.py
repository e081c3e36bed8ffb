"""`tenuto bench recall` on a conversation that is made here."""

import json
from pathlib import Path

import jsonschema
from click.testing import CliRunner

from tenuto.cli import group
from tenuto.cli.schema import printed
from tenuto.operations.jsonable import schema

TURNS = [
    ("D1:1", "Ann", "I adopted a dog called Rex"),
    ("D1:2", "Bea", "What does he eat?"),
    ("D1:3", "Ann", "Rice and carrots"),
    ("D1:4", "Bea", "I am learning the cello"),
]
DATA = [
    {
        "sessions": [
            {"date": "2023-05-08", "turns": [{"id": at, "speaker": who, "text": text} for at, who, text in TURNS]}
        ],
        "questions": [
            {"q": "What does Ann's dog eat?", "evidence": ["D1:3"], "category": 4},
            {"q": "Which instrument does Bea learn?", "evidence": ["D1:4"], "category": 1},
            {"q": "nothing is right", "evidence": [], "category": 5},
        ],
    }
]


def run(path: Path, *more: str) -> object:
    return CliRunner().invoke(group, ["bench", "recall", "--data", str(path), "--embedder", "words", *more])


def test_the_right_messages_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(DATA))
    done = run(path, "--json")
    rows = json.loads(done.stdout)  # type: ignore
    jsonschema.validate(rows, schema(printed()["bench recall"]))
    found = {(row["embedder"], row["category"]): row for row in rows}
    assert found["words", "all"]["questions"] == 2
    assert found["words", "single-hop"]["r_10"] == 100.0
    assert found["words", "single-hop"]["mrr"] > found["BM25 alone", "single-hop"]["mrr"]


def test_a_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    for content in ("[1]", "{", '[{"sessions": [], "questions": []}]'):
        path.write_text(content)
        done = run(path)
        assert done.exit_code == 2, content  # type: ignore
        assert "no list of conversations" in done.stderr  # type: ignore

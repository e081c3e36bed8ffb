"""Makes the helpers of this folder importable, and gives every test a path for its store."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"

"""Makes the helpers of this folder importable, and gives every test a folder in memory for its files."""

import sys
from pathlib import Path

from support.memory import tmp_path

__all__ = ["tmp_path"]
sys.path.insert(0, str(Path(__file__).parent))

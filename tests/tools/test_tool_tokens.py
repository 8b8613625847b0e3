"""Characters that a model reads for a task, with code and with plain calls."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "tokens.py"


@pytest.mark.req("tools.find")
def test_a_model_that_writes_code_reads_a_twentieth() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "long"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert re.search(r"long rows: .* [\d.]+ times fewer, ≥ 20 met", done.stdout), done.stdout

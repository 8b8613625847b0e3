"""Files of the checkout beside the tests: pages, examples and tools."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def beside(name: str) -> Path:
    """Return a file of the checkout. Skip the test on a machine that has the code and the tests only."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not beside the tests")
    return path

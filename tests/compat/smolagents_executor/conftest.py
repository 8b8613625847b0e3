"""The executor is part of ingle, so these tests import it from the sources beside the client's packages."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))

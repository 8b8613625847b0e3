"""Renew every generated page: `python tools/reference`."""

import sys
from pathlib import Path

# Python puts the folder of this file first, where `http.py` would hide the standard library's module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from reference.pages import DOCS, renewed_pages

for name, text in renewed_pages().items():
    page = DOCS / name
    if page.read_text("utf-8") != text:
        page.write_text(text, "utf-8")
        print(f"renewed docs/{name}")

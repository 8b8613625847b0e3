"""A page of HTML with the one style of this server. It loads nothing, runs no script, and cannot be framed."""

import base64
import hashlib
from html import escape

from starlette.responses import HTMLResponse

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; font-weight: 600 }
code, h2 { font-family: ui-monospace, monospace } h2 { font-size: 1rem; margin: 2rem 0 .25rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .15rem .75rem .15rem 0 }
td { border-top: 1px solid #8884; vertical-align: top }
form { margin: 1.5rem 0 } input, button { font: inherit; padding: .35rem .6rem } input { width: min(28rem, 100%) }
label { display: block; margin-bottom: .25rem } .wrong { color: #c33 }
"""

_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    # With `no-referrer` a browser would send the form with the Origin `null`.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}


def make_page(title: str, body: str, status: int = 200, head: str = "") -> HTMLResponse:
    """Return a page. `body` and `head` are HTML; the title is text."""
    text = (
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"{head}<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>{body}"
    )
    return HTMLResponse(text, status, HEADERS)

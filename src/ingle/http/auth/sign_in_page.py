"""The page with the form to sign in, shown to a browser that has no valid cookie."""

from html import escape

from starlette.responses import Response
from starlette.types import Scope

from ingle.http.page import make_page

SIGN_IN, SIGN_OUT = "/v1/signin", "/v1/signout"


def wants_page(scope: Scope) -> bool:
    """Return whether a person opened this address in a browser."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


def sign_in_page(target: str, wrong: bool = False) -> Response:
    """Return the form. It leads to the path `target`."""
    told = (
        "<p class=wrong role=alert>This token is not valid here. Check that all of it was copied.</p>" if wrong else ""
    )
    return make_page(
        "Sign in to ingle",
        f"{told}<form method=post action={SIGN_IN}>"
        f'<input type=hidden name=next value="{escape(target, quote=True)}">'
        "<label for=token>Token</label>"
        "<input id=token name=token type=password autocomplete=current-password required autofocus> "
        "<button>Sign in</button></form>"
        "<p>The server said at its start where its token is: in the file <code>token</code> of its data folder "
        "(<code>ingle config</code> names the folder), or in <code>INGLE_TOKEN</code>. "
        "Others get a token with <code>ingle token new</code>.</p>",
        401,
    )

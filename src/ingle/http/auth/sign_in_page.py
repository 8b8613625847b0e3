"""Pages for a browser that has no valid cookie: the form to sign in, and what became of a link."""

from html import escape

from starlette.responses import Response
from starlette.types import Scope

from ingle.http.page import make_page

SIGN_IN, SIGN_OUT = "/v1/signin", "/v1/signout"

SIGN_IN_LINK = "/signin"
"""Path that takes a one-time code: `/signin?code=…`."""

WRONG_TOKEN = "This token is not valid here. Check that all of it was copied."
WRONG_CODE = "This link was used already or has expired. `ingle open` makes another, or use a token."


def wants_page(scope: Scope) -> bool:
    """Return whether a person opened this address in a browser."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


def sign_in_page(target: str, wrong: str = "") -> Response:
    """Return the form, which leads to the path `target`. `wrong` says why the last attempt failed."""
    told = f"<p class=wrong role=alert>{escape(wrong)}</p>" if wrong else ""
    return make_page(
        "Sign in to ingle",
        f"{told}<form method=post action={SIGN_IN}>"
        f'<input type=hidden name=next value="{escape(target, quote=True)}">'
        "<label for=token>Token</label>"
        "<input id=token name=token type=password autocomplete=current-password required autofocus> "
        "<button>Sign in</button></form>"
        "<p>On the machine of the server, <code>ingle open</code> signs you in without a token. "
        "The server said at its start where its token is: in the file <code>token</code> of its data folder "
        "(<code>ingle config</code> names the folder), or in <code>INGLE_TOKEN</code>. "
        "Others get a token with <code>ingle token new</code>.</p>",
        401,
    )


def signed_in_page(target: str) -> Response:
    """Return a page that leads on to the path `target` at once.

    A redirect would not do: after a link from another site, a browser sends no strict cookie along with it.
    """
    link = escape(target, quote=True)
    head = f'<meta http-equiv=refresh content="0;url={link}">'
    return make_page("Signed in", f'<p>You are signed in. <a href="{link}">Go on</a></p>', head=head)


def ended_link_page() -> Response:
    return make_page(
        "This link has ended",
        "<p>It has expired, it was revoked, or the session it showed has ended. Ask for another one.</p>",
        404,
    )

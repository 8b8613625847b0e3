"""Routes of browsers: the first page, and signing in and out."""

from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ingle import errors
from ingle.http.auth.principals import Principals
from ingle.http.auth.sign_in_page import SIGN_IN, SIGN_OUT, sign_in_page
from ingle.http.auth.sign_ins import BrowserRequest, SignIns, set_cookie
from ingle.http.page import home_page
from ingle.http.routes.bodies import NoQuery
from ingle.http.routes.table import Call, Media, Operation

MAX_BODY = 16 * 1024
"""Bytes of a form, of which a token is the longest part."""

FORM = "application/x-www-form-urlencoded"


class Token(msgspec.Struct, forbid_unknown_fields=True):
    token: str
    """The server's token, or one made with `ingle token new`."""


class SignIn:
    """Cookies for tokens. Signing in needs no token in the header; the guard lets only callers sign out."""

    def __init__(self, principals: Principals | None, sign_ins: SignIns) -> None:
        """Without principals, as on the local socket, nobody needs to sign in."""
        self._principals = principals
        self._sign_ins = sign_ins

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/", "A page with links, for browsers.", self.home, answers={200: Media("text/html")}),
            Operation(
                "POST",
                SIGN_IN,
                "Exchange a token for a cookie: `token` as a form, or as JSON.",
                self.sign_in,
                body=Media(FORM),
                answers={204: None, 303: None, 401: Media("text/html")},
            ),
            Operation("POST", SIGN_OUT, "Forget the cookie.", self.sign_out, answers={204: None, 303: None}),
        ]

    async def home(self, call: Call[None, NoQuery]) -> Response:
        return home_page(call.service.caller.name, bool(BrowserRequest(call.request.scope).cookies))

    async def sign_in(self, call: Call[None, NoQuery]) -> Response:
        request = call.request
        browser = BrowserRequest(request.scope)
        if browser.from_other_page:
            raise errors.Forbidden("a page of another origin cannot sign in here; open this server's own page")
        is_form = request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM
        token, target = await _read(request, is_form)
        principal = None
        if self._principals is not None:
            given = token.encode("utf-8", "surrogateescape")
            principal = self._principals.anybody or await self._principals.find(given)
        if principal is None:
            if is_form:
                return sign_in_page(target, wrong=True)
            raise errors.Unauthorized("this token is not valid here; the server said at its start where its token is")
        response = RedirectResponse(target, 303) if is_form else Response(status_code=204)
        response.headers["set-cookie"] = set_cookie(browser.host, self._sign_ins.add(principal), browser.secure)
        response.headers["cache-control"] = "no-store"
        return response

    async def sign_out(self, call: Call[None, NoQuery]) -> Response:
        browser = BrowserRequest(call.request.scope)
        self._sign_ins.remove(browser.cookies)
        is_form = "content-type" in call.request.headers
        response = RedirectResponse("/", 303) if is_form else Response(status_code=204)
        response.headers["set-cookie"] = set_cookie(browser.host, "", browser.secure)
        return response


async def _read(request: Request, is_form: bool) -> tuple[str, str]:
    """Return the token, and the path to go to."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise errors.TooLarge(f"the body is above the limit of {MAX_BODY} bytes; send the token alone")
    if not is_form:
        try:
            return msgspec.json.decode(data, type=Token).token.strip(), "/"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.InvalidRequest(f'the body must be {{"token": "…"}}: {error}') from None
    fields = parse_qs(data.decode("utf-8", "surrogateescape"))
    return fields.get("token", [""])[0].strip(), own_path(fields.get("next", ["/"])[0])


def own_path(target: str) -> str:
    """Return the path if it leads to this server, or else `/`."""
    is_own = target.startswith("/") and not target.startswith("//") and "\\" not in target
    return target if is_own and target.isascii() and target.isprintable() else "/"

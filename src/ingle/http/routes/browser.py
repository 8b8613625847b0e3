"""Routes by which browsers sign in and out: with a token, or with a one-time code."""

from urllib.parse import parse_qs, quote

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ingle import errors
from ingle.http.auth import codes
from ingle.http.auth.credentials import Credentials
from ingle.http.auth.sign_in_page import (
    SIGN_IN,
    SIGN_IN_LINK,
    SIGN_OUT,
    WRONG_CODE,
    WRONG_TOKEN,
    sign_in_page,
    signed_in_page,
)
from ingle.http.auth.sign_ins import BrowserRequest, set_cookie
from ingle.http.routes.bodies import NoBody, NoQuery
from ingle.http.routes.table import Call, Media, Operation, answer
from ingle.http.translations import PRINCIPAL

MAX_BODY = 16 * 1024
"""Bytes of a form, of which a token is the longest part."""

FORM = "application/x-www-form-urlencoded"


class Token(msgspec.Struct, forbid_unknown_fields=True):
    token: str
    """The server's token, or one made with `ingle token new`."""


class CodeQuery(msgspec.Struct, forbid_unknown_fields=True):
    code: str = ""
    """The one-time code."""
    session: str = ""
    """Session to go to. Default: the list of all sessions."""


class Code(msgspec.Struct, frozen=True):
    """A one-time code that signs a browser in."""

    path: str
    """Path to open in a browser, with the code."""
    expires_in: int
    """Seconds until the code is worthless."""


class SignIn:
    """Cookies for tokens and codes. Signing in needs no token in the header; the guard lets only callers sign out."""

    def __init__(self, credentials: Credentials | None) -> None:
        """Without credentials, as on the socket of `ingle mcp`, there is nothing to sign in to."""
        self._credentials = credentials

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                SIGN_IN,
                "Exchange a token for a cookie: `token` as a form, or as JSON.",
                self.sign_in,
                body=Media(FORM),
                answers={204: None, 303: None, 401: Media("text/html")},
            ),
            Operation("POST", SIGN_OUT, "Forget the cookie.", self.sign_out, answers={204: None, 303: None}),
            Operation(
                "POST",
                SIGN_IN + "/codes",
                "Make a one-time code with which a browser signs in as the caller.",
                self.make_code,
                body=NoBody,
                answers={201: Code},
            ),
            Operation(
                "GET",
                SIGN_IN_LINK,
                "Exchange a one-time code for a cookie; opened by a person.",
                self.take_code,
                query=CodeQuery,
                answers={200: Media("text/html"), 401: Media("text/html")},
            ),
        ]

    async def sign_in(self, call: Call[None, NoQuery]) -> Response:
        request = call.request
        browser = BrowserRequest(request.scope)
        if browser.from_other_page:
            raise errors.Forbidden("a page of another origin cannot sign in here; open this server's own page")
        is_form = request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM
        token, target = await _read(request, is_form)
        principal = None
        if self._credentials is not None:
            given = token.encode("utf-8", "surrogateescape")
            principals = self._credentials.principals
            principal = principals.anybody or await principals.find(given)
        if self._credentials is None or principal is None:
            if is_form:
                return sign_in_page(target, WRONG_TOKEN)
            raise errors.Unauthorized("this token is not valid here; the server said at its start where its token is")
        response = RedirectResponse(target, 303) if is_form else Response(status_code=204)
        value = self._credentials.sign_ins.add(principal)
        response.headers["set-cookie"] = set_cookie(browser.host, value, browser.secure)
        response.headers["cache-control"] = "no-store"
        return response

    async def make_code(self, call: Call[NoBody, NoQuery]) -> Response:
        principal = call.request.scope.get(PRINCIPAL)
        if self._credentials is None or principal is None:
            raise errors.NotFound("this server has no pages; start `ingle serve` for them")
        code = self._credentials.codes.make(principal)
        return answer(Code(f"{SIGN_IN_LINK}?code={code}", codes.LIFETIME_SECONDS), 201)

    async def take_code(self, call: Call[None, CodeQuery]) -> Response:
        browser = BrowserRequest(call.request.scope)
        # Another site must not sign a person in as somebody else. A browser opened by a program names no site.
        if self._credentials is None or browser.from_other_site or call.request.method != "GET":
            return sign_in_page("/", WRONG_CODE)
        principal = self._credentials.codes.take(call.query.code)
        if principal is None:
            return sign_in_page("/", WRONG_CODE)
        session = quote(call.query.session, safe="")
        response = signed_in_page(f"/sessions/{session}" if session else "/")
        value = self._credentials.sign_ins.add(principal)
        response.headers["set-cookie"] = set_cookie(browser.host, value, browser.secure)
        return response

    async def sign_out(self, call: Call[None, NoQuery]) -> Response:
        browser = BrowserRequest(call.request.scope)
        if self._credentials is not None:
            self._credentials.sign_ins.remove(browser.cookies)
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

"""Routes of the pages themselves: one document for every page, its files, and who looks at it.

The document has a strict policy: scripts and styles of this server alone, no other host, no frame around it, and no
text that becomes HTML (Trusted Types). HTML that cells output is shown by `frame.html`, whose policy gives it an origin
of its own.
"""

import asyncio
import secrets
from html import escape

from msgspec import Struct
from starlette.responses import HTMLResponse, Response

from ingle import __version__, errors
from ingle.http.auth.shares import BASE, SHARED
from ingle.http.auth.sign_ins import BrowserRequest
from ingle.http.console import assets
from ingle.http.routes.bodies import NoQuery
from ingle.http.routes.table import SESSION, Call, Media, Operation, answer

HTML = Media("text/html")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

FRAME = "frame.html"

FRAME_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; media-src data: blob:; frame-ancestors 'self'; base-uri 'none'"
)

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

FILE_HEADERS = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, max-age=31536000, immutable",
}


class Me(Struct, frozen=True):
    """The caller, and the server it talks to."""

    name: str
    tenant: str
    scopes: list[str]
    read_only: bool
    """Came by a read-only link."""
    session_id: str | None
    """The session that the link shows."""
    signs_out: bool
    """Has a cookie, which it can give up."""
    version: str
    isolation: str
    network: str


class Pages:
    def operations(self) -> list[Operation]:
        page = {200: HTML}
        return [
            Operation("GET", "/", "The console: all sessions. For browsers.", document, answers=page),
            Operation("GET", "/machine", "The console: the server. For browsers.", document, answers=page),
            Operation("GET", SESSION[3:], "The console: one session. For browsers.", document, answers=page),
            Operation("GET", SESSION[3:] + "/{view}", "The console: one view of it.", document, answers=page),
            Operation("GET", "/console/{version}/{path:path}", "A file of the console.", file, answers={200: HTML}),
            Operation("GET", "/v1/me", "Who calls, and which server answers.", me, answers={200: Me}),
        ]


async def document(call: Call[None, NoQuery]) -> Response:
    found = await asyncio.to_thread(assets.load)
    base = call.request.scope.get(BASE, "")
    files = f"{base}/console/{found.version}"
    nonce = secrets.token_urlsafe(16)
    early = "".join(f'<link rel=modulepreload href="{files}/{path}">' for path in found.first_modules)
    text = (
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f'<title>ingle</title><link rel=icon href="{files}/icon.svg"><link rel=stylesheet href="{files}/style.css">'
        f'<link rel=stylesheet href="{files}/views.css">'
        f"{early}"
        f'<body data-base="{escape(base)}" data-files="{files}"><div id=app><p class=empty>Loading…</p></div>'
        f'<noscript><p class=empty>The console needs JavaScript. <a href="/docs">The HTTP interface</a> does not.'
        f'</noscript><script type=module nonce="{nonce}" src="{files}/app/main.js"></script>'
    )
    return HTMLResponse(text, headers={**HEADERS, "content-security-policy": POLICY.format(nonce=nonce)})


async def file(call: Call[None, NoQuery]) -> Response:
    found = await asyncio.to_thread(assets.load)
    path = call.request.path_params["path"]
    asset = found.files.get(path)
    if asset is None or call.request.path_params["version"] != found.version:
        raise errors.NotFound("the console has no such file; load the page again")
    headers = dict(FILE_HEADERS)
    if path == FRAME:
        headers["content-security-policy"] = FRAME_POLICY
    return Response(asset.data, headers=headers, media_type=asset.media_type)


async def me(call: Call[None, NoQuery]) -> Response:
    caller, scope = call.service.caller, call.request.scope
    in_force = await call.service.isolation()
    return answer(
        Me(
            caller.name,
            caller.tenant,
            sorted(caller.scopes),
            BASE in scope,
            scope.get(SHARED),
            bool(BrowserRequest(scope).cookies) and BASE not in scope,
            __version__,
            in_force.level,
            in_force.network,
        )
    )

"""Routes of the page about the server: the checks of `ingle doctor`, and tokens for others. For the owner."""

import asyncio
import sys
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from starlette.responses import Response

from ingle import errors
from ingle.callers import Limits
from ingle.http.auth import tokens_file
from ingle.http.auth.credentials import Credentials
from ingle.http.routes.bodies import Name, NoBody, NoQuery
from ingle.http.routes.table import Call, Operation, answer

DOCTOR_SECONDS = 180.0
"""Time for all checks, each of which has its own limit."""


class Finding(Struct, frozen=True):
    """One finding of `ingle doctor`."""

    about: str
    state: str
    text: str


class Findings(Struct, frozen=True):
    healthy: bool
    findings: list[Finding]


class NewToken(Struct, forbid_unknown_fields=True):
    name: Name
    """Name of the token."""
    tenant: Name | None = None
    """Tenant whose sessions it sees. Default: the name of the token."""
    scope: Literal["read", "execute", "admin"] = "execute"
    """`read`: look; `execute`: also use sessions; `admin`: also see the server."""


class TokenInfo(Struct, frozen=True):
    """A token without its secret."""

    name: str
    tenant: str
    scope: str
    created_at: float
    limits: Limits


class MadeToken(Struct, frozen=True):
    token: str
    """The token itself. It is shown only once."""
    about: TokenInfo


class TokenList(Struct):
    tokens: list[TokenInfo]


class Administration:
    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials
        self._checking = asyncio.Lock()

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/v1/doctor",
                "Check the installation, as `ingle doctor` does. For the owner.",
                self.doctor,
                body=NoBody,
                answers={200: Findings},
            ),
            Operation("GET", "/v1/tokens", "Tokens for others. For the owner.", self.tokens, answers={200: TokenList}),
            Operation(
                "POST",
                "/v1/tokens",
                "Make a token. For the owner.",
                self.add_token,
                body=NewToken,
                answers={201: MadeToken},
            ),
            Operation(
                "DELETE", "/v1/tokens/{name}", "Revoke a token. For the owner.", self.revoke_token, answers={204: None}
            ),
        ]

    async def doctor(self, call: Call[NoBody, NoQuery]) -> Response:
        call.service.check_owner("see and change tokens")
        # The checks block and start services of their own, so they run in a process of their own, one at a time.
        async with self._checking:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ingle",
                "doctor",
                "--json",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(DOCTOR_SECONDS):
                    output, _ = await process.communicate()
                found = msgspec.json.decode(output, type=Findings)
            except (TimeoutError, msgspec.DecodeError):
                raise errors.Unavailable("the checks did not end; run `ingle doctor` in a terminal") from None
            finally:
                if process.returncode is None:
                    process.kill()
        return answer(found)

    async def tokens(self, call: Call[None, NoQuery]) -> Response:
        call.service.check_owner("see and change tokens")
        found = await asyncio.to_thread(tokens_file.read, self._home)
        return answer(TokenList([_info(entry) for entry in found]))

    async def add_token(self, call: Call[NewToken, NoQuery]) -> Response:
        call.service.check_owner("see and change tokens")
        body = call.body
        token, entry = await asyncio.to_thread(
            tokens_file.add, self._home, body.name, body.tenant or body.name, body.scope, Limits()
        )
        return answer(MadeToken(token, _info(entry)), 201)

    async def revoke_token(self, call: Call[None, NoQuery]) -> Response:
        call.service.check_owner("see and change tokens")
        await asyncio.to_thread(tokens_file.revoke, self._home, call.request.path_params["name"])
        return Response(status_code=204)

    @property
    def _home(self) -> Path:
        home = self._credentials.principals.home if self._credentials is not None else None
        if home is None:
            raise errors.NotFound("this server needs no tokens")
        return home


def _info(entry: tokens_file.Entry) -> TokenInfo:
    return TokenInfo(entry.name, entry.tenant, entry.scope, entry.created_at, entry.limits)

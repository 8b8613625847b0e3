"""Routes of read-only links: make, list, revoke."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from ingle import errors
from ingle.callers import EXECUTE
from ingle.http.auth.credentials import Credentials
from ingle.http.auth.shares import PREFIX, ShareInfo
from ingle.http.routes.bodies import Name, NoQuery
from ingle.http.routes.table import Call, Operation, answer
from ingle.http.translations import PRINCIPAL

DEFAULT_SECONDS = 86400.0
MAX_SECONDS = 30 * 86400.0


class NewShare(Struct, forbid_unknown_fields=True):
    session_id: Name
    """The session to show."""
    expires_in: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] = DEFAULT_SECONDS
    """Seconds until the link ends."""


class Shared(Struct, frozen=True):
    """A new read-only link."""

    share: ShareInfo
    path: str
    """Path of the link, with its secret. It is shown only once."""


class ShareList(Struct):
    shares: list[ShareInfo]


class ShareRoutes:
    """Links to sessions, for callers that may use the sessions."""

    def __init__(self, credentials: Credentials | None) -> None:
        """Without credentials, as on the socket of `ingle mcp`, there are no pages to link to."""
        self._credentials = credentials

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/v1/shares",
                "Make a read-only link to one session. It ends at its time, with the session, or with the server.",
                self.add,
                body=NewShare,
                answers={201: Shared},
            ),
            Operation("GET", "/v1/shares", "The links that can be opened.", self.list_all, answers={200: ShareList}),
            Operation("DELETE", "/v1/shares/{share_id}", "Revoke a link.", self.revoke, answers={204: None}),
        ]

    async def add(self, call: Call[NewShare, NoQuery]) -> Response:
        call.service.check(EXECUTE)
        principal = call.request.scope.get(PRINCIPAL)
        if self._credentials is None or principal is None:
            raise errors.NotFound("this server has no pages to link to; start `ingle serve` for them")
        session = await call.service.get_session(call.body.session_id)
        share = self._credentials.shares.add(principal, session, call.body.expires_in)
        return answer(Shared(share.info, PREFIX + share.secret), 201)

    async def list_all(self, call: Call[None, NoQuery]) -> Response:
        call.service.check(EXECUTE)
        tenant = call.service.caller.tenant
        return answer(ShareList([] if self._credentials is None else await self._credentials.shares.list(tenant)))

    async def revoke(self, call: Call[None, NoQuery]) -> Response:
        call.service.check(EXECUTE)
        if self._credentials is None:
            raise errors.NotFound("this server has no links")
        self._credentials.shares.revoke(call.service.caller.tenant, call.request.path_params["share_id"])
        return Response(status_code=204)

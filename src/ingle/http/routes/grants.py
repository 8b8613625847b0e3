"""Routes of grants: folders and hosts that sessions may use."""

from starlette.responses import Response

from ingle.grants import GrantChange, GrantList, NewGrant
from ingle.http.routes.bodies import NoQuery
from ingle.http.routes.table import Call, Operation, answer


def operations() -> list[Operation]:
    return [
        Operation(
            "GET",
            "/v1/grants",
            "Folders and hosts that sessions may use. For the owner.",
            read,
            answers={200: GrantList},
        ),
        Operation(
            "POST",
            "/v1/grants",
            "Grant a folder or host until the server ends. The answer says from when on each live session has it.",
            add,
            body=NewGrant,
            answers={200: GrantChange},
        ),
        Operation(
            "DELETE",
            "/v1/grants/{grant_id}",
            "Remove a grant. The answer says from when on each live session no longer has it.",
            remove,
            answers={200: GrantChange},
        ),
    ]


async def read(call: Call[None, NoQuery]) -> Response:
    return answer(GrantList(await call.service.list_grants()))


async def add(call: Call[NewGrant, NoQuery]) -> Response:
    return answer(await call.service.add_grant(call.body))


async def remove(call: Call[None, NoQuery]) -> Response:
    return answer(await call.service.remove_grant(call.request.path_params["grant_id"]))

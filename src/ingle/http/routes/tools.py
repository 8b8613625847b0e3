"""Routes of tools: what the code of a session may call, and approvals of calls."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from ingle.grants import ApprovalInfo
from ingle.http.routes.bodies import NoQuery
from ingle.http.routes.table import SESSION, Call, Operation, answer
from ingle.tools.shapes import NewServer, ServerInfo

TOOLS = SESSION + "/tools"
APPROVALS = SESSION + "/approvals"


class ServerList(Struct):
    servers: list[ServerInfo]


class SearchQuery(Struct, forbid_unknown_fields=True):
    query: str = ""
    """Words to look for."""
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    """Maximum number of tools."""


class Found(Struct):
    found: list[str]
    """A line for each tool: where it is, its signature, what it does."""


class ApprovalList(Struct):
    approvals: list[ApprovalInfo]


class ApprovalAnswer(Struct, forbid_unknown_fields=True):
    allow: bool
    """True: carry the call out. False: refuse it."""


def operations() -> list[Operation]:
    return [
        Operation("GET", TOOLS, "Tools that the session's code may call.", read, answers={200: ServerList}),
        Operation(
            "GET",
            TOOLS + "/search",
            "Find tools by words.",
            search,
            query=SearchQuery,
            answers={200: Found},
        ),
        Operation(
            "PUT",
            TOOLS + "/{server}",
            "Name an MCP server for this session alone, until the session or the server ends. Needs `admin`.",
            add,
            body=NewServer,
            answers={204: None},
        ),
        Operation(
            "DELETE",
            TOOLS + "/{server}",
            "Remove a server that was named for this session. Needs `admin`.",
            remove,
            answers={204: None},
        ),
        Operation("GET", APPROVALS, "Calls that wait for a person.", waiting, answers={200: ApprovalList}),
        Operation(
            "POST",
            APPROVALS + "/{approval_id}",
            "Allow or refuse a call. Needs the scope `approve`.",
            decide,
            body=ApprovalAnswer,
            answers={200: ApprovalInfo},
        ),
    ]


async def read(call: Call[None, NoQuery]) -> Response:
    return answer(ServerList(await call.service.list_tools(call.session_id)))


async def search(call: Call[None, SearchQuery]) -> Response:
    return answer(Found(await call.service.search_tools(call.session_id, call.query.query, call.query.limit)))


async def add(call: Call[NewServer, NoQuery]) -> Response:
    await call.service.add_tool_server(call.session_id, call.request.path_params["server"], call.body)
    return Response(status_code=204)


async def remove(call: Call[None, NoQuery]) -> Response:
    await call.service.remove_tool_server(call.session_id, call.request.path_params["server"])
    return Response(status_code=204)


async def waiting(call: Call[None, NoQuery]) -> Response:
    return answer(ApprovalList(await call.service.approvals(call.session_id)))


async def decide(call: Call[ApprovalAnswer, NoQuery]) -> Response:
    approval = call.request.path_params["approval_id"]
    return answer(await call.service.decide_approval(call.session_id, approval, allow=call.body.allow))

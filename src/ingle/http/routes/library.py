"""Routes of the user's library: functions that every new session starts with."""

from starlette.responses import Response

from ingle.events import Stdlib, StdlibChange
from ingle.http.routes.bodies import AddToStdlib, NoQuery
from ingle.http.routes.table import Call, Operation, answer


def operations() -> list[Operation]:
    return [
        Operation("GET", "/v1/stdlib", "What the user's library holds.", read, answers={200: Stdlib}),
        Operation(
            "POST",
            "/v1/stdlib",
            "Add code to the user's library, once it was seen to run.",
            add,
            body=AddToStdlib,
            answers={200: StdlibChange},
        ),
    ]


async def read(call: Call[None, NoQuery]) -> Response:
    return answer(await call.service.list_stdlib())


async def add(call: Call[AddToStdlib, NoQuery]) -> Response:
    return answer(await call.service.add_to_stdlib(call.body.function_code))

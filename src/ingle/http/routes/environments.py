"""Routes of environments: list, build, remove."""

from msgspec import Struct
from starlette.responses import Response

from ingle.environments.shapes import EnvironmentInfo, NewEnvironment
from ingle.http.routes.bodies import NoQuery
from ingle.http.routes.table import Call, Operation, answer


class EnvironmentList(Struct):
    environments: list[EnvironmentInfo]


class BuildQuery(Struct, forbid_unknown_fields=True):
    wait: float | None = None
    """Seconds to wait for the build. Default: the setting `wait`."""


def operations() -> list[Operation]:
    one = "/v1/environments/{name}"
    return [
        Operation(
            "GET",
            "/v1/environments",
            "The environments, with the progress of builds.",
            list_all,
            answers={200: EnvironmentList},
        ),
        Operation(
            "PUT",
            one,
            "Create an environment, or build it anew. 202: it is still being built.",
            build,
            query=BuildQuery,
            body=NewEnvironment,
            answers={200: EnvironmentInfo, 202: EnvironmentInfo},
        ),
        Operation("DELETE", one, "Remove an environment that no session uses.", remove, answers={204: None}),
    ]


async def list_all(call: Call[None, NoQuery]) -> Response:
    return answer(EnvironmentList(await call.service.list_environments()))


async def build(call: Call[NewEnvironment, BuildQuery]) -> Response:
    name: str = call.request.path_params["name"]
    info = await call.service.build_environment(name, call.body, wait=call.query.wait)
    return answer(info, 202 if info.state == "building" else 200)


async def remove(call: Call[None, NoQuery]) -> Response:
    await call.service.remove_environment(call.request.path_params["name"])
    return Response(status_code=204)

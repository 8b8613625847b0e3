"""Shell tasks over HTTP: the rows of the table, and what each of them asks the service for."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from ingle.events import Task, TaskOutput
from ingle.http.routes.bodies import Natural, NoQuery, Positive
from ingle.http.routes.table import Call, Operation, answer, answer_list
from ingle.requests import Limits, NewTask
from ingle.service.shell import MAX_LISTED


class Run(Struct, forbid_unknown_fields=True):
    command: str
    """Text for the shell."""
    wait: float | None = None
    """Seconds until the answer `running`, while the command goes on. Default: the server's."""
    timeout: float | None = None
    """Seconds after which the command is ended. Default: none."""
    cwd: str | None = None
    """Folder to run in. Default: the session's, or the tenant's."""
    env: dict[str, str] | None = None
    """Environment variables of the command."""
    session_id: str | None = None
    """Run in the folder, environment and sandbox of this session."""
    stdin: str | None = None
    """The whole input; with `interactive` or `pty` its first part."""
    interactive: bool = False
    """Keep the input open."""
    pty: bool = False
    """Run the command on a terminal."""
    rows: Annotated[int, Meta(ge=1, le=1000)] = 24
    """Height of the terminal."""
    columns: Annotated[int, Meta(ge=1, le=1000)] = 80
    """Width of the terminal."""
    limits: Limits | None = None
    """Resources that the command may use."""
    shell_session: str | None = None
    """Name of the persistent shell that runs the command."""

    def new_task(self, key: str | None) -> NewTask:
        """Return the request as the service takes it."""
        return NewTask(
            self.command,
            cwd=self.cwd or "",
            env=self.env or {},
            timeout=self.timeout,
            stdin=self.stdin,
            interactive=self.interactive,
            pty=self.pty,
            rows=self.rows,
            columns=self.columns,
            limits=self.limits or Limits(),
            session_id=self.session_id,
            shell_session=self.shell_session,
            key=key,
        )


class Wait(Struct, forbid_unknown_fields=True):
    wait: float | None = None
    """Seconds to wait for the end of the task. Default: the server's."""


class Text(Struct, forbid_unknown_fields=True):
    text: str = ""
    """Text to send unchanged; end lines with a newline."""
    eof: bool = False
    """End the input."""
    wait: float = 0.0
    """Seconds to wait for the end of the task."""


class Size(Struct, forbid_unknown_fields=True):
    rows: Annotated[int, Meta(ge=1, le=1000)]
    """Height of the terminal."""
    columns: Annotated[int, Meta(ge=1, le=1000)]
    """Width of the terminal."""


class Status(Struct, forbid_unknown_fields=True, rename={"from_event": "from"}):
    wait: float = 0.0
    """Seconds to wait for the end of the task."""
    from_line: Natural = 0
    """Return only text from this line on."""
    from_event: Natural = 0
    """Return only text from this event on: `next_event` of an earlier answer."""


class Lines(Struct, forbid_unknown_fields=True):
    from_line: Positive = 1
    """First line, counted from 1."""
    lines: Positive = 200
    """Most lines to return."""
    grep: str | None = None
    """Return only lines that match this pattern."""
    stream: str = "stdout"
    """`stdout`, `stderr` or `both`."""


class TasksQuery(Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = MAX_LISTED
    """Most tasks to return: the last ones."""
    before: str | None = None
    """Return tasks that were started before the task with this id."""


class TaskList(Struct):
    tasks: list[Task]


def operations() -> list[Operation]:
    task = "/v1/shell/{task_id}"
    found = {200: Task}
    return [
        Operation(
            "POST",
            "/v1/shell",
            "Run a shell command: all it printed, or a task that goes on.",
            run,
            body=Run,
            answers=found,
            headers=("Idempotency-Key",),
        ),
        Operation(
            "GET",
            "/v1/shell",
            "The tasks, without their text; long commands are cut.",
            tasks,
            query=TasksQuery,
            answers={200: TaskList},
        ),
        Operation("GET", task, "A task as it is now, or once it has ended.", status, query=Status, answers=found),
        Operation("GET", task + "/output", "Lines of a task's output.", lines, query=Lines, answers={200: TaskOutput}),
        Operation("POST", task + "/cancel", "End a task and all it started.", cancel, body=Wait, answers=found),
        Operation("POST", task + "/interrupt", "As Ctrl-C does.", interrupt, body=Wait, answers=found),
        Operation("POST", task + "/pause", "Stop a task for a while.", pause, answers=found),
        Operation("POST", task + "/resume", "Have a paused task go on.", resume, body=Wait, answers=found),
        Operation("POST", task + "/input", "Send text to a task's input.", send, body=Text, answers=found),
        Operation("POST", task + "/resize", "Set the size of its terminal.", resize, body=Size, answers={204: None}),
    ]


async def run(call: Call[Run, NoQuery]) -> Response:
    new = call.body.new_task(call.request.headers.get("idempotency-key"))
    return answer(await call.service.run_task(new, call.body.wait))


async def tasks(call: Call[None, TasksQuery]) -> Response:
    return await answer_list("tasks", call.service.each_task(call.query.limit, call.query.before))


async def status(call: Call[None, Status]) -> Response:
    query = call.query
    return answer(
        await call.service.shell_status(
            call.task_id,
            wait=query.wait,
            from_line=query.from_line,
            from_event=query.from_event,
        )
    )


async def lines(call: Call[None, Lines]) -> Response:
    query = call.query
    return answer(
        await call.service.shell_output(
            call.task_id,
            stream=query.stream,
            from_line=query.from_line,
            lines=query.lines,
            grep=query.grep,
        )
    )


async def cancel(call: Call[Wait, NoQuery]) -> Response:
    return answer(await call.service.shell_cancel(call.task_id, wait=call.body.wait))


async def interrupt(call: Call[Wait, NoQuery]) -> Response:
    return answer(await call.service.shell_interrupt(call.task_id, wait=call.body.wait))


async def pause(call: Call[None, NoQuery]) -> Response:
    return answer(await call.service.shell_pause(call.task_id))


async def resume(call: Call[Wait, NoQuery]) -> Response:
    return answer(await call.service.shell_resume(call.task_id, wait=call.body.wait or 0.0))


async def send(call: Call[Text, NoQuery]) -> Response:
    body = call.body
    return answer(await call.service.shell_input(call.task_id, body.text, eof=body.eof, wait=body.wait))


async def resize(call: Call[Size, NoQuery]) -> Response:
    await call.service.shell_resize(call.task_id, call.body.rows, call.body.columns)
    return Response(status_code=204)

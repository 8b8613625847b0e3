"""The next step after a refusal, in the words of the tools. It never repeats the refusal's own remedy."""

import contextlib

from ingle import errors
from ingle.service import Service
from ingle.sessions.manager import check_name

MAIN = "main"

NAMES_SHOWN = 20


def call(tool: str, session_id: str, *arguments: str) -> str:
    """Return a call as text. The session is named if it is not the default."""
    named = [] if session_id == MAIN else [f'session_id="{session_id}"']
    return f"{tool}({', '.join([*named, *arguments])})"


async def refusal_text(error: errors.IngleError, session_id: str, service: Service) -> str:
    """Return what is wrong and what to do next."""
    advice = await _advice(error, session_id, service)
    return f"{error.problem}. {advice}" if advice else error.message


async def _advice(error: errors.IngleError, session_id: str, service: Service) -> str:
    match error:
        case errors.ShellBusy():
            return ""
        case errors.Busy():
            return await _after_busy(error, session_id, service)
        case errors.NotWaiting():
            return f"Call {call('wait', session_id)} to see what it does"
        case errors.CheckpointNotFound():
            stores = call("rollback_repl_session", session_id, "action='checkpoint'", "checkpoint=…")
            return (
                f"{stores} stores the current state; create_repl_session(checkpoints='auto') makes a session whose "
                "last cell can be undone"
            )
        case errors.SessionNotFound():
            return await _after_missing_session(session_id, service)
        case errors.SessionExists():
            return (
                f"Use it with session_id={session_id!r}, choose another session_id, or end it with "
                f"destroy_repl_session(session_id={session_id!r})"
            )
        case errors.SnapshotNotFound():
            return _listed("Saved sessions", [each.name async for each in service.each_snapshot()], "none is saved")
        case errors.TaskNotFound():
            tasks = [f"{each.task_id} ({each.command[:40]})" for each in reversed(await service.shell_tasks())]
            return _listed("Tasks", tasks, "there is none; `shell` starts one")
        case errors.InputClosed():
            return "Start such a command with interactive=true"
        case errors.VariableNotFound():
            return "" if error.near else f"{call('get_session_namespace', session_id)} lists what there is"
        case errors.TooManySessions():
            return "End one with destroy_repl_session; list_repl_sessions lists them"
        case errors.TooManyTasks():
            return "Cancel one with shell_status(action='cancel'), or wait for one"
    return ""


async def _after_busy(error: errors.Busy, session_id: str, service: Service) -> str:
    if not error.waiting:
        return (
            f"Nothing was run. Call {call('wait', session_id)} for its result, or {call('interrupt', session_id)}, "
            "or use another session"
        )
    prompt = ""
    with contextlib.suppress(errors.IngleError):
        asked = (await service.wait(session_id, error.cell, wait=0)).prompt
        prompt = f"It asks {asked[-NAMES_SHOWN * 10 :]!r}. " if asked else ""
    return (
        f"{prompt}Nothing was run. Answer it with {call('send_input', session_id, 'text=…')}, or stop it with "
        f"{call('interrupt', session_id)}"
    )


async def _after_missing_session(session_id: str, service: Service) -> str:
    known = _listed("Sessions", [info.session_id for info in await service.list_sessions()], "There is no session yet")
    try:
        check_name(session_id)
    except errors.InvalidName as error:
        return f"{known}. {error.message[:1].upper()}{error.message[1:]}"
    if session_id == MAIN:
        return f"{known}. {MAIN!r} needs no creating"
    return f"{known}. create_repl_session(session_id={session_id!r}) creates it; {MAIN!r} needs no creating"


def _listed(what: str, names: list[str], none: str) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{what}: {', '.join(names[:NAMES_SHOWN])}{more}" if names else none[:1].upper() + none[1:]

"""The next step after a refusal, in the words of the tools.

It never repeats the refusal's own remedy, and names only tools that this server answers.
"""

import contextlib
from dataclasses import dataclass

from ingle import errors
from ingle.service import Service
from ingle.sessions.spec import check_name

MAIN = "main"

NAMES_SHOWN = 20
PROMPT_CHARS = 200
COMMAND_CHARS = 40


@dataclass(frozen=True)
class Refused:
    """An error, and the call that met it."""

    error: errors.IngleError
    tool: str
    session_id: str
    answered: frozenset[str]
    """Names of the tools that the model can call."""

    def steps(self, *steps: tuple[str, str]) -> str:
        """Return those of the steps that the model can take, as alternatives. A step has a tool, or none is needed."""
        texts = [text for tool, text in steps if not tool or tool in self.answered]
        if len(texts) > 2:
            texts = [", ".join(texts[:-1]), texts[-1]]
        return _sentence(", or ".join(texts))

    def call(self, tool: str, *arguments: str) -> str:
        """Return a call as text. The session is named if it is not the default."""
        named = [] if self.session_id == MAIN else [f'session_id="{self.session_id}"']
        return f"{tool}({', '.join([*named, *arguments])})"


async def refusal_text(refused: Refused, service: Service) -> str:
    """Return what is wrong and what to do next."""
    advice = await _advice(refused, service)
    return f"{refused.error.problem}. {advice}" if advice else refused.error.message


async def _advice(refused: Refused, service: Service) -> str:
    error = refused.error
    match error:
        case errors.ShellBusy():
            return ""
        case errors.TrialOpen():
            decide = refused.call("trial", "action='commit'")
            text = f"call {decide} to keep what it did, or the same with 'discard'"
            return f"Nothing was run. {refused.steps(('trial', text), ('', 'use another session'))}"
        case errors.TrialNotFound():
            return refused.steps(("trial", f"{refused.call('trial', 'code=…')} runs one"))
        case errors.FailureNotFound() if not error.kept:
            return "Failures are kept if the user starts ingle with --keep-failures 3; until then print what you need"
        case errors.Busy():
            return await _after_busy(error, refused, service)
        case errors.NotWaiting():
            return refused.steps(("wait", f"call {refused.call('wait')} to see what it does"))
        case errors.CheckpointNotFound():
            stores = refused.call("rollback_repl_session", "action='checkpoint'", "checkpoint=…")
            last = "create_repl_session(checkpoints='auto') makes a session whose last cell can be undone"
            steps = (("rollback_repl_session", f"{stores} stores the current state"), ("create_repl_session", last))
            return "; ".join(text for tool, text in steps if tool in refused.answered)
        case errors.SessionNotFound():
            return await _after_missing_session(refused, service)
        case errors.SessionExists():
            name = error.session_id
            return refused.steps(
                ("", f"use it with session_id={name!r}"),
                ("", "choose another name"),
                ("destroy_repl_session", f"end it with destroy_repl_session(session_id={name!r})"),
            )
        case errors.SnapshotNotFound():
            return _listed("Saved sessions", [each.name async for each in service.each_snapshot()], "none is saved")
        case errors.TaskNotFound():
            tasks = [f"{each.task_id} ({each.command[:COMMAND_CHARS]})" for each in await service.shell_tasks()]
            return _listed("Tasks", tasks[::-1], "there is none; `shell` starts one")
        case errors.InputClosed():
            return "Start such a command with interactive=true"
        case errors.VariableNotFound() if not error.near:
            return refused.steps(
                ("get_session_namespace", f"{refused.call('get_session_namespace')} lists what there is")
            )
        case errors.TooManySessions():
            return refused.steps(
                ("destroy_repl_session", "end one with destroy_repl_session; list_repl_sessions lists them")
            )
        case errors.TooManyTasks():
            return "Cancel one with shell_status(action='cancel'), or wait for one"
    return ""


async def _after_busy(error: errors.Busy, refused: Refused, service: Service) -> str:
    if not error.waiting:
        steps = refused.steps(
            ("wait", f"call {refused.call('wait')} for its result"),
            ("interrupt", f"stop it with {refused.call('interrupt')}"),
            ("", "use another session"),
        )
        return f"Nothing was run. {steps}"
    prompt = ""
    with contextlib.suppress(errors.IngleError):
        asked = (await service.wait(refused.session_id, error.cell, wait=0)).prompt
        prompt = f"It asks {asked[-PROMPT_CHARS:]!r}. " if asked else ""
    steps = refused.steps(
        ("send_input", f"answer it with {refused.call('send_input', 'text=…')}"),
        ("interrupt", f"stop it with {refused.call('interrupt')}"),
    )
    return f"{prompt}Nothing was run. {steps}"


async def _after_missing_session(refused: Refused, service: Service) -> str:
    name = refused.session_id
    known = _listed("Sessions", [info.session_id for info in await service.list_sessions()], "there is no session yet")
    try:
        check_name(name)
    except errors.InvalidName as error:
        return f"{known}. {_sentence(error.message)}"
    if refused.tool == "destroy_repl_session":
        return known
    if name == MAIN or "create_repl_session" not in refused.answered:
        return f"{known}. {MAIN!r} needs no creating"
    return f"{known}. create_repl_session(session_id={name!r}) creates it; {MAIN!r} needs no creating"


def _listed(what: str, names: list[str], none: str) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{what}: {', '.join(names[:NAMES_SHOWN])}{more}" if names else _sentence(none)


def _sentence(text: str) -> str:
    # A call stays as it is written.
    return text if "(" in text.split(" ", 1)[0] else text[:1].upper() + text[1:]

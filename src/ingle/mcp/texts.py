"""Texts for a model: shell tasks, variables, saves, forks, checkpoints and the library, within the budget of cells."""

import time
from collections.abc import Sequence

from ingle.events import (
    LIVE_STATUSES,
    CheckpointInfo,
    Restored,
    Result,
    RolledBack,
    Saved,
    SessionInfo,
    Skipped,
    Stdlib,
    StdlibChange,
    Task,
    VariableInfo,
    Variables,
    VariableValue,
)
from ingle.render.model import NOTICE_CHARS, QUICK_SECONDS, TEXT_LIMIT, files_line
from ingle.render.phrases import counted, duration, size, some
from ingle.render.terminal_text import clean
from ingle.render.truncate import HEAD_SHARE, Omitted, cut, passage, shares
from ingle_worker.wire import states

STATUS_CHARS = 600
"""Characters reserved for the last lines."""

PREVIEW_CHARS = 100
NAMES_SHOWN = 40
COMMAND_CHARS = 60
PROCESSES_NAMED = 5


def no_effect_text(result: Result, *, ends: bool) -> str:
    """Return why an interrupt has not stopped the code, and what would. `ends`: the model can end the session."""
    call = f'destroy_repl_session(session_id="{result.session_id}")'
    end = f", or {call} ends the session, and its variables are lost" if ends else ""
    if result.status == states.APPROVAL:
        return f"the code waits for the approval of a call in spite of the interrupt; only a person can answer{end}"
    if result.status == states.WAITING:
        return (
            f"the code waits for input in spite of the interrupt. Answer it, with eof=true if it reads on and on{end}"
        )
    return (
        "the interrupt has had no effect so far: the code is in a call that does not listen to it, or catches "
        f"KeyboardInterrupt. Wait for it{end}"
    )


def tools_text(found: list[str]) -> str:
    """Return the tools that a search has found, as code calls them."""
    if not found:
        return "no tool fits; `import tools; dir(tools)` in a cell lists the servers"
    return "\n".join(["import tools", *(f"tools.{line}" for line in found)])


def task_text(task: Task, from_line: int = 0) -> str:
    """Return a command's output since that line, how it ended, and the next call."""
    streams = [each for each in _streams(task) if each[1]]
    # Lines are counted over both streams; missing lines are in the gap.
    missing = max(0, task.next_line - max(1, from_line) - sum(text.count("\n") for _, text, _ in streams))
    passages = []
    for _, text, left in streams:
        gap = (int(len(text) * HEAD_SHARE), left, missing) if left else None
        passages.append(passage(text, max(1, from_line), gap))
    given = shares([each.length for each in passages], TEXT_LIMIT - STATUS_CHARS)

    def say(omitted: Omitted) -> str:
        what = f"{counted(omitted.lines, 'line')} omitted" if omitted.lines else "part of a long line omitted"
        line = str(omitted.from_line) if len(streams) == 1 else "…"
        return f'… {what}: shell_status(task_id="{task.task_id}", from_line={line}) …'

    lines: list[str] = []
    for (title, _, _), each, budget in zip(streams, passages, given, strict=True):
        shown = cut(each, budget, say) if each.head else []
        lines += [title, *shown] if title and shown else shown
    lines += [f"[note: {clean(notice)[:NOTICE_CHARS]}]" for notice in task.notices]
    status = _status(task, something=bool(lines))
    return "\n".join([*lines, status] if status else lines)


def _streams(task: Task) -> tuple[tuple[str, str, int], tuple[str, str, int]]:
    return ("", task.stdout, task.truncated.stdout), ("[stderr]", task.stderr, task.truncated.stderr)


def _status(task: Task, something: bool) -> str:
    slow = task.execution_time >= QUICK_SECONDS
    if task.status == "done" and task.exit_code == 0 and something and not slow and not task.left_running:
        return ""
    words = [f"task {task.task_id}", f"{task.status} at its timeout" if task.timed_out else task.status]
    if task.exit_code is not None:
        words.append(f"exit code {task.exit_code}")
    if task.signal is not None:
        words.append(task.signal)
    if slow:
        words.append(duration(task.execution_time))
    if task.left_running:
        names = ", ".join(f"{each.command[:60]} ({each.pid})" for each in task.left_running[:PROCESSES_NAMED])
        words.append(f"left running: {names}")
    if task.status in LIVE_STATUSES:
        call = f'shell_status(task_id="{task.task_id}", from_line={task.next_line})'
        words.append(f'{call} waits for it, action="cancel" stops it')
    return f"[{' · '.join(words)}]"


# --- sessions ---


def listing_text(infos: list[SessionInfo], tasks: list[Task], saved: list[str]) -> str:
    """Return the sessions, with what they share in one line, then running tasks and saved sessions."""
    shared = _shared(infos)
    lines = [session_line(info, shared) for info in infos]
    if shared:
        lines.insert(0, f"all {len(infos)} sessions: {' · '.join(shared)}")
    if not infos:
        lines.append("no session yet; python_session(code=…) creates `main`")
    lines += [f"task {each.task_id} · {each.status} · {each.command[:COMMAND_CHARS]}" for each in tasks]
    if saved:
        lines.append(f"saved: {some(saved, NAMES_SHOWN)}")
    return _within("\n".join(lines))


def _shared(infos: list[SessionInfo]) -> list[str]:
    """Return what is the same for all of several sessions."""
    about = [_place_of(info) for info in infos]
    return [each for each in about[0] if all(each in other for other in about)] if len(about) > 1 else []


def _place_of(info: SessionInfo) -> list[str]:
    return [f"Python {info.python}", f"isolation {info.isolation}", info.cwd]


def session_line(info: SessionInfo, shared: Sequence[str] = ()) -> str:
    """Return one session as a line, without the facts that all sessions share."""
    now = time.time()
    used = "never used" if info.last_executed is None else f"last used {ago(now - info.last_executed)} ago"
    names = some(info.variables, NAMES_SHOWN)
    parts = [
        info.session_id,
        info.state.replace("_", " "),
        f"created {ago(now - info.created_at)} ago",
        used,
        counted(info.execution_count, "cell"),
        counted(info.variable_count, "variable") + (f": {names}" if names else ""),
        *(["durable"] if info.durable else []),
        *(["memory unknown"] if info.memory is None and info.state != "hibernated" else []),
        *([f"{info.memory / 1e6:.0f} MB"] if info.memory is not None else []),
        *(each for each in _place_of(info) if each not in shared),
    ]
    return " · ".join([*parts, *info.notices])


def ago(seconds: float) -> str:
    if seconds < 90:
        return f"{max(0, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


# --- variables ---


def variables_text(found: Variables) -> str:
    lines = [variable_line(each) for each in found.variables]
    if found.more:
        lines.append(f"… {counted(found.more, 'more variable')}: get_session_namespace(variable_name=…) shows one …")
    lines += _notes(found.notices)
    return _within("\n".join(lines)) or f"[session {found.session_id} has no variables]"


def variable_line(each: VariableInfo) -> str:
    if each.type is None:
        return each.name
    about = [each.type]
    if each.shape is not None:
        about.append(" by ".join(map(str, each.shape)))
    elif each.length is not None:
        about.append(counted(each.length, "item"))
    if each.size is not None:
        about.append(size(each.size))
    line = f"{each.name}: {', '.join(about)}"
    preview = clean(each.preview or "").replace("\n", " ")
    return f"{line} = {preview[:PREVIEW_CHARS]}{'…' * (len(preview) > PREVIEW_CHARS)}" if preview else line


def value_text(found: VariableValue) -> str:
    each = found.variable
    value = each.value if each.value is not None else each.repr
    about = VariableInfo(each.name, each.type, each.shape, each.length, each.size)
    return "\n".join([variable_line(about), *([_within(value)] if value else []), *_notes(found.notices)])


FORKS_NAMED = 20


def forks_text(original: str, made: list[SessionInfo]) -> str:
    names = ", ".join(info.session_id for info in made[:FORKS_NAMED])
    more = f" and {len(made) - FORKS_NAMED} more" if len(made) > FORKS_NAMED else ""
    what, whom = ("a copy of", "it") if len(made) == 1 else (f"{len(made)} copies of", "them")
    cell = made[0].execution_count
    text = (
        f"{what} {original} as of cell {cell}: {names}{more}. Use {whom} with session_id; the next cell is {cell + 1}."
    )
    return "\n".join([text, *_notes(made[0].notices[1:])])


def rolled_back_text(back: RolledBack) -> str:
    cell = back.session.execution_count + 1
    text = f"session {back.session.session_id}: {back.notice}. Its next cell is {cell}."
    files = files_line(back.files)
    return "\n".join([text, *([f"[{files}]"] if files else []), *_notes(back.checkpoint.notices)])


def checkpoint_text(session_id: str, kept: CheckpointInfo) -> str:
    call = f'rollback_repl_session(session_id="{session_id}", checkpoint="{kept.name}")'
    return "\n".join([f"stored as {kept.name!r}: {call} restores this state.", *_notes(kept.notices)])


def checkpoints_text(found: list[CheckpointInfo]) -> str:
    lines = []
    for each in found:
        name = "before the last cell (without a name)" if each.auto else each.name
        memory = f", {size(each.memory)}" if each.memory is not None else ""
        lines.append(f"{name}: after cell {each.cell}, {duration(max(0.0, time.time() - each.created_at))} ago{memory}")
    return "\n".join(lines) or "there is no checkpoint; action=`checkpoint` with a name makes one"


def _notes(notices: list[str]) -> list[str]:
    return [f"[note: {notice[:NOTICE_CHARS]}]" for notice in notices]


def stdlib_text(found: Stdlib) -> str:
    lines = [f"{each.signature}: {each.doc}" if each.doc else each.signature for each in found.functions]
    if found.modules:
        named = [e.name if e.name == e.module else f"{e.module} as {e.name}" for e in found.modules]
        lines.append(f"modules: {', '.join(named)}")
    if found.other:
        lines.append(f"other: {', '.join(f'{each.name} ({each.kind})' for each in found.other)}")
    if found.problem:
        lines.append(f"[note: the library cannot be read: {found.problem[:NOTICE_CHARS]}]")
    return _within("\n".join(lines)) or "the library is empty; add_to_stdlib(function_code=…) adds to it"


def stdlib_change_text(change: StdlibChange) -> str:
    added = ", ".join(name for name in change.added if name not in change.replaced)
    words = [f"added: {added}"] if added else []
    if change.replaced:
        words.append(f"replaced: {', '.join(change.replaced)}")
    return _within(f"{'; '.join(words)}. New sessions have it; running ones do not.")


SKIPPED_NAMED = 20


def saved_text(saved: Saved) -> str:
    what = f"{counted(saved.variables, 'variable')}, {size(saved.size)}"
    new = f", of which {size(saved.new_bytes)} are new" if saved.new_bytes < saved.size else ""
    held_up = f"the session was blocked for {saved.paused * 1000:.0f} ms"
    head = f"session {saved.session_id} is saved as {saved.snapshot}: {what}{new}; {held_up}."
    then = f"load_repl_session(filepath={saved.snapshot!r}) restores it."
    return _within("\n".join([head, *_skipped_lines("not saved", saved.skipped), *saved.notices, then]))


def restored_text(restored: Restored) -> str:
    session = restored.session
    head = (
        f"session {session.session_id} is ready with {counted(restored.variables, 'variable')} of {restored.snapshot}: "
        f"Python {session.python} in {session.cwd}."
    )
    return _within("\n".join([head, *_skipped_lines("missing", restored.skipped), *restored.notices]))


def _skipped_lines(how: str, skipped: list[Skipped]) -> list[str]:
    lines = [
        f"{how}: {each.name} ({each.type}): {each.reason}"
        + (f" (made by {each.made_by.strip('<>')})" if each.made_by else "")
        for each in skipped[:SKIPPED_NAMED]
    ]
    more = len(skipped) - len(lines)
    return [*lines, f"and {more} more"] if more else lines


def _within(text: str) -> str:
    def say(omitted: Omitted) -> str:
        return f"… {counted(omitted.lines, 'line')} omitted …" if omitted.lines else "… part of a long line omitted …"

    whole = passage(text, fold=False)
    return "\n".join(cut(whole, TEXT_LIMIT - STATUS_CHARS, say)) if whole.head else ""

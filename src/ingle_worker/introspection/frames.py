"""Frames of the exception that ended a cell, and expressions that are evaluated in them, in a copy of the process."""

import contextlib
import io
import sys
import types
from typing import Any

from ingle_worker.session import traceback_text, variables
from ingle_worker.wire.messages import AskFrame, FrameAsked, UserFrame

MAX_FRAMES = 50
"""Frames that are listed, from the innermost one."""

MAX_NAMES = 50
MAX_CHARS = 10_000
"""Characters of a value, and of what an expression prints."""


def answer(question: AskFrame, error: BaseException | None) -> FrameAsked:
    """Evaluate an expression in one of the frames; without one, list the frames."""
    frames = _frames(error)
    if not question.expression:
        first = max(0, len(frames) - MAX_FRAMES)
        shown = [_shown(first + index, *each) for index, each in enumerate(frames[first:])]
        return FrameAsked(question.ticket, shown, len(frames))
    try:
        frame, _ = frames[question.frame]
    except IndexError:
        return FrameAsked(question.ticket, count=len(frames), missing=True)
    printed = io.StringIO()
    type_name = text = raised = ""
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            value = _evaluate(question.expression, frame)
            type_name = variables.type_name(value)
            text = repr(value)
            if type(text) is not str:
                text = "".join(text)  # a subclass of str may have any methods
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # user code: an expression may raise anything
            described = traceback_text.bare(problem)
            raised = f"{described.name}: {described.value}"
    index = question.frame % len(frames)
    return FrameAsked(
        question.ticket,
        [_shown(index, *frames[index])],
        len(frames),
        type_name[:MAX_CHARS],
        _cut(text),
        _cut(printed.getvalue()),
        _cut(raised),
    )


def _evaluate(expression: str, frame: types.FrameType) -> Any:
    # Names of the frame as globals too, or a comprehension or a lambda would not see them.
    space = {**frame.f_globals, **frame.f_locals}
    return eval(compile(expression.strip(), "<inspection>", "eval", dont_inherit=True), space)


def _frames(error: BaseException | None) -> list[tuple[types.FrameType, int]]:
    """Return the user's frames of an exception with their lines, the cell's own first."""
    found = []
    trace = None if error is None else error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if not frame.f_code.co_filename.startswith(traceback_text.GUEST_FOLDER):
            found.append((frame, trace.tb_lineno))
        trace = trace.tb_next
    return found


def _shown(index: int, frame: types.FrameType, line: int) -> UserFrame:
    code = frame.f_code
    name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
    names = [each for each in frame.f_locals if type(each) is str and not each.startswith("__")]
    return UserFrame(index, name[:MAX_CHARS], code.co_filename[:MAX_CHARS], line, sorted(names)[:MAX_NAMES])


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    half = MAX_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"

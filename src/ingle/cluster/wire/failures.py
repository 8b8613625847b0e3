"""Errors over a connection: each arrives as the class it was, with its code, status, message and next step."""

import inspect

import msgspec

from ingle import errors
from ingle.cluster.wire.frames import Failure
from ingle.errors import IngleError

_KINDS: dict[str, type[IngleError]] = {
    name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, IngleError)
}
"""Errors that can be sent, by name. No other class is ever made from a frame."""

_OWN = ("message", "problem", "retry_after")


def failure_of(number: int, error: IngleError) -> Failure:
    """Return the frame of an error. A private subclass is sent as its nearest public one."""
    kind = next(each for each in type(error).__mro__ if _KINDS.get(each.__name__) is each)
    details = {name: value for name, value in vars(error).items() if name not in _OWN}
    try:
        msgspec.msgpack.encode(details)
    except (TypeError, msgspec.MsgspecError):
        details = {}
    return Failure(number, kind.__name__, error.message, error.problem, error.retry_after, details)


def error_of(frame: Failure) -> IngleError:
    """Return the error of a frame."""
    kind = _KINDS.get(frame.kind, IngleError)
    error = kind.__new__(kind)
    IngleError.__init__(error, frame.message, frame.problem)
    if frame.retry_after is not None:
        error.retry_after = frame.retry_after
    vars(error).update(frame.details)
    return error

"""Reduction and rebuilding of objects that belong to running code, as long as nothing is in progress.

A traceback keeps its lines, but not the variables of its frames. A generator or coroutine that has not started is a
function with arguments. Threads that do not run, idle executors and unconnected sockets are created again. An object in
the middle of something raises `Unsavable`.
"""

import gc
import opcode
import sys
import types
from typing import Any

from ingle_worker.snapshot import definitions
from ingle_worker.snapshot.rebuild.registry import CURRENT, MAGIC, MAKERS, maker
from ingle_worker.snapshot.reduce_builtin import Unsavable, loaded

_m: Any = types.SimpleNamespace()
_TEMPLATE = (lambda: None).__code__
_NOP = bytes([opcode.opmap["NOP"], 0])

GENERATORS: dict[type, str] = {
    types.GeneratorType: "gi",
    types.CoroutineType: "cr",
    types.AsyncGeneratorType: "ag",
}
"""Types of suspended code, and the prefix of their attributes."""

_NOUNS = {"gi": "a generator", "cr": "a coroutine", "ag": "an asynchronous generator"}

_functions: dict[int, tuple[Any, types.FunctionType]] = {}
"""Functions made for generators, by the generator's id."""

_running: list[Any] = []
"""Threads that ran in the session when this copy was made. Here they appear to have ended."""


def begin(running: list[Any]) -> None:
    _running[:] = running


def handles(kind: type) -> bool:
    """Return whether objects of this type are reduced here."""
    return kind is types.TracebackType or kind in GENERATORS or _reducer_of(kind) is not None


def parts_of(value: Any) -> list[Any]:
    """Return the objects saved with a value, or none if it cannot be saved."""
    kind = type(value)
    try:
        if kind in GENERATORS:
            taken = suspended(value)
        elif kind is types.TracebackType:
            return []
        else:
            reducer = _reducer_of(kind)
            taken = reducer(value) if reducer is not None else ()
    except Unsavable:
        return []
    return list(taken[1:3])


def reducer_of(kind: type) -> Any:
    """Return the reducer of a type, or None."""
    return suspended if kind in GENERATORS else _reducer_of(kind)


def _reducer_of(kind: type) -> Any:
    if definitions.derives(kind, loaded("threading", "Thread")):
        return thread
    if kind is loaded("concurrent.futures.thread", "ThreadPoolExecutor"):
        return thread_pool
    if kind is loaded("concurrent.futures.process", "ProcessPoolExecutor"):
        return process_pool
    if definitions.derives(kind, loaded("_socket", "socket")):
        return socket
    return None


# --- tracebacks --------------------------------------------------------------------------------------------


def codes_of(value: types.TracebackType) -> list[types.CodeType]:
    found = []
    following: types.TracebackType | None = value
    while following is not None:
        found.append(following.tb_frame.f_code)
        following = following.tb_next
    return found


def traceback(value: types.TracebackType) -> Any:
    main = sys.modules.get(definitions.MAIN)
    entries = []
    following: types.TracebackType | None = value
    while following is not None:
        code, space = following.tb_frame.f_code, following.tb_frame.f_globals
        where = None if main is not None and space is vars(main) else str(space.get("__name__", "?"))
        about = {
            "co_filename": code.co_filename,
            "co_name": code.co_name,
            "co_firstlineno": code.co_firstlineno,
            "co_linetable": code.co_linetable,
        }
        if sys.version_info >= (3, 11):
            about["co_qualname"] = code.co_qualname
        # The line number can be None.
        line = following.tb_lineno if isinstance(following.tb_lineno, int) else code.co_firstlineno
        entries.append((about, len(code.co_code), where, following.tb_lasti, line))
        following = following.tb_next
    return (_m.traceback_again, (MAGIC, entries))


@maker
def traceback_again(magic: bytes, entries: list[tuple[dict[str, Any], int, str | None, int, int]]) -> Any:
    """Return a traceback, or None where no frame can be created without running its code."""
    try:
        import ctypes

        new, thread = ctypes.pythonapi.PyFrame_New, ctypes.pythonapi.PyThreadState_Get
    except (ImportError, AttributeError):
        return None
    thread.restype, new.restype = ctypes.c_void_p, ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.c_void_p]
    made: types.TracebackType | None = None
    load = CURRENT.get()
    for about, size, where, last, line in reversed(entries):
        if magic == MAGIC:
            # The code never runs, but its length matters: the position in it gives the column of the error.
            about["co_code"] = _TEMPLATE.co_code + _NOP * ((size - len(_TEMPLATE.co_code)) // 2)
        else:
            last = -1
            for name in ("co_linetable", "co_qualname"):
                about.pop(name, None)
        about["co_filename"] = load.renamed.get(about["co_filename"], about["co_filename"])
        space: dict[str, Any] = {"__name__": where}
        if where is None:
            space = load.space
        elif where in sys.modules:
            space = vars(sys.modules[where])
        frame = new(thread(), _TEMPLATE.replace(**about), space, None)
        made = types.TracebackType(made, frame, last, line)
    return made


# --- generators and the like -------------------------------------------------------------------------------


def suspended(value: Any) -> Any:
    """Reduce a generator, coroutine or asynchronous generator that has not started or has ended."""
    prefix = GENERATORS[type(value)]
    noun = _NOUNS[prefix]
    frame = getattr(value, f"{prefix}_frame")
    names = (value.__name__, value.__qualname__)
    if frame is None:
        return (_m.generator_over, (prefix, *names))
    if getattr(value, f"{prefix}_running") or _has_begun(value, prefix, frame):
        raise Unsavable(f"{noun} that has started: its position in the code cannot be saved")
    code = getattr(value, f"{prefix}_code")
    parts = [*gc.get_referents(value), *gc.get_referents(frame)]
    function = next((each for each in parts if type(each) is types.FunctionType and each.__code__ is code), None)
    if function is None:
        # 3.10 has no function here. The closure cells are the last referents of a frame that has not started.
        cells = tuple(gc.get_referents(frame)[-len(code.co_freevars) :]) if code.co_freevars else ()
        if not all(type(each) is types.CellType for each in cells):
            raise Unsavable(f"{noun} whose function this Python does not reveal")
        made = types.FunctionType(code, frame.f_globals, value.__name__, None, cells)
        # One per generator, so that shared objects are found in every walk.
        function = _functions.setdefault(id(value), (value, made))[1]
    local = dict(frame.f_locals)
    varnames = code.co_varnames
    try:
        args = [local[name] for name in varnames[: code.co_argcount]]
        end = code.co_argcount + code.co_kwonlyargcount
        options = {name: local[name] for name in varnames[code.co_argcount : end]}
        if code.co_flags & 0x04:
            args += local[varnames[end]]
            end += 1
        if code.co_flags & 0x08:
            options.update(local[varnames[end]])
    except KeyError:
        raise Unsavable(f"{noun} whose arguments are gone") from None
    return (_m.generator_again, (function, tuple(args), options, *names))


def _has_begun(value: Any, prefix: str, frame: types.FrameType) -> bool:
    told = getattr(value, f"{prefix}_suspended", None)
    if told is not None:
        return bool(told)
    # Python 3.10, and asynchronous generators of 3.11.
    if frame.f_lasti < 0:
        return False
    return frame.f_code.co_code[frame.f_lasti] != opcode.opmap.get("RETURN_GENERATOR")


@maker
def generator_again(function: Any, args: tuple[Any, ...], options: dict[str, Any], name: str, qualname: str) -> Any:
    made = function(*args, **options)
    made.__name__, made.__qualname__ = name, qualname
    return made


@maker
def generator_over(prefix: str, name: str, qualname: str) -> Any:
    made: Any
    if prefix == "gi":
        made = _no_values()
        next(made, None)
    elif prefix == "cr":
        made = _nothing()
        made.close()
    else:
        made = _no_items()
        closing = made.aclose()
        try:
            closing.send(None)
        except StopIteration:
            pass
    made.__name__, made.__qualname__ = name, qualname
    return made


def _no_values() -> Any:
    yield from ()


async def _nothing() -> None:
    """End at once."""


async def _no_items() -> Any:
    return
    yield


# --- threads and executors ---------------------------------------------------------------------------------


def thread(value: Any) -> Any:
    threading: Any = sys.modules["threading"]
    if value is threading.main_thread():
        return (_m.main_thread, ())
    if any(value is each for each in _running):
        raise Unsavable("a running thread")
    if type(value) is threading._DummyThread or not vars(value).get("_initialized"):
        raise Unsavable("a thread that Python did not start, or that is not fully created")
    plain = vars(threading.Thread())
    own = vars(value)
    state = {
        "name": value.name,
        "daemon": value.daemon,
        "given": {name: own[f"_{name}"] for name in ("target", "args", "kwargs") if f"_{name}" in own},
        "ended": value.ident if value._started.is_set() else None,
        "own": {name: each for name, each in own.items() if name not in plain},
    }
    return (_m.thread_again, (type(value),), state, None, None, _m.thread_state)


@maker
def main_thread() -> Any:
    import threading

    return threading.main_thread()


@maker
def thread_again(cls: type) -> Any:
    return object.__new__(cls)


@maker
def thread_state(target: Any, state: dict[str, Any]) -> None:
    import threading

    threading.Thread.__init__(target, name=state["name"], daemon=state["daemon"], **state["given"])
    if state["ended"] is not None:
        # An ended thread has other attributes in each version, so start one that ends at once.
        target.run = _do_nothing
        threading.Thread.start(target)
        threading.Thread.join(target)
        del target.run
        target._ident = state["ended"]
        for name in ("target", "args", "kwargs"):
            if name not in state["given"]:
                vars(target).pop(f"_{name}", None)
    vars(target).update(state["own"])


def _do_nothing() -> None:
    """Do nothing, in a thread that has already ended."""


def thread_pool(value: Any) -> Any:
    if value._shutdown:
        busy = any(each is other for each in value._threads for other in _running)
    else:
        # A thread that is not idle has work, or has not reported its end yet.
        busy = value._work_queue.qsize() > 0 or len(value._threads) > value._idle_semaphore._value
    if busy or value._broken:
        raise Unsavable("an executor that has work to do, or is broken")
    initializer, initargs = _given_to(value)
    made = (value._max_workers, value._thread_name_prefix, initializer, initargs, bool(value._shutdown))
    return (_m.thread_pool_again, made)


def _given_to(value: Any) -> tuple[Any, Any]:
    if hasattr(value, "_initializer"):
        return value._initializer, value._initargs
    # Since 3.14 they are in the closure of a function.
    make = value._create_worker_context
    cells = dict(zip(make.__code__.co_freevars, make.__closure__ or (), strict=True))
    return cells["initializer"].cell_contents, cells["initargs"].cell_contents


@maker
def thread_pool_again(workers: int, prefix: str, initializer: Any, initargs: Any, over: bool) -> Any:
    import concurrent.futures

    made = concurrent.futures.ThreadPoolExecutor(workers, prefix, initializer, initargs)
    if over:
        made.shutdown(wait=False)
    return made


def future(value: Any) -> Any:
    if value._state in ("PENDING", "RUNNING"):
        raise Unsavable("a future without a result yet")
    return NotImplemented


def process_pool(value: Any) -> Any:
    if value._pending_work_items or value._broken:
        raise Unsavable("an executor that has work to do, or is broken")
    options = {"initializer": value._initializer, "initargs": value._initargs}
    if getattr(value, "_max_tasks_per_child", None) is not None:
        options["max_tasks_per_child"] = value._max_tasks_per_child
    method = value._mp_context.get_start_method()
    return (_m.process_pool_again, (value._max_workers, method, options, bool(value._shutdown_thread)))


@maker
def process_pool_again(workers: int, method: str, options: dict[str, Any], over: bool) -> Any:
    import concurrent.futures
    import multiprocessing

    context = multiprocessing.get_context(method)
    made = concurrent.futures.ProcessPoolExecutor(workers, context, **options)
    if over:
        made.shutdown(wait=False)
    return made


# --- sockets -----------------------------------------------------------------------------------------------

OPTIONS = ("SO_REUSEADDR", "SO_REUSEPORT", "SO_KEEPALIVE", "SO_BROADCAST")
"""Options that are restored. Each is a number."""


def socket(value: Any) -> Any:
    """Reduce an unconnected socket. It is bound to its address again."""
    library: Any = sys.modules["_socket"]
    kind: Any = type(value)
    if kind is not loaded("socket", "socket"):
        raise Unsavable("a socket of another class")
    made = (int(value.family), int(value.type), value.proto)
    if value.fileno() < 0:
        return (_m.socket_again, (*made, None))
    try:
        value.getpeername()
    except OSError:
        connected = False
    else:
        connected = True
    if connected:
        raise Unsavable("a socket: the other end knows this process only")
    unnamed = {library.AF_INET: ("0.0.0.0", 0), library.AF_INET6: ("::", 0, 0, 0), library.AF_UNIX: ""}
    if value.family not in unnamed:
        raise Unsavable("a socket of an unknown address family")
    address = value.getsockname()
    general = library.SOL_SOCKET
    state = {
        "timeout": value.gettimeout(),
        "options": [(name, value.getsockopt(general, getattr(library, name))) for name in OPTIONS],
        "address": address if address != unnamed[value.family] else None,
        "listens": bool(value.getsockopt(general, library.SO_ACCEPTCONN)),
    }
    return (_m.socket_again, (*made, state))


@maker
def socket_again(family: int, kind: int, proto: int, state: dict[str, Any] | None) -> Any:
    import socket

    made = socket.socket(family, kind, proto)
    if state is None:
        made.close()
        return made
    try:
        for name, value in state["options"]:
            made.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        if state["address"] is not None:
            made.bind(state["address"])
        if state["listens"]:
            made.listen()
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"{error.strerror}: {state['address']}") from None
    made.settimeout(state["timeout"])
    return made


vars(_m).update(MAKERS)

"""Taking apart what belongs to running code, and making it again: as far as nothing of it is under way.

A traceback is made again with its lines, not with the variables of its frames. A generator or coroutine that has not
begun is a function and its arguments; a thread that does not run, an executor that has nothing to do, a socket that
nobody is connected to are made anew, as they were. What is in the middle of something is refused with the reason.
"""

import gc
import opcode
import sys
import types
from typing import Any

from ingle_worker.snapshot import definitions
from ingle_worker.snapshot.rebuild import CURRENT, MAGIC, MAKERS, maker
from ingle_worker.snapshot.reduce_builtin import Unsavable, loaded

_m: Any = types.SimpleNamespace()
_TEMPLATE = (lambda: None).__code__
_NOP = bytes([opcode.opmap["NOP"], 0])

GENERATORS: dict[type, str] = {
    types.GeneratorType: "gi",
    types.CoroutineType: "cr",
    types.AsyncGeneratorType: "ag",
}
"""What code can be suspended in, and how the names of its attributes begin."""

_NOUNS = {"gi": "a generator", "cr": "a coroutine", "ag": "an asynchronous generator"}

_functions: dict[int, tuple[Any, types.FunctionType]] = {}
"""Those made for generators, in a copy that is saved and goes."""

_running: list[Any] = []
"""Threads that ran in the session when this copy of it was made: here they all seem to have ended."""


def begin(running: list[Any]) -> None:
    _running[:] = running


def is_one(kind: type) -> bool:
    """Whether objects of this type are taken apart here."""
    return kind is types.TracebackType or kind in GENERATORS or _way_of(kind) is not None


def parts_of(value: Any) -> list[Any]:
    """What is saved with it; nothing for what cannot be saved."""
    kind = type(value)
    try:
        if kind in GENERATORS:
            taken = suspended(value)
        elif kind is types.TracebackType:
            return []
        else:
            way = _way_of(kind)
            taken = way(value) if way is not None else ()
    except Unsavable:
        return []
    return list(taken[1:3])


def way_of(kind: type) -> Any:
    """What takes an object of this type apart, if it is one of these."""
    return suspended if kind in GENERATORS else _way_of(kind)


def _way_of(kind: type) -> Any:
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
        # Here and there it is None, for what has no line.
        line = following.tb_lineno if isinstance(following.tb_lineno, int) else code.co_firstlineno
        entries.append((about, len(code.co_code), where, following.tb_lasti, line))
        following = following.tb_next
    return (_m.traceback_again, (MAGIC, entries))


@maker
def traceback_again(magic: bytes, entries: list[tuple[dict[str, Any], int, str | None, int, int]]) -> Any:
    """None where a frame cannot be had without running its code."""
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
            # It is never run; but where in a line an error was is found by the place in the code.
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
    """A generator, coroutine or asynchronous generator that has not begun, or is over."""
    prefix = GENERATORS[type(value)]
    noun = _NOUNS[prefix]
    frame = getattr(value, f"{prefix}_frame")
    names = (value.__name__, value.__qualname__)
    if frame is None:
        return (_m.generator_over, (prefix, *names))
    if getattr(value, f"{prefix}_running") or _has_begun(value, prefix, frame):
        raise Unsavable(f"{noun} that has begun: its place in running code cannot be saved")
    code = getattr(value, f"{prefix}_code")
    parts = [*gc.get_referents(value), *gc.get_referents(frame)]
    function = next((each for each in parts if type(each) is types.FunctionType and each.__code__ is code), None)
    if function is None:
        # 3.10 keeps no function. What it closes over stands last in a frame that has not begun.
        cells = tuple(gc.get_referents(frame)[-len(code.co_freevars) :]) if code.co_freevars else ()
        if not all(type(each) is types.CellType for each in cells):
            raise Unsavable(f"{noun} whose function this Python does not tell")
        made = types.FunctionType(code, frame.f_globals, value.__name__, None, cells)
        # One for each, whoever asks: what it shares with others is found by walking through it.
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
    # 3.10, and asynchronous generators of 3.11.
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
    """Ends at once."""


async def _no_items() -> Any:
    return
    yield


# --- threads and executors ---------------------------------------------------------------------------------


def thread(value: Any) -> Any:
    threading: Any = sys.modules["threading"]
    if value is threading.main_thread():
        return (_m.main_thread, ())
    if any(value is each for each in _running):
        raise Unsavable("a thread that runs")
    if type(value) is threading._DummyThread or not vars(value).get("_initialized"):
        raise Unsavable("a thread that Python has not begun, or that was not made to its end")
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
        # The only way to a thread that has ended, whatever a version keeps in it, is one that ends.
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
    """What a thread runs that has run already."""


def thread_pool(value: Any) -> Any:
    if value._shutdown:
        busy = any(each is other for each in value._threads for other in _running)
    else:
        # A thread that is not idle was given something, or has not said yet that it is done with it.
        busy = value._work_queue.qsize() > 0 or len(value._threads) > value._idle_semaphore._value
    if busy or value._broken:
        raise Unsavable("an executor that has work to do, or is broken")
    initializer, initargs = _given_to(value)
    made = (value._max_workers, value._thread_name_prefix, initializer, initargs, bool(value._shutdown))
    return (_m.thread_pool_again, made)


def _given_to(value: Any) -> tuple[Any, Any]:
    if hasattr(value, "_initializer"):
        return value._initializer, value._initargs
    # From 3.14 on, inside of what makes the context of a thread.
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
        raise Unsavable("a future whose result is still to come")
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
"""What is put back; each is a number."""


def socket(value: Any) -> Any:
    """One that nobody is connected to; where it has an address, it takes that again."""
    library: Any = sys.modules["_socket"]
    kind: Any = type(value)
    if kind is not loaded("socket", "socket"):
        raise Unsavable("a socket of a kind of its own")
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
        raise Unsavable("a socket of a family that is not known here")
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

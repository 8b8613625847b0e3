"""What belongs to running code comes back as far as nothing of it was under way; the rest is named."""

import pytest
from test_saving import run, through_disk

from ingle.events import Skipped
from ingle.service import Service
from ingle.sessions.persistence import transfer

pytestmark = [pytest.mark.req("state.save"), pytest.mark.req("state.load")]

FAILING = """
import traceback
def inner(a):
    return a / 0
def outer():
    return [1,
            inner(1)]
try:
    try: outer()
    except ZeroDivisionError as error: raise OSError(2, 'no', 'file') from error
except OSError as error:
    kept = error
trace = kept.__traceback__
text = "".join(traceback.format_exception(kept))
"""


async def test_an_exception_comes_back_with_the_lines_of_its_traceback(service: Service) -> None:
    await through_disk(service, FAILING)
    again = "''.join(traceback.format_exception(kept)).replace(' before loading', '')"
    # Where in a line it was, Python says from 3.11 on.
    carets = "__import__('sys').version_info < (3, 11) or '~~^~~' in text"
    assert await run(service, f"print({again} == text, text.count('  File'), {carets})") == "True 4 True\n"
    assert await run(service, "kept.__traceback__ is trace, kept.errno, kept.filename, kept.__cause__.args") == (
        "(True, 2, 'file', ('division by zero',))"
    )
    assert await run(service, "trace.tb_frame.f_globals is globals(), trace.tb_frame.f_locals") == "(True, {})"


async def test_exceptions_of_every_kind_keep_what_they_were_told(service: Service) -> None:
    await through_disk(
        service,
        "class Mine(ValueError):\n    def __reduce__(self): return (Mine, (7,), {'more': 8})\n"
        "import errno\nall_of_them = []\n"
        "for make in (\n"
        "    lambda: open('/nowhere/x'), lambda: __import__('nowhere_x'), lambda: compile('a b', 'f', 'exec'),\n"
        "    lambda: b'\\xff'.decode(), lambda: {}['x'], lambda: (_ for _ in ()).throw(Mine(1)), lambda: nowhere_y,\n"
        "    lambda: exit(3), lambda: next(iter(())),\n"
        "):\n"
        "    try: make()\n    except BaseException as error: all_of_them.append(error)\n"
        "def told(): return [(type(each).__name__, str(each), each.__traceback__.tb_lineno) for each in all_of_them]\n"
        "before = told()",
    )
    assert await run(service, "len(before), told()[:5] == before[:5], told()[6:] == before[6:]") == "(9, True, True)"
    assert await run(service, "all_of_them[0].errno == errno.ENOENT, all_of_them[1].name, all_of_them[3].start") == (
        "(True, 'nowhere_x', 0)"
    )
    # What a class says of itself is believed.
    assert await run(service, "all_of_them[5].args, all_of_them[5].more, all_of_them[7].code") == "((7,), 8, 3)"


async def test_what_has_not_begun_is_a_function_and_its_arguments(service: Service) -> None:
    await through_disk(
        service,
        "import asyncio\n"
        "def values(a, /, b, *rest, key, **more):\n    yield a; yield b; yield rest; yield key; yield more\n"
        "g = values(1, 2, 3, key=4, other=5)\nh = g\nsquares = (n * n for n in [3, 4])\n"
        "def counting():\n    n = [0]\n    def up():\n        n[0] += 1\n        yield n[0]\n    return up(), n\n"
        "up, n = counting()\nasync def later(x): return x + 1\nc = later(4)\n"
        "async def items():\n    yield 7\na = items()\nover = values(1, 2, key=3); list(over)\n"
        "done = later(1); done.close()\nended = items()\nasync for each in ended: pass",
    )
    assert await run(service, "g is h, list(g)") == "(True, [1, 2, (3,), 4, {'other': 5}])"
    assert await run(service, "list(squares), next(up), n, await c, [each async for each in a]") == (
        "([9, 16], 1, [1], 5, [7])"
    )
    assert await run(service, "list(over), over.__name__, c.__qualname__, [each async for each in ended]") == (
        "([], 'values', 'later', [])"
    )
    assert await run(service, "try: done.send(None)\nexcept RuntimeError as error: print(error)") == (
        "cannot reuse already awaited coroutine\n"
    )


async def test_threads_that_do_not_run_and_executors_with_nothing_to_do(service: Service) -> None:
    await through_disk(
        service,
        "import threading, concurrent.futures as futures\nlog = []\n"
        "waiting = threading.Thread(target=log.append, args=(5,), name='mine', daemon=True)\n"
        "class Own(threading.Thread):\n"
        "    def __init__(self, n): super().__init__(); self.n = n; self.runs = 0\n"
        "    def run(self): self.runs += 1\n"
        "ended = Own(7); ended.start(); ended.join(); its = ended.ident\nme = threading.current_thread()\n"
        "pool = futures.ThreadPoolExecutor(3, 'workers', log.append, (0,)); pool.submit(int).result(); log.clear()\n"
        "over = futures.ThreadPoolExecutor(1); over.shutdown()\nprocesses = futures.ProcessPoolExecutor(2)\n",
    )
    assert await run(service, "waiting.start(); waiting.join(); waiting.name, waiting.daemon, log") == (
        "('mine', True, [5])"
    )
    assert await run(service, "ended.n, ended.runs, ended.is_alive(), ended.ident == its") == "(7, 1, False, True)"
    assert await run(service, "me is threading.main_thread()") == "True"
    assert await run(service, "pool.submit(pow, 2, 3).result(), pool._max_workers, log") == "(8, 3, [5, 0])"
    assert await run(service, "processes.submit(pow, 2, 4).result()") == "16"
    assert await run(service, "try: over.submit(int)\nexcept RuntimeError as error: print(error)") == (
        "cannot schedule new futures after shutdown\n"
    )


async def test_sockets_that_nobody_is_connected_to(service: Service) -> None:
    await through_disk(
        service,
        "import socket\ns = socket.socket(); s.settimeout(3); s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)\n"
        "server = socket.create_server(('127.0.0.1', 0)); at = server.getsockname()\n"
        "closed = socket.socket(); closed.close()",
    )
    options = "s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)"
    assert await run(service, f"s.gettimeout(), {options}, closed.fileno()") == "(3.0, 1, -1)"
    assert await run(service, "s.connect(at); server.accept()[0].send(b'hi'); s.recv(2)") == "b'hi'"


@pytest.mark.level("none", "in a sandbox every session has a network of its own, where the address is free")
async def test_an_address_that_is_taken_is_named(service: Service) -> None:
    await service.create_session("main")
    await run(service, "import socket\nserver = socket.create_server(('127.0.0.1', 0)); n = 5")
    port = await run(service, "server.getsockname()[1]")
    await service.save_session("main", "calc")
    restored = await service.load_session("calc", "other")
    assert restored.skipped == [
        Skipped("server", "socket.socket", f"OSError: [Errno 98] Address already in use: ('127.0.0.1', {port})")
    ]
    assert await run(service, "n", "other") == "5"


async def test_what_is_under_way_is_named(service: Service) -> None:
    await service.create_session("main")
    await run(
        service,
        "import asyncio, threading, socket, concurrent.futures as futures\nstop = threading.Event(); n = 5\n"
        "running = threading.Thread(target=stop.wait, daemon=True); running.start()\n"
        "class Own(threading.Thread): pass\nown = Own(target=stop.wait, daemon=True); own.start()\n"
        "begun = (n for n in [1, 2]); next(begun)\npool = futures.ThreadPoolExecutor(1); job = pool.submit(stop.wait)\n"
        "one, other = socket.socketpair()\ntask = asyncio.ensure_future(asyncio.sleep(600)); await asyncio.sleep(0)",
    )
    saved = await service.save_session("main", "calc")
    await run(service, "stop.set()")
    told = {each.name: each.reason for each in saved.skipped}
    connected = "a socket: the other end knows this process only"
    assert told == {
        "running": "a running thread",
        "own": "a running thread",
        "begun": "a generator that has started: its position in the code cannot be saved",
        "job": "a future without a result yet",
        "pool": "an executor that has work to do, or is broken",
        "task": "it belongs to the event loop, which is not saved",
        "one": connected,
        "other": connected,
    }


WAITING = """
import threading
class Waits:
    def __reduce__(self):
        threading.Event().wait()
class Slow:
    def __reduce__(self):
        import time
        time.sleep(0.02)
        return Slow, ()
waits, beside, many = Waits(), [1, 2], [Slow() for _ in range(50)]
group = [waits, beside]
"""


async def test_an_object_that_waits_in_its_own_code_costs_only_itself(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "CALL_SECONDS", 0.3)
    await service.create_session("main")
    await run(service, WAITING)
    saved = await service.save_session("main", "kept")
    assert sorted(each.name for each in saved.skipped) == ["group", "waits"]
    assert {each.reason for each in saved.skipped} == {
        "its own code did not end within 0.3 s; a copy has no other threads"
    }
    await service.load_session("kept", "again")
    # Together the others took longer than one call may.
    result = await service.execute("again", "beside, len(many)")
    assert result.result == {"text/plain": "([1, 2], 50)"}

"""Cells that attack their own session: each costs that session at most, and the next cell works.

Beside every one of them a neighbour session prints numbers all the time; none may be missing afterwards, and the
neighbour's own next cell must work. Where the worker survives, its variables must; where it does not, the answer
says what was lost.
"""

import asyncio
from dataclasses import dataclass, replace

import pytest

from ingle import events
from ingle.service import Service
from ingle.sessions.process.variable_names import MAX_NAME_CHARS, MAX_NAMES
from ingle.settings import Settings
from support.internals import worker_of
from support.service import make_settings
from support.waiting import until

FIND_WIRE = (
    "import os\n"
    "def is_socket(fd): return fd > 2 and os.path.realpath(f'/proc/self/fd/{fd}').rpartition('/')[2][:6] == 'socket'\n"
    "wire = next(filter(is_socket, map(int, os.listdir('/proc/self/fd'))))\n"
)
NEIGHBOUR = """
import os, time
n = 0
while not os.path.exists({stop!r}):
    print(n)
    n += 1
    time.sleep(0.002)
"""


@dataclass(frozen=True)
class Attack:
    name: str
    code: str
    status: str
    """How the cell ends; several are written with | between them."""
    survives: bool
    """Whether the worker, and with it the session's variables, outlives the cell."""
    timeout: float | None = None
    wait: float = 60.0
    in_a_room: str | None = None
    """How the cell ends where its init is the first process of a namespace, which nothing in there can hurt.

    Its signals are refused where init is another user's, and ignored elsewhere.
    """


ATTACKS = [
    Attack("exit at once", "import os; os._exit(1)", "exit", False),
    Attack("segfault", "import ctypes; ctypes.string_at(0)", "exit", False),
    Attack("SIGKILL to itself", "import os; os.kill(os.getpid(), 9)", "exit", False),
    Attack("SIGKILL to its parent", "import os, time; os.kill(os.getppid(), 9); time.sleep(5)", "exit", False,
           in_a_room="ok|error"),
    Attack("closes every descriptor from 3 up", "import os; os.closerange(3, 1000)", "exit", False),
    Attack("puts stdout over the wire", FIND_WIRE + "os.dup2(1, wire)", "exit", False),
    Attack("garbage on the wire", FIND_WIRE + "os.write(wire, b'\\xff' * 100)", "exit", False),
    Attack("deep JSON on the wire",
           FIND_WIRE + "h = b'[' * 200000\nimport struct\n"
           "os.write(wire, struct.pack('>IIB', len(h), len(h), 73) + h)\nimport time; time.sleep(60)",
           "exit", False),
    Attack("asks, and never takes the answers",
           FIND_WIRE + "import struct\nh = b'{\"ticket\":9,\"slots\":[' + b'1,' * 63 + b'1]}'\n"
           "while True: os.write(wire, struct.pack('>IIB', len(h), len(h), 82) + h)", "exit", False),
    Attack("asks for the ends of no copy",
           FIND_WIRE + "import struct\nh = b'{\"ticket\":1,\"slots\":[]}'\n"
           "os.write(wire, struct.pack('>IIB', len(h), len(h), 82) + h)\nimport time; time.sleep(60)", "exit", False),
    Attack("a frame of 4 GB announced",
           FIND_WIRE + "os.write(wire, b'\\xff\\xff\\xff\\xff\\0\\0\\0\\0\\x49')\nimport time; time.sleep(60)",
           "exit", False),
    Attack("a forged result of another cell", FIND_WIRE + "import struct\nh = b'{\"cell\":1,\"status\":\"ok\",'"
           "b'\"execution_time\":0}'\nos.write(wire, struct.pack('>IIB', len(h), len(h), 73) + h)", "ok", True),
    Attack("ignores SIGINT for ever", "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
           "interrupted", False, timeout=0.2),
    Attack("stops itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
           "interrupted", True, timeout=0.2),
    Attack("stops its init", "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nwhile True: pass",
           "interrupted", False, timeout=0.2, in_a_room="interrupted|error"),
    Attack("clears sys.modules", "import sys; sys.modules.clear()", "ok", True),
    Attack("deletes __builtins__", "del __builtins__", "ok", True),
    Attack("sets __builtins__ to None", "__builtins__ = None", "ok", True),
    Attack("sys.stdout is None", "import sys; sys.stdout = None", "ok", True),
    Attack("closes stdout", "import os; os.close(1); os.close(2); os.close(0)", "ok", True),
    Attack("print and Exception are None", "import builtins; builtins.print = builtins.Exception = None", "ok", True),
    Attack("__repr__ raises", "class A:\n def __repr__(self): raise ValueError('no')\nA()", "error", True),
    Attack("__repr__ loops", "class A:\n def __repr__(self):\n  while 1: pass\nA()", "interrupted", True, timeout=0.2),
    Attack("__repr__ of 1 GB", "class A:\n def __repr__(self): return 'x' * 10**9\nA()", "ok", True),
    Attack("__str__ of an exception raises",
           "class E(Exception):\n def __str__(self): raise KeyError(1)\nraise E", "error", True),
    Attack("__str__ of an exception loops",
           "class E(Exception):\n def __str__(self):\n  while True: pass\nraise E", "interrupted", True, timeout=0.2),
    Attack("recursion to the limit", "def f(): f()\nf()", "error", True),
    Attack("lone surrogates", "print('\\ud800'); '\\udfff'", "ok", True),
    Attack("half a character", "import os; os.write(1, b'\\xe2\\x82')", "ok", True),
    Attack("a line of 100 MB", "import os\nfor _ in range(100): os.write(1, b'x' * 10**6)", "ok", True),
    Attack("threads that print for ever",
           "import threading, time\ndef go():\n while True:\n  print('noise'); time.sleep(0.001)\n"
           "for _ in range(4): threading.Thread(target=go, daemon=True).start()", "ok", True),
    Attack("fork, both return", "import os\npid = os.fork()", "ok", True),
    Attack("fork, the child raises", "import os\nif os.fork() == 0: raise ValueError('child')", "ok", True),
    Attack("an exit handler hangs", "import atexit, time; atexit.register(time.sleep, 600); exit()", "exit", False),
    Attack("a finalizer runs a minute",
           "import time\nclass A:\n def __del__(self): time.sleep(60)\na = A(); exit()", "exit", False),
    Attack("a hundred thousand variables", "for i in range(100_000): globals()[f'v{i}'] = i", "ok", True),
    Attack("a fork bomb", "import os, resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n"
           "limit = 200\nmade = 0\nwhile made < limit:\n"
           " if os.fork() == 0:\n  import time\n  while True: time.sleep(60)\n made += 1\nwhile True: pass",
           "interrupted|exit", False, timeout=40),
    Attack("a memory bomb", "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
           "hoard = []\nwhile True: hoard.append(bytearray(2**24))", "error", True),
    Attack("kills its process group", "import os, signal; os.killpg(0, signal.SIGKILL)", "exit", False),
    Attack("sets a profile function that raises",
           "import sys\ndef bad(*a): raise RuntimeError('profile')\nsys.setprofile(bad)", "ok|error", True),
]  # fmt: skip


@pytest.fixture
def settings() -> Settings:
    return make_settings(preload=[], pool=2, timeout_grace=0.5, exit_grace=0.5, timeline_memory=1 << 20)


@pytest.mark.req("exit.crash", "cell.shadow")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_a_hostile_cell_costs_its_own_session_only(service: Service, tmp_path, attack: Attack) -> None:
    if attack.in_a_room is not None and (await service.isolation()).level == "sandbox":
        attack = replace(attack, status=attack.in_a_room, survives=True)
    stop = tmp_path / "stop"
    await service.create_session("neighbour")
    await service.create_session("hostile")
    streaming = await service.begin("neighbour", NEIGHBOUR.format(stop=str(stop)))
    async for event in service.events("neighbour"):
        if isinstance(event, events.Stdout):
            break
    assert (await service.execute("hostile", "kept = 42")).success

    result = await service.execute("hostile", attack.code, timeout=attack.timeout, wait=attack.wait)
    assert result.status in attack.status.split("|"), result
    after = await service.execute("hostile", "6 * 7", wait=60)
    assert (after.status, after.result) == ("ok", {"text/plain": "42"}), after
    state = await service.execute("hostile", "kept")
    if attack.survives:
        assert state.result == {"text/plain": "42"}, state
    else:
        assert state.error is not None
        assert state.error.name == "NameError"
        assert any("new process" in notice for notice in (*result.notices, *after.notices)), (result, after)

    stop.touch()
    ended = await service.wait("neighbour", streaming, wait=60)
    assert ended.status == "ok"
    numbers = []
    async for event in service.events("neighbour"):
        if isinstance(event, events.Stdout):
            numbers.append(event.text)
        elif isinstance(event, events.Done):
            break
    shown = "".join(numbers).split()
    assert shown == [str(n) for n in range(len(shown))]
    assert (await service.execute("neighbour", "n")).result == {"text/plain": str(len(shown))}


async def test_much_output_leaves_the_session_and_its_neighbour_working(service: Service) -> None:
    await service.create_session("loud")
    await service.create_session("quiet")
    cell = await service.begin("loud", "import os\nfor _ in range(150): os.write(1, b'x' * 999_999 + b'\\n')")
    answers = 0
    while (await service.wait("loud", cell, wait=0)).status == "running":
        assert (await service.execute("quiet", "1 + 1")).result == {"text/plain": "2"}
        answers += 1
        await asyncio.sleep(0.01)
    result = await service.wait("loud", cell)
    assert result.status == "ok"
    assert result.truncated.stdout + len(result.stdout) == 150_000_000
    assert answers > 0
    assert (await service.execute("loud", "1 + 1")).result == {"text/plain": "2"}


FLOOD = """
import os, socket, struct
said = b'{"wait":7}'
frames = (struct.pack(">IIB", len(said), len(said), 70) + said) * 10_000
way = socket.socket(fileno=os.dup(wire))
while True:
    os.write(1, b".")
    way.sendall(frames)
"""


async def test_who_floods_the_wire_gives_way_to_others(service: Service) -> None:
    """What it says takes the host longer to read than it takes to be said: others had to wait for seconds."""
    for name in ("flood", "neighbour"):
        await service.create_session(name)
    await service.execute("flood", FIND_WIRE + FLOOD, wait=0)
    worker = worker_of(service, "flood")
    assert await until(lambda: worker.output.resting, 60)
    assert (await service.execute("neighbour", "1 + 1")).result == {"text/plain": "2"}
    assert await until(lambda: not worker.output.resting, 60)
    await service.end_session("flood")


NAMES = (
    FIND_WIRE
    + """
import json, socket, struct
way = socket.socket(fileno=os.dup(wire))
names = [f"{CELL}_{number}" for number in range(60_000)] + ["x" * 100_000 + str(number) for number in range(10)]
h = json.dumps({"cell": CELL, "status": "ok", "execution_time": 0, "names_added": names}).encode()
way.sendall(struct.pack(">IIB", len(h), len(h), 73) + h)
"""
)


async def test_who_makes_up_names_fills_no_memory(service: Service) -> None:
    await service.create_session("liar")
    for cell in range(1, 5):
        assert (await service.execute("liar", NAMES.replace("CELL", str(cell)))).status == "ok"
    names = (await service.get_session("liar")).variables
    assert 60_000 < len(names) <= MAX_NAMES
    assert max(map(len, names)) <= MAX_NAME_CHARS
    await service.end_session("liar")

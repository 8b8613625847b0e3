"""Trials in a sandbox: connections are held, granted folders have layers, and nothing of the session is reached."""

from pathlib import Path

import pytest

from ingle import errors
from ingle.events import SessionInfo
from ingle.nodes.local import LocalNode
from ingle.requests import NewSession
from ingle.service import Service
from ingle.settings import Settings
from support.service import make_settings

pytestmark = [pytest.mark.both_levels, pytest.mark.req("trial.discard")]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "granted").mkdir()
    (tmp_path / "granted" / "file").write_text("theirs")
    return make_settings(preload=[], pool=0, isolation="sandbox", mount=[str(tmp_path / "granted")])


async def say(service: Service, sid: str, code: str) -> str:
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout


ATTACKS = """
import mmap, os, signal, socket, subprocess
done = []
def attempt(name, function):
    try:
        function()
        done.append(name)
    except BaseException:
        pass
attempt('descriptor', lambda: os.open('stolen', os.O_CREAT | os.O_WRONLY, dir_fd=folder))
attempt('path of a descriptor', lambda: open(f'/proc/self/fd/{folder}/stolen2', 'w'))
attempt('hard link', lambda: os.link('data', '/tmp/data-link'))
attempt('signal', lambda: os.kill(parent, signal.SIGKILL))
attempt('memory', lambda: open(f'/proc/{parent}/mem', 'r+b'))
attempt('folder', lambda: os.listdir(f'/proc/{parent}/cwd'))
attempt('grant', lambda: open(granted + '/file', 'w').write('ours'))
attempt('grant link', lambda: os.link(granted + '/file', 'taken'))
attempt('socket', lambda: peer.sendall(b'from the trial'))
attempt('connection', lambda: socket.create_connection(('127.0.0.1', port), 1))
subprocess.Popen(['sh', '-c', 'while :; do echo again >> data; sleep 0.01; done'], start_new_session=True)
open('data', 'w').write('of the trial')
print(sorted(done))
"""


async def test_a_trial_reaches_nothing_of_the_session(service: Service, tmp_path: Path) -> None:
    await service.create_session("s")
    granted = str(tmp_path / "granted")
    await say(
        service,
        "s",
        "import os, socket\nopen('data', 'w').write('mine'); folder = os.open('.', os.O_RDONLY); parent = os.getpid()\n"
        f"granted = {granted!r}; server = socket.create_server(('127.0.0.1', 0)); port = server.getsockname()[1]\n"
        "peer = socket.create_connection(('127.0.0.1', port)); other = server.accept()[0]; other.setblocking(False)",
    )
    result = await service.trial("s", ATTACKS)
    assert result.error is None, result.error
    assert result.trial is not None
    assert result.trial.effect is not None
    # These have written to its own copy of the folder, and to its layer over the granted one.
    assert result.stdout == "['descriptor', 'grant', 'path of a descriptor']\n"
    notices = result.trial.effect.notices
    assert any("connections of the session that are closed" in notice for notice in notices), notices
    assert "sh" in [each.split()[0] for each in result.trial.effect.processes]
    await service.discard("s", result.trial.name)
    look = "print(sorted(os.listdir()), open('data').read(), open(granted + '/file').read())"
    assert await say(service, "s", look) == "['data'] mine theirs\n"
    read = "try: print(other.recv(100))\nexcept BlockingIOError: print('nothing')"
    assert await say(service, "s", read) == "nothing\n"


HELD = """
import ctypes, mmap, multiprocessing, os, resource, signal, socket, subprocess, tempfile, time
parent = os.getpid()
child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
reader, writer = os.pipe(); os.set_blocking(reader, False); _ = os.write(writer, b'kept')
listening = socket.socket(socket.AF_UNIX); listening.bind(f'/tmp/listening'); listening.listen()
listening.setblocking(False)
pair = socket.socketpair(); pair[0].setblocking(False)
memory = mmap.mmap(-1, 4096); lock = multiprocessing.Lock()
memory_file = os.memfd_create('file'); _ = os.write(memory_file, b'mine')
event = os.eventfd(0, os.EFD_NONBLOCK)
got = []
for number in (signal.SIGUSR1, signal.SIGIO):
    _ = signal.signal(number, lambda number, frame: got.append(number))
"""
"""What a process shares with its copies beside files."""

REACHING = """
done = []
def attempt(name, function):
    try:
        function()
        done.append(name)
    except BaseException:
        pass
def signal_by_a_socket():
    mine, other = socket.socketpair()
    fcntl.fcntl(mine, fcntl.F_SETOWN, parent)
    fcntl.fcntl(mine, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    other.send(b'x')
    time.sleep(0.05)
libc = ctypes.CDLL(None, use_errno=True)
import fcntl
_ = child.stdin.write(b'of the trial')
_ = attempt('child', child.stdin.flush)
attempt('pipe', lambda: os.write(writer, b'more'))
attempt('listening socket', lambda: listening.accept())
attempt('limits', lambda: resource.prlimit(parent, resource.RLIMIT_CPU, (1, 1)))
attempt('limits by a high address', lambda: 1 / (1 + libc.prlimit(parent, 0, ctypes.c_void_p(1 << 32), None)))
attempt('signal', lambda: signal.pidfd_send_signal(os.pidfd_open(parent), signal.SIGUSR1))
attempt('priority', lambda: os.setpriority(os.PRIO_PROCESS, parent, 15))
attempt('socket pair', lambda: pair[1].send(b'x'))
attempt('memory', lambda: memory.__setitem__(0, 88))
attempt('lock', lambda: lock.acquire(timeout=1))
attempt('memory file', lambda: os.pwrite(memory_file, b'ours', 0))
attempt('event', lambda: os.eventfd_write(event, 1))
attempt('temporary file', lambda: open('/tmp/left', 'w').close())
signal_by_a_socket()
print(sorted(done), os.read(reader, 100))
"""

LOOK = """
child.stdin.close()
print(child.stdout.read(), os.read(reader, 100), got, resource.getrlimit(resource.RLIMIT_CPU)[0] == 1)
"""


@pytest.mark.req("trial.effect")
async def test_an_effect_names_what_the_trial_had_in_common_with_the_session(service: Service) -> None:
    await service.create_session("s")
    await say(service, "s", HELD)
    result = await service.trial("s", REACHING)
    assert result.error is None, result.error
    assert result.trial is not None
    assert result.trial.effect is not None
    named = ["event", "lock", "memory", "memory file", "priority", "socket pair", "temporary file"]
    # A closed pipe and a pipe of its own take what is written.
    assert result.stdout == f"{sorted(['child', 'pipe', *named])} b'keptmore'\n"
    told = {each.partition(": ")[0]: each.partition(": ")[2] for each in result.trial.effect.notices}
    assert list(told) == [
        "connections of the session that are closed",
        "deleted files that are open, and shared with the original",
        "connections that are shared with the original",
        "memory that is shared with the original",
        "shared with the session, so that what was done there stays",
        "the priority, the policy or the cores of the session's process have changed",
    ]
    closed, files, shared, memory, folders, _ = told.values()
    assert (closed.count("a pipe"), "at /tmp/listening" in closed, files) == (2, True, "/memfd:file")
    assert (shared.count("a socket pair"), "eventfd" in shared, memory.count("4096 bytes")) == (2, True, 2)
    assert folders == "/tmp"
    assert result.notices == []
    await service.discard("s", result.trial.name)
    assert await say(service, "s", LOOK) == "b'' b'kept' [] False\n"


async def test_a_session_that_shares_nothing_has_an_effect_without_notices(service: Service) -> None:
    await service.create_session("s")
    await say(service, "s", "import asyncio; await asyncio.to_thread(print)")
    result = await service.trial("s", "x = 1; await asyncio.sleep(0); _ = await asyncio.to_thread(print)")
    assert result.error is None, result.error
    assert result.trial is not None
    assert result.trial.effect is not None
    assert (result.notices, result.trial.effect.notices) == ([], [])
    await service.discard("s", result.trial.name)


@pytest.mark.req("probe.clean")
async def test_a_clean_probe_has_no_network_unless_it_is_allowed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    create = LocalNode.create

    async def noted(node: LocalNode, new: NewSession) -> SessionInfo:
        asked.append(new.network)
        return await create(node, new)

    monkeypatch.setattr(LocalNode, "create", noted)
    await service.create_session("s")
    assert (await service.probe("s", "1", clean=True)).success
    assert (await service.probe("s", "1", clean=True, network="allowed")).success
    assert asked == [None, "none", None]


async def test_hosts_that_a_trial_asks_for_are_recorded(service: Service) -> None:
    await service.create_session("s")
    ask = (
        "import urllib.request\n"
        "try: urllib.request.urlopen('http://example.com/', timeout=5)\nexcept OSError as error: print(error)"
    )
    result = await service.trial("s", ask)
    assert result.stdout == (
        "HTTP Error 403: example.com:80 is held by this trial; run it with --network allowed, or without a trial\n"
    )
    assert result.trial is not None
    assert result.trial.effect is not None
    assert result.trial.effect.hosts is not None
    assert [(each.host, each.reached, each.refused) for each in result.trial.effect.hosts] == [("example.com:80", 0, 1)]
    await service.commit("s", result.trial.name)
    # After the commit the session's own rules hold again.
    refused = await service.execute("s", "urllib.request.urlopen('http://example.com/', timeout=5)")
    assert refused.error is not None
    assert any("example.com:80 is not on the list of hosts" in notice for notice in refused.notices)


async def test_connections_past_the_proxy_are_counted(service: Service) -> None:
    await service.create_session("s")
    code = """
import socket
for family, kind, to in (
    (socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)),
    (socket.AF_INET, socket.SOCK_DGRAM, ("198.51.100.1", 53)),
    (socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 80)),
):
    try: socket.socket(family, kind).connect(to)
    except OSError as error: print(error.errno)
"""
    result = await service.trial("s", code)
    assert result.stdout == "101\n" * 3
    assert result.trial is not None
    assert result.trial.effect is not None
    assert result.trial.effect.notices == [
        "packets past ingle's proxy, such as DNS, were not sent: 3; their hosts are not known"
    ]
    await service.discard("s", result.trial.name)
    # The next trial has a network of its own.
    quiet = await service.trial("s", "x = 1")
    assert quiet.trial is not None
    assert quiet.trial.effect is not None
    assert quiet.trial.effect.notices == []


async def test_a_commit_gives_the_granted_folder_back(service: Service, tmp_path: Path) -> None:
    await service.create_session("s")
    result = await service.trial("s", f"folder = {str(tmp_path / 'granted')!r}; x = open(folder + '/file').read()")
    assert result.trial is not None
    await service.commit("s", result.trial.name)
    assert await say(service, "s", "open(folder + '/file', 'w').write('changed'); print(x)") == "theirs\n"
    assert (tmp_path / "granted" / "file").read_text() == "changed"


async def test_what_cannot_be_held_apart_is_refused(tmp_path: Path, apart: Path) -> None:
    (tmp_path / "granted").mkdir(exist_ok=True)
    open_settings = make_settings(preload=[], pool=0, isolation="limits", mount=[str(tmp_path / "granted")])
    async with Service.local(open_settings, apart / "other") as other:
        await other.create_session("s")
        with pytest.raises(errors.TrialRefused, match="the session may write to"):
            await other.trial("s", "1", network="allowed")


@pytest.mark.req("trial.commit")
async def test_the_last_commit_that_the_kernel_allows_is_told(service: Service) -> None:
    """Each commit nests namespaces one level deeper, and the kernel allows 32. A new process begins anew."""
    await service.create_session("s")
    for number in range(40):
        try:
            result = await service.trial("s", f"n = {number}")
        except errors.StartFailed as error:
            refusal = error.message
            break
        assert result.trial is not None
        await service.commit("s", result.trial.name)
    assert "save the session and load it anew" in refusal
    assert number > 20
    assert (await service.execute("s", "n")).result == {"text/plain": str(number - 1)}
    await service.save_session("s", "kept")
    await service.load_session("kept", "anew")
    result = await service.trial("anew", "n += 1")
    assert result.trial is not None
    await service.commit("anew", result.trial.name)
    assert (await service.execute("anew", "n")).result == {"text/plain": str(number)}
    await service.delete_snapshot("kept")

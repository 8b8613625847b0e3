"""What the tests share: a service on a folder of its own, and the proof that nothing is left after it."""

import asyncio
import contextlib
import getpass
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from ingle.events import Result
from ingle.nodes.local import LocalNode
from ingle.service import Service
from ingle.settings import Settings
from support.server import Server

MARK = "LC_INGLETEST"
"""In the environment of every process that a test starts: of this kind every level keeps those that there are."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--isolation", default="none", help="The level of sessions, where a test names none.")


def pytest_configure(config: pytest.Config) -> None:
    """For servers that tests start, and for settings that they make."""
    config.addinivalue_line(
        "markers", "level(name, why): about this level of isolation alone; left out where --isolation is another"
    )
    level = config.getoption("--isolation")
    os.environ.update(INGLE_ISOLATION=level, INGLE_KEEP_ENV=MARK)
    named = {"isolation": level, "keep_env": [MARK]}
    if level != "none":
        # Where tests and the code of sessions meet, in files that both look at.
        common = Path(tempfile.gettempdir()) / f"pytest-of-{getpass.getuser()}"
        common.mkdir(exist_ok=True, mode=0o700)
        named["mount"] = [str(common)]
        os.environ["INGLE_MOUNT"] = str(common)
    make = Settings.__init__

    def make_for_tests(self: Settings, *args: object, **given: object) -> None:
        make(self, *args, **{**named, **given})

    Settings.__init__ = make_for_tests


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What is about one level alone is left out at the others."""
    level = item.config.getoption("--isolation")
    for marker in item.iter_markers("level"):
        only, why = marker.args
        if level != only:
            pytest.skip(f"about {only} alone: {why}")


def marked_processes(mark: str) -> list[tuple[int, str]]:
    """Every live process (zombies too) that was started with this mark in its environment, with its state."""
    found = []
    needle = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if needle in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append((int(name), Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]))
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Poll a condition; True as soon as it holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


async def until(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """The same, letting the loop run meanwhile."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks every process started during the test; afterwards none of them may be left."""
    value = uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    assert wait_until(lambda: not marked_processes(value), 5), f"left behind: {marked_processes(value)}"


@pytest.fixture
def apart() -> Iterator[Path]:
    """For data folders and interpreters: sessions may be let into the test's own folder, and never into this one."""
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as folder:
        yield Path(folder)


@pytest.fixture
def home(apart: Path) -> Iterator[Path]:
    """A data folder; afterwards no session's folder and no lock may be left in it."""
    folder = apart / "home"
    yield folder
    assert_empty(folder)


def on_host(service: Service, session_id: str, *numbers: int) -> list[int]:
    """What processes are called out here that a session knows by these numbers."""
    assert isinstance(service._node, LocalNode)
    worker = service._node.manager.get(session_id).worker
    assert worker is not None
    room = os.readlink(f"/proc/{worker.pid}/ns/pid")
    found: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/ns/pid") == room:
                own = next(line for line in Path(f"/proc/{name}/status").read_text().splitlines() if "NSpid:" in line)
                found[int(own.split()[-1])] = int(name)
        except OSError:
            continue  # it has just ended
    return [found[number] for number in numbers]


async def until_prepared(service: Service) -> None:
    """Until nothing more is made ahead: what a test counts from here on grows by what the test does."""
    assert isinstance(service._node, LocalNode)
    launchers = [each for each in service._node.manager._launchers.all if each.zygote_pid is not None]
    assert await until(lambda: all(launcher.prepared == service.settings.pool for launcher in launchers), 30)


def own_processes(service: Service, workers: int) -> int:
    """How many processes run when there are so many workers and nothing is on its way: the holder, in a sandbox with
    one outside of it, the zygote, the init that waits for the next session, and an init with every worker."""
    return (4 if service.settings.isolation == "sandbox" else 3) + 2 * workers


def session_folders(service: Service, home: Path) -> list[Path]:
    """What sessions have on disk; not what prepared workers have for those to come."""
    assert isinstance(service._node, LocalNode)
    prepared = service._node.manager._spares._sessions
    return [folder for folder in (home / "sessions").iterdir() if folder.name not in prepared]


def assert_empty(folder: Path) -> None:
    """Nothing is left of its servers but durable sessions that the registry knows: those are to come back."""
    known: set[str] = set()
    if (folder / "registry.db").exists():
        with contextlib.closing(sqlite3.connect(folder / "registry.db")) as db:
            known = {f"sessions/durable.{uid}" for (uid,) in db.execute("SELECT uid FROM sessions")}
    left = [str(path.relative_to(folder)) for sub in ("sessions", "run") for path in (folder / sub).glob("*")]
    assert set(left) <= known, f"left behind in the data folder: {set(left) - known}"


@pytest.fixture(scope="module")
def settings() -> Settings:
    """Override in a module or class to change the service's settings."""
    return Settings(preload=[], pool=1)


@pytest.fixture
async def service(mark: str, home: Path, settings: Settings) -> AsyncIterator[Service]:
    """A running service. Ends with the test, and must leave nothing behind."""
    async with Service.local(settings, home) as running:
        yield running


@pytest.fixture
async def run(service: Service):
    """Runs a cell in the one session of the test."""
    await service.create_session("s")

    async def execute(code: str, **options: object) -> Result:
        return await service.execute("s", code, **options)

    return execute


@pytest.fixture(scope="module")
def bare() -> Iterator[str]:
    """An interpreter with nothing installed, pip neither."""
    with tempfile.TemporaryDirectory(prefix="ingle-bare-") as folder:
        # One below: a temporary folder is closed to the users that sandboxed sessions are.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{folder}/env"], check=True)
        yield f"{folder}/env/bin/python"


@pytest.fixture
def start(mark: str, home: Path) -> Iterator[Callable[..., Server]]:
    """Start servers; whatever is left of them ends with the test."""
    servers: list[Server] = []

    def make(*flags: str, env: dict[str, str] | None = None) -> Server:
        servers.append(Server(home, *flags, env=env))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    return start()


@pytest.fixture(scope="module")
def quiet_server() -> Iterator[Server]:
    """One server with one session that has run nothing, for requests that all are refused."""
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as home:
        server = Server(Path(home))
        server.make_session()
        yield server
        assert server.stop() == 0
        left = {path.name for path in server.home.rglob("*") if path.is_file()}
        # The registry is made while the server warms up, which may not have come that far.
        assert left - {"registry.db"} == {"token"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(settings: Settings) -> AsyncIterator[Service]:
    """One service for the tests of a module, for those whose sessions want much preloaded.

    Such a module has `pytest.mark.asyncio(loop_scope="module")`, and each test ends the sessions that it made.
    """
    value = uuid4().hex
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as parent, pytest.MonkeyPatch.context() as patch:
        folder = Path(parent) / "home"
        patch.setenv(MARK, value)
        async with Service.local(settings, folder) as running:
            yield running
        assert wait_until(lambda: not marked_processes(value), 5), f"left behind: {marked_processes(value)}"
        assert_empty(folder)

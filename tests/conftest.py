"""What the tests share: a service on a folder of its own, and the proof that nothing is left after it."""

import contextlib
import gc
import getpass
import inspect
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from ingle.events import Result
from ingle.service import Service
from ingle.settings import Settings
from ingle.support.process_memory import return_freed_memory
from support.cluster import clean
from support.processes import MARK, marked_processes, own_mark
from support.ray_cluster import RayCluster
from support.server import Server
from support.service import SharedServices, assert_empty, make_settings
from support.shared_server import SharedServer, end_all
from support.waiting import wait_until

collect_ignore = ["compat"]
"""These run in virtual environments of their own: `make test-compat`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--isolation", default="none", help="The level of sessions, where a test names none.")
    parser.addoption("--cluster", action="store_true", help="Run the tests that can on a Ray cluster of three nodes.")


NODES = 3
"""Nodes of the Ray cluster."""

USUAL: dict[str, object] = {"preload": [], "pool": 1}
"""Settings of a service when a test names none."""


def pytest_configure(config: pytest.Config) -> None:
    """Choose the level of this run, for servers that tests start and for `make_settings`; mark what is started."""
    # Services run in this process, as they do in a server.
    return_freed_memory()
    # Hundreds of servers are started, and each would compile all modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # In the background of a script it is ignored, also by the programs that tests start and interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    level = config.getoption("--isolation")
    os.environ.update({"INGLE_ISOLATION": level, "INGLE_KEEP_ENV": MARK, MARK: uuid4().hex})
    # Most of the time to build an environment would go into compiling its pip.
    os.environ["PIP_COMPILE"] = "0"
    # Hundreds of services are started by commands, and few tests use numpy and pandas.
    os.environ["INGLE_PRELOAD"] = ""
    if level != "none":
        # Tests and the code of sessions exchange files here.
        common = Path(tempfile.gettempdir()) / f"pytest-of-{getpass.getuser()}"
        common.mkdir(exist_ok=True, mode=0o700)
        os.environ["INGLE_MOUNT"] = str(common)


def pytest_collection(session: pytest.Session) -> None:
    """Collect no garbage while tests are collected: nearly all objects made then live until the end."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from walking all tests and modules again and again; a server does the same."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--cluster`, tests of one machine are tests on Ray too, so that `-m ray` selects them."""
    if config.getoption("--cluster"):
        for item in items:
            if not {"service", "server"}.isdisjoint(getattr(item, "fixturenames", ())):
                item.add_marker("ray")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What is about one level alone is left out at the others."""
    level = item.config.getoption("--isolation")
    for marker in item.iter_markers("level"):
        only, why = marker.args
        if level != only:
            pytest.skip(f"about {only} alone: {why}")
    for marker in item.iter_markers("one_machine"):
        if item.config.getoption("--cluster"):
            pytest.skip(f"about one machine: {marker.args[0]}")


@pytest.fixture
def mark() -> Iterator[str]:
    """Marks every process started during the test; afterwards none of them may be left."""
    value = uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, value)
        yield value
    wait_until(lambda: not marked_processes(value), 5)
    left = marked_processes(value)
    # They hold the output of the whole run open, which would not end before them.
    for pid, _ in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind: {left}"


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


@pytest.fixture(scope="module")
def settings() -> Settings:
    """Override in a module or class to change the service's settings."""
    return make_settings(**USUAL)


@pytest.fixture(scope="session")
async def shared_services() -> AsyncIterator[SharedServices]:
    """The services that tests of this process share. At the end of the run no process of theirs may be left."""
    services = SharedServices(make_settings(**USUAL))
    yield services
    await services.stop()


@pytest.fixture
async def stopped_shared_services(shared_services: SharedServices) -> None:
    await shared_services.stop()


@pytest.fixture(autouse=True)
def only_own_services_are_patched(request: pytest.FixtureRequest) -> None:
    """Stop the shared services before a test that replaces parts of the host.

    They run on the same event loop, and a patched interval would put their background work to sleep for good.
    """
    if "monkeypatch" in request.fixturenames and inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("stopped_shared_services")


@pytest.fixture(scope="session")
def whole_ray_cluster() -> Iterator[RayCluster]:
    """The Ray cluster of a run, for all tests that need one."""
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as folder:
        made = RayCluster(Path(folder) / "home", NODES, make_settings(**USUAL))
        try:
            made.repair()
            yield made
        finally:
            made.ingle("cluster", "down")


@pytest.fixture(scope="session")
async def whole_cluster_service(whole_ray_cluster: RayCluster) -> AsyncIterator[Service]:
    """One gateway for the run: each has a process with Ray, which takes seconds to start."""
    running = await whole_ray_cluster.service()
    yield running
    await running.stop()


@pytest.fixture
async def cluster_service(
    whole_ray_cluster: RayCluster, whole_cluster_service: Service, settings: Settings
) -> AsyncIterator[Service]:
    """A gateway of a cluster that other tests have used before. After the test its sessions and tasks are ended."""
    if settings != make_settings(**USUAL):
        pytest.skip("the agents of this cluster have other settings")
    await whole_ray_cluster.wait_reached(whole_cluster_service)
    yield whole_cluster_service
    await clean(whole_cluster_service)


@pytest.fixture
async def shared_service(shared_services: SharedServices, settings: Settings) -> AsyncIterator[Service]:
    """A running service that other tests have used before. After the test its sessions and tasks are ended."""
    shared = await shared_services.get(settings)
    yield shared.service
    await shared_services.clean(shared)


@pytest.fixture
async def fresh_service(mark: str, home: Path, settings: Settings) -> AsyncIterator[Service]:
    """A service of the test's own. It ends with the test, and must leave nothing behind."""
    async with Service.local(settings, home) as running:
        yield running


def needs_own(request: pytest.FixtureRequest) -> bool:
    """Return whether a test cannot share a service or a server with others.

    It cannot when it looks at the whole of it (`home`, `mark`), and when it is marked `fresh_service`.
    """
    marked = request.node.get_closest_marker("fresh_service") is not None
    return marked or not {"home", "mark"}.isdisjoint(request.fixturenames)


@pytest.fixture
def service(request: pytest.FixtureRequest, settings: Settings) -> Service:
    """The shared service, or a fresh one for a test that needs it. Modules may parametrise `settings`.

    It runs in this process, so a test that replaces parts of the host (`monkeypatch`) needs one too.
    """
    own = needs_own(request) or "monkeypatch" in request.fixturenames
    if request.config.getoption("--cluster"):
        if own:
            pytest.skip("looks at the folders and processes of one machine")
        on_cluster: Service = request.getfixturevalue("cluster_service")
        return on_cluster
    running: Service = request.getfixturevalue("fresh_service" if own else "shared_service")
    return running


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
def start(request: pytest.FixtureRequest, mark: str, home: Path) -> Iterator[Callable[..., Server]]:
    """Start servers; whatever is left of them ends with the test."""
    servers: list[Server] = []

    if request.config.getoption("--cluster"):
        pytest.skip("starts servers of its own on one machine")

    def make(*flags: str, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()) -> Server:
        servers.append(Server(home, *flags, env=env, prefix=prefix))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[SharedServer]:
    made = SharedServer()
    yield made
    made.stop()


@pytest.fixture
def shared_server(shared_servers: SharedServer) -> Iterator[Server]:
    """A running server that other tests have used before. After the test its sessions and commands are ended."""
    yield shared_servers.get()
    shared_servers.clean()


@pytest.fixture(scope="session")
def cluster_gateway(whole_ray_cluster: RayCluster) -> Iterator[Server]:
    """`ingle serve` as a gateway of the cluster."""
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as folder:
        made = whole_ray_cluster.gateway(home=Path(folder) / "home")
        yield made
        assert made.stop() == 0, "".join(made.said)


@pytest.fixture
def cluster_server(cluster_gateway: Server) -> Iterator[Server]:
    yield cluster_gateway
    end_all(cluster_gateway)


@pytest.fixture
def fresh_server(start: Callable[..., Server]) -> Server:
    """A server of the test's own, without flags."""
    return start()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """The shared server, or a fresh one for a test that needs it."""
    if request.config.getoption("--cluster"):
        if needs_own(request):
            pytest.skip("looks at the folders and processes of one machine")
        on_cluster: Server = request.getfixturevalue("cluster_server")
        return on_cluster
    running: Server = request.getfixturevalue("fresh_server" if needs_own(request) else "shared_server")
    return running


@pytest.fixture(scope="module")
def quiet_server() -> Iterator[Server]:
    """One server with one session that has run nothing, for requests that all are refused."""
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as home:
        server = Server(Path(home), env=own_mark())
        server.make_session()
        yield server
        assert server.stop() == 0
        left = {path.name for path in server.home.rglob("*") if path.is_file()}
        # The registry is made while the server warms up, which may not have come that far.
        assert left - {"registry.db"} == {"token"}


@pytest.fixture(scope="module")
def module_server() -> Iterator[Server]:
    """One server for the tests of a module that use many sessions at once.

    Inits of ended sessions stay for a while, so what is left is looked at when the server has ended.
    """
    mark = uuid4().hex
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as folder:
        server = Server(Path(folder) / "home", env={MARK: mark})
        yield server
        assert server.client.get("/v1/sessions").json() == {"sessions": []}
        assert server.stop() == 0
        assert wait_until(lambda: not marked_processes(mark), 5), f"left behind: {marked_processes(mark)}"
        assert_empty(server.home)

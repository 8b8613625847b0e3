"""A sandbox that reaches the network by the proxy alone: what gets through, what a cell is told of the rest."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ingle.service import Service
from support.package_index import LOOP, serve_index
from support.service import make_settings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not every user can have a sandbox")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A package index on this machine's loopback, with one package in it; its port. pip is configured with it."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with serve_index(tmp_path / "index") as port:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{LOOP}:{port}/simple")
        yield port


@pytest.fixture
async def sandboxed(mark: str, home: Path, index: int) -> AsyncIterator[Service]:
    async with Service.local(make_settings(preload=[], pool=1, isolation="sandbox"), home) as service:
        info = await service.create_session("s")
        assert (info.isolation, info.network) == ("sandbox", "allowlist")
        yield service


async def test_pip_installs_from_the_hosts_own_index_and_reaches_nothing_else(sandboxed: Service, index: int) -> None:
    result = await sandboxed.execute("s", "%pip install hearth\nimport hearth\nhearth.warm")
    assert (result.status, result.result) == ("ok", {"text/plain": "True"}), (
        result.stdout,
        result.stderr,
        result.error,
    )
    direct = f"import socket\nsocket.create_connection(('127.0.0.1', {index}), 3)"
    refused = await sandboxed.execute("s", direct)
    assert refused.error is not None
    assert refused.error.name == "ConnectionRefusedError"
    metrics = await sandboxed.metrics()
    assert metrics.egress["allowed"] >= 2
    assert metrics.egress["refused"] == 0
    (used,) = (await sandboxed.network("s")).hosts
    assert (used.host, used.reached, used.refused) == (f"{LOOP}:{index}", metrics.egress["allowed"], 0)


async def test_an_installation_that_is_refused_tells_the_reason_once(sandboxed: Service) -> None:
    result = await sandboxed.execute("s", "%pip install --retries 2 -i https://elsewhere.example/simple ember")
    granted = (
        "elsewhere.example:443 is not on the list of hosts; the operator grants it with "
        "`ingle grant --host elsewhere.example`"
    )
    assert result.notices == [granted]
    lines = result.stderr.splitlines()
    assert lines[0] == "nothing was installed: a host was refused; the notice names it"
    assert "ember" in result.stderr
    assert len(lines) <= 5, result.stderr
    assert granted not in result.stderr


async def test_a_refused_host_is_named_in_the_cells_notices_with_the_command(sandboxed: Service) -> None:
    code = "import urllib.request\nurllib.request.urlopen('https://elsewhere.example/', timeout=10)"
    result = await sandboxed.execute("s", code)
    granted = (
        "elsewhere.example:443 is not on the list of hosts; the operator grants it with "
        "`ingle grant --host elsewhere.example`"
    )
    assert result.error is not None
    assert granted in result.error.value
    assert result.notices == [granted]
    assert (await sandboxed.metrics()).egress["refused"] == 1
    told = await sandboxed.network("s")
    assert [(use.host, use.reached, use.refused, use.flag) for use in told.hosts] == [
        ("elsewhere.example:443", 0, 1, "--allow-host elsewhere.example")
    ]
    assert (told.network, told.more, told.notices) == ("allowlist", 0, [])


async def test_a_fork_goes_out_by_the_same_door_also_when_its_origin_is_gone(sandboxed: Service) -> None:
    [fork] = await sandboxed.fork_session("s")
    await sandboxed.end_session("s")
    result = await sandboxed.execute(fork.session_id, "%pip install hearth\nimport hearth\nhearth.warm")
    assert (result.status, result.result) == ("ok", {"text/plain": "True"}), (result.stdout, result.stderr)


async def test_without_a_network_there_is_no_door(sandboxed: Service) -> None:
    await sandboxed.create_session("alone", network="none")
    code = "import socket\nsocket.create_connection(('127.0.0.1', 61080), 3)"
    result = await sandboxed.execute("alone", code)
    assert result.error is not None
    assert result.error.name == "ConnectionRefusedError"

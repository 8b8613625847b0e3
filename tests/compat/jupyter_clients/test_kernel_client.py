"""`jupyter-kernel-client`, pointed at ingle, and at a Jupyter Server whose gateway is ingle."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from gateway import TOKEN, gateway
from jupyter_kernel_client import JupyterKernelClient
from mixed_cells import CELLS, shown
from serving import Server

pytestmark = pytest.mark.req("compat.jupyter")


@pytest.fixture(scope="module")
def gateway_url(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Jupyter Server that runs its kernels on ingle."""
    with gateway(server, tmp_path_factory.mktemp("jupyter"), "jupyter_server") as url:
        yield url


def run_all(client: JupyterKernelClient) -> None:
    for code, text in CELLS:
        reply = client.execute(code)
        assert reply["status"] == "ok", (code, reply)
        assert text is None or shown(reply["outputs"]) == text, code


def test_a_notebook_of_thirty_cells_runs(server: Server) -> None:
    with JupyterKernelClient(server_url=server.url, token=server.token) as client:
        run_all(client)


def test_the_same_notebook_runs_through_the_gateway_of_jupyter_server(gateway_url: str) -> None:
    with JupyterKernelClient(server_url=gateway_url, token=TOKEN) as client:
        run_all(client)


def test_errors_interrupts_and_restarts(server: Server) -> None:
    with JupyterKernelClient(server_url=server.url, token=server.token) as client:
        reply = client.execute("1/0")
        assert (reply["status"], reply["outputs"][0]["ename"]) == ("error", "ZeroDivisionError")
        timer = threading.Timer(0.5, client.interrupt)
        timer.start()
        reply = client.execute("import time\nfor _ in range(600):\n    time.sleep(0.1)")
        timer.join()
        assert reply["outputs"][0]["ename"] == "KeyboardInterrupt"
        client.execute("x = 1")
        client.restart()
        assert shown(client.execute("'x' in dir()")["outputs"]) == "False"


def test_another_tenant_has_no_such_kernel(server: Server) -> None:
    with JupyterKernelClient(server_url=server.url, token=server.token) as client:
        request = urllib.request.Request(
            f"{server.url}/api/kernels/{client.id}", headers={"Authorization": f"token {server.other_token}"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == 404

"""Kernelspecs of `ingle kernel install`, for programs that run kernels themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Server, ingle


@pytest.fixture(scope="session", autouse=True)
def installed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What the command says. The kernels find the server by its data folder."""
    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGLE_HOME", str(server.home))
        patch.setenv("JUPYTER_DATA_DIR", str(folder / "share" / "jupyter"))
        patch.setenv("JUPYTER_PATH", str(folder / "share" / "jupyter"))
        yield ingle(server.home, "kernel", "install", "--prefix", str(folder))

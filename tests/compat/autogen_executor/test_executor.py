"""`DockerJupyterCodeExecutor` of AutoGen, pointed at a running server. It needs no Docker then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker_jupyter import DockerJupyterCodeExecutor
from autogen_ext.code_executors.docker_jupyter._jupyter_server import JupyterConnectionInfo
from serving import Server

pytestmark = pytest.mark.req("compat.jupyter")


@pytest.fixture
async def executor(server: Server, tmp_path: Path) -> AsyncIterator[DockerJupyterCodeExecutor]:
    address = urlsplit(server.url)
    info = JupyterConnectionInfo(host=address.hostname, use_https=False, port=address.port, token=server.token)
    async with DockerJupyterCodeExecutor(jupyter_server=info, output_dir=tmp_path) as made:
        yield made


async def run(executor: DockerJupyterCodeExecutor, *codes: str) -> tuple[int, str, int]:
    blocks = [CodeBlock(code=code, language="python") for code in codes]
    result = await executor.execute_code_blocks(blocks, CancellationToken())
    return result.exit_code, result.output, len(result.output_files)


async def test_blocks_share_variables_and_show_what_they_print(executor: DockerJupyterCodeExecutor) -> None:
    assert await run(executor, "x = 5\nprint('hello')") == (0, "hello\n", 0)
    assert await run(executor, "x + 1") == (0, "6", 0)


async def test_an_exception_is_an_exit_code(executor: DockerJupyterCodeExecutor) -> None:
    code, output, _ = await run(executor, "1/0")
    assert code == 1
    assert "ZeroDivisionError: division by zero" in output
    assert await run(executor, "print('on')") == (0, "on\n", 0)


async def test_displays_become_files(executor: DockerJupyterCodeExecutor) -> None:
    assert (await run(executor, "from IPython.display import HTML\nHTML('<b>x</b>')"))[2] == 1

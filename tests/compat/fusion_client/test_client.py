"""The `sandbox-fusion` client, sync and async, pointed at ingle."""

from __future__ import annotations

import asyncio
import base64

import pytest
from sandbox_fusion import RunCodeRequest, RunJupyterRequest, run_code, run_code_async, run_jupyter
from sandbox_fusion.models import CommandRunStatus, RunStatus
from serving import Server

pytestmark = pytest.mark.req("compat.fusion")


@pytest.fixture
def endpoint(server: Server) -> str:
    """Address with the token as a password, because the client sends no header of its own."""
    return server.url.replace("http://", f"http://ingle:{server.token}@")


def test_python_and_bash_run(endpoint: str) -> None:
    ran = run_code(RunCodeRequest(code="print(input())", language="python", stdin="hi"), endpoint, 1)
    assert (ran.status, ran.run_result.stdout, ran.run_result.return_code) == (RunStatus.Success, "hi\n", 0)
    ran = run_code(RunCodeRequest(code="echo $((1 + 1)); exit 3", language="bash"), endpoint, 1)
    assert (ran.status, ran.run_result.stdout, ran.run_result.return_code) == (RunStatus.Failed, "2\n", 3)


def test_files_go_in_and_out(endpoint: str) -> None:
    text = base64.b64encode(b"text").decode()
    request = RunCodeRequest(
        code="open('b', 'w').write(open('a').read())", language="python", files={"a": text}, fetch_files=["b"]
    )
    assert run_code(request, endpoint, 1).files == {"b": text}


def test_a_time_limit_is_told(endpoint: str) -> None:
    ran = run_code(RunCodeRequest(code="while True: pass", language="python", run_timeout=0.5), endpoint, 1)
    assert ran.run_result.status == CommandRunStatus.TimeLimitExceeded


def test_cells_run(endpoint: str) -> None:
    ran = run_jupyter(RunJupyterRequest(cells=["a = 1", "a + 1", "print(a)", "1/0"]), endpoint, 1)
    assert ran.status == RunStatus.Success
    assert [each.display for each in ran.cells] == [[], [{"text/plain": "2"}], [], []]
    assert (ran.cells[2].stdout, ran.cells[3].error[0]["ename"]) == ("1\n", "ZeroDivisionError")


async def test_many_runs_at_once(endpoint: str) -> None:
    requests = [RunCodeRequest(code=f"print({each})", language="python") for each in range(16)]
    ran = await asyncio.gather(*(run_code_async(each, endpoint, 1) for each in requests))
    assert [each.run_result.stdout for each in ran] == [f"{each}\n" for each in range(16)]


def test_another_language_is_an_error_of_the_sandbox(endpoint: str) -> None:
    with pytest.raises(Exception, match="the language 'cpp' is not offered"):
        run_code(RunCodeRequest(code="int main() {}", language="cpp"), endpoint, 1)


def test_a_wrong_token_is_refused(server: Server) -> None:
    with pytest.raises(Exception, match="code 401"):
        run_code(RunCodeRequest(code="1", language="python"), server.url.replace("//", "//ingle:wrong@"), 1)

"""The API of SandboxFusion: programs and notebooks, their files and limits, and the forms of its errors."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from support.server import Server

pytestmark = pytest.mark.req("compat.fusion")


def run_code(server: Server, code: str, language: str = "python", **options: Any) -> dict[str, Any]:
    answer = server.client.post("/run_code", json={"code": code, "language": language, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def outcome(answer: dict[str, Any]) -> tuple[Any, ...]:
    ran = answer["run_result"]
    return answer["status"], ran["status"], ran["return_code"], ran["stdout"], ran["stderr"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('hi')", ("Success", "Finished", 0, "hi\n", "")),
        ("import sys\nsys.exit(3)", ("Failed", "Finished", 3, "", "")),
        ("import sys\nsys.exit('why')", ("Failed", "Finished", 1, "", "why\n")),
        ("import sys\nprint('e', file=sys.stderr)", ("Success", "Finished", 0, "", "e\n")),
        ("if __name__ == '__main__':\n    print(len(__import__('sys').argv))", ("Success", "Finished", 0, "1\n", "")),
    ],
)
def test_a_python_program_ends_with_its_code(shared_server: Server, code: str, expected: tuple[Any, ...]) -> None:
    answer = run_code(shared_server, code)
    assert outcome(answer) == expected
    assert (answer["message"], answer["compile_result"], answer["files"]) == ("", None, {})


def test_an_exception_is_on_stderr(shared_server: Server) -> None:
    status, ran, code, _, stderr = outcome(run_code(shared_server, "print(1)\n1/0"))
    assert (status, ran, code) == ("Failed", "Finished", 1)
    assert stderr.endswith("ZeroDivisionError: division by zero\n")


def test_standard_input_is_read_to_its_end(shared_server: Server) -> None:
    code = "import sys\nprint(input(), sys.stdin.read().split())"
    assert outcome(run_code(shared_server, code, stdin="a\nb\nc\n"))[3] == "a ['b', 'c']\n"
    assert "EOFError" in outcome(run_code(shared_server, "input()"))[4]


def test_a_long_output_is_whole(shared_server: Server) -> None:
    assert outcome(run_code(shared_server, "print('x' * 400_000)"))[3] == "x" * 400_000 + "\n"


def test_a_time_limit_and_a_memory_limit_are_told_apart(shared_server: Server) -> None:
    late = run_code(shared_server, "print('on', flush=True)\nwhile True: pass", run_timeout=0.5)
    assert outcome(late)[:4] == ("Failed", "TimeLimitExceeded", None, "on\n")
    assert late["message"] == "time limit of 0.5 s exceeded"
    large = run_code(shared_server, "x = bytearray(2_000_000_000)", memory_limit_MB=200)
    assert outcome(large)[:2] == ("Failed", "Error")
    assert outcome(large)[2] not in (0, None)
    assert large["message"] == "memory limit exceeded"


def test_files_go_in_and_out(shared_server: Server) -> None:
    code = "import os\nopen('out/b.txt', 'w').write(open('in.txt').read().upper())"
    files = {"in.txt": encoded("text"), "out/a.txt": encoded(""), "left out": None}
    answer = run_code(shared_server, code, files=files, fetch_files=["out/b.txt", "missing"])
    assert (outcome(answer)[0], answer["files"]) == ("Success", {"out/b.txt": encoded("TEXT")})


def test_a_script_of_the_shell_runs(shared_server: Server) -> None:
    code = "read x; echo got $x > out.txt; echo $x; echo e >&2; exit 4"
    answer = run_code(shared_server, code, "bash", stdin="in\n", fetch_files=["out.txt"])
    assert outcome(answer) == ("Failed", "Finished", 4, "in\n", "e\n")
    assert answer["files"] == {"out.txt": encoded("got in\n")}
    assert outcome(run_code(shared_server, "sleep 60", "bash", run_timeout=0.5))[1] == "TimeLimitExceeded"


def test_cells_of_a_notebook_share_variables(shared_server: Server) -> None:
    cells = ["a = 123", "a", "print(a)", "import sys; sys.stderr.write('e');", "raise RuntimeError('no')", "a + 1"]
    body = {"cells": cells, "files": {"f": encoded("x")}, "fetch_files": ["f"]}
    answer = shared_server.client.post("/run_jupyter", json=body).json()
    assert (answer["status"], answer["driver"]["status"], answer["files"]) == (
        "Success",
        "Finished",
        {"f": encoded("x")},
    )
    shown = answer["cells"]
    empty = {"stdout": "", "stderr": "", "display": [], "error": []}
    assert shown[:4] == [
        empty,
        {**empty, "display": [{"text/plain": "123"}]},
        {**empty, "stdout": "123\n"},
        {**empty, "stderr": "e"},
    ]
    (error,) = shown[4]["error"]
    assert (error["ename"], error["evalue"]) == ("RuntimeError", "no")
    assert shown[5]["display"] == [{"text/plain": "124"}]


def test_a_notebook_ends_at_its_time_limits(shared_server: Server) -> None:
    body = {"cells": ["print(1)", "while True: pass", "print(2)"], "cell_timeout": 0.5}
    answer = shared_server.client.post("/run_jupyter", json=body).json()
    assert (answer["status"], answer["driver"]["status"], len(answer["cells"])) == ("Failed", "TimeLimitExceeded", 2)
    body = {"cells": ["while True: pass"], "total_timeout": 0.5}
    assert shared_server.client.post("/run_jupyter", json=body).json()["driver"]["status"] == "TimeLimitExceeded"


def test_other_languages_are_refused_in_the_form_of_sandbox_fusion(shared_server: Server) -> None:
    answer = run_code(shared_server, "int main() {}", "cpp")
    assert (answer["status"], answer["run_result"]) == ("SandboxError", None)
    assert answer["message"] == "the language 'cpp' is not offered; use python or bash"
    answer = shared_server.client.post("/run_jupyter", json={"cells": [], "kernel": "ir"}).json()
    assert answer["status"] == "SandboxError"


@pytest.mark.req("compat.errors")
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/run_code", None, 405),
        ("POST", "/run_code/x", b"{}", 404),
        ("POST", "/run_code", b"{", 400),
        ("POST", "/run_code", b"{}", 422),
        ("POST", "/run_code", b'{"code": 5, "language": "python"}', 422),
        ("POST", "/run_code", b'{"code": "", "language": "python", "run_timeout": -1}', 422),
        ("POST", "/run_code", b'{"code": "", "language": "python", "files": {"a": "?"}}', 422),
        ("POST", "/run_code", b'{"code": "", "language": "python", "files": {"../a": ""}}', 422),
        ("POST", "/run_jupyter", b'{"cells": "x"}', 422),
    ],
)
def test_bad_requests_get_a_detail(
    shared_server: Server, method: str, path: str, body: bytes | None, status: int
) -> None:
    answer = shared_server.client.request(method, path, content=body)
    assert (answer.status_code, list(answer.json())) == (status, ["detail"]), answer.text


@pytest.mark.req("compat.errors")
def test_the_token_may_be_a_password_in_the_address(shared_server: Server) -> None:
    body = {"code": "print(1)", "language": "python"}
    with httpx.Client(base_url=shared_server.url) as nobody:
        assert nobody.get("/v1/ping", auth=("ingle", shared_server.token)).json() == "pong"
        assert nobody.post("/run_code", json=body, auth=("ingle", shared_server.token)).json()["status"] == "Success"
        for auth in (None, ("ingle", "wrong"), ("", "")):
            answer = nobody.post("/run_code", json=body, auth=auth)
            assert (answer.status_code, list(answer.json())) == (401, ["detail"])
        for header in ("Basic ???", "Digest x", "Basic"):
            assert nobody.get("/v1/ping", headers={"Authorization": header}).status_code == 401

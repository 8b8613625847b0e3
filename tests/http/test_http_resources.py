"""Variables, figures in full size and shell tasks over HTTP."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from support.server import Server, problem


@pytest.mark.req("rich.vars")
def test_variables_are_listed_and_one_is_told_in_full(server: Server) -> None:
    server.make_session()
    server.execute("numbers = [1, 2, 3]\ntext = 'x' * 5000")
    listed = server.client.get("/v1/sessions/main/variables").json()
    assert [(each["name"], each["type"], each["length"]) for each in listed["variables"]] == [
        ("numbers", "list", 3),
        ("text", "str", 5000),
    ]
    told = server.client.get("/v1/sessions/main/variables/numbers").json()["variable"]
    assert (told["value"], told["repr"]) == ("[1, 2, 3]", "[1, 2, 3]")
    missing = problem(server.client.get("/v1/sessions/main/variables/numers"), 404, "variable_not_found")
    assert "numbers" in missing["detail"]
    problem(server.client.get("/v1/sessions/main/variables/a.b"), 422, "invalid_request")


@pytest.mark.req("rich.figures")
def test_a_figure_is_read_in_full_size(server: Server) -> None:
    server.make_session()
    code = "import matplotlib.pyplot as plt\nplt.figure(figsize=(40, 10))\nplt.plot([1, 2]);"
    result = server.execute(code)
    full = result["displays_metadata"][0]["image/png"]["full"]
    answer = server.client.get(f"/v1/sessions/main/figures/{full['file']}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert struct.unpack(">II", answer.content[16:24]) == (full["width"], full["height"])
    problem(server.client.get("/v1/sessions/main/figures/" + "0" * 64), 404, "figure_not_found")


@pytest.mark.req("shell.fallback", "shell.status", "shell.manage")
@pytest.mark.fresh_service
def test_a_task_is_run_read_fed_and_ended(server: Server) -> None:
    post, get = server.client.post, server.client.get
    quick = post("/v1/shell", json={"command": "echo out; echo err >&2; exit 3"}).json()
    assert (quick["status"], quick["stdout"], quick["stderr"], quick["exit_code"]) == ("done", "out\n", "err\n", 3)
    cat = post("/v1/shell", json={"command": "cat", "interactive": True, "wait": 0}).json()
    assert cat["status"] == "running"
    path = f"/v1/shell/{cat['task_id']}"
    assert post(path + "/pause").json()["status"] == "paused"
    assert post(path + "/resume").json()["status"] == "running"
    fed = post(path + "/input", json={"text": "fed\n", "eof": True, "wait": 30}).json()
    assert (fed["status"], fed["stdout"], fed["exit_code"]) == ("done", "fed\n", 0)
    assert [line["text"] for line in get(path + "/output").json()["lines"]] == ["fed"]
    assert get(path, params={"from_line": 2}).json()["stdout"] == ""
    endless = post("/v1/shell", json={"command": "sleep 1000", "wait": 0}).json()
    cancelled = post(f"/v1/shell/{endless['task_id']}/cancel", json={"wait": 30}).json()
    assert cancelled["status"] == "cancelled"
    problem(post(f"/v1/shell/{endless['task_id']}/input", json={"text": "x"}), 409, "task_over")
    assert [task["command"] for task in get("/v1/shell").json()["tasks"]] == [
        "echo out; echo err >&2; exit 3",
        "cat",
        "sleep 1000",
    ]
    problem(get("/v1/shell/t0"), 404, "task_not_found")


@pytest.mark.req("shell.fallback", "cell.once")
def test_a_command_that_is_sent_again_with_its_key_runs_once(server: Server, tmp_path: Path) -> None:
    count = tmp_path / "count"
    body = {"command": f"echo once >> {count}"}
    tasks = [
        server.client.post("/v1/shell", json=body, headers={"Idempotency-Key": "k"}).json()["task_id"] for _ in range(3)
    ]
    assert len(set(tasks)) == 1
    assert count.read_text() == "once\n"
    other = server.client.post("/v1/shell", json={"command": "true"}, headers={"Idempotency-Key": "k"})
    problem(other, 422, "key_reused")


@pytest.mark.req("shell.session")
def test_a_task_of_a_session_runs_where_the_session_is_and_ends_with_it(server: Server) -> None:
    server.make_session()
    server.execute("import os; os.mkdir('below'); os.chdir('below')")
    task = server.client.post("/v1/shell", json={"command": "pwd", "session_id": "main"}).json()
    assert task["stdout"].endswith("/workspace/below\n")
    assert task["session_id"] == "main"
    problem(server.client.post("/v1/shell", json={"command": "pwd", "session_id": "none"}), 404, "session_not_found")

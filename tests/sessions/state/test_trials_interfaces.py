"""Trials, variants, probes, merges and kept failures over HTTP, the clients, the command line and MCP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from ingle import AsyncClient, Client, errors
from ingle.mcp.handlers import Tools
from ingle.requests import CommitPolicy
from ingle.service import Service
from ingle.settings import Settings
from support.server import PATIENCE, Server, problem
from support.service import make_settings
from support.waiting import wait_until

pytestmark = [pytest.mark.both_levels]

SESSION = "/v1/sessions/main"
NETWORK = "held" if os.environ["INGLE_ISOLATION"] == "sandbox" else "allowed"
REACH = (
    ""
    if os.environ["INGLE_ISOLATION"] == "sandbox"
    else "its files are at another path, and paths of the original lead to its files\n"
    "at the level 'none' the code has the rights of the session: what it did to other files, to processes and over the "
    "network is done, and not listed\n"
)
"""What each effect says at this level."""
FAILS = "def half(n):\n    rest = n % 2\n    return 1 / rest\nhalf(4)"


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1)


@pytest.mark.req("trial.effect", "trial.commit", "trial.discard", "try.best", "probe.clean", "merge.names")
def test_over_http(server: Server) -> None:
    server.make_session()
    server.execute("x = 1")
    result = server.execute("x = 2; open('new', 'w').write('text')", trial=True, network=NETWORK)
    name, effect = result["trial"]["name"], result["trial"]["effect"]
    assert [(each["name"], each["change"]) for each in effect["variables"]] == [("x", "changed")]
    assert [(each["path"], each["change"]) for each in effect["files"]] == [("new", "created")]
    told = problem(server.client.post(f"{SESSION}/execute", json={"code": "x"}), 409, "busy")
    assert name in told["detail"]
    (listed,) = server.client.get(f"{SESSION}/trials").json()["trials"]
    assert (listed["name"], listed["cell"], listed["status"]) == (name, 2, "ok")
    assert server.client.post(f"{SESSION}/trials/{name}/discard", json={}).status_code == 204
    problem(server.client.post(f"{SESSION}/trials/{name}/commit", json={}), 404, "trial_not_found")
    name = server.execute("x = 3", trial=True, network=NETWORK)["trial"]["name"]
    done = server.client.post(f"{SESSION}/trials/{name}/commit", json={}).json()
    assert (done["cell"], server.execute("print(x)")["stdout"]) == (2, "3\n")
    asked = {"codes": ["x = 10", "x = 20"], "score": "x", "network": NETWORK}
    tried = server.client.post(f"{SESSION}/try", json=asked).json()
    assert (tried["chosen"], server.execute("print(x)")["stdout"]) == (1, "20\n")
    probed = server.client.post(f"{SESSION}/probe", json={"code": "x += 1; print(x)", "network": NETWORK}).json()
    assert (probed["stdout"], server.execute("print(x)")["stdout"]) == ("21\n", "20\n")
    clean = {"code": "print(x, 'half' in dir())", "clean": True, "variables": ["x"], "network": "allowed"}
    assert server.client.post(f"{SESSION}/probe", json=clean).json()["stdout"] == "20 False\n"
    server.client.post(f"{SESSION}/fork", json={"session_id": "copy"})
    server.execute("x = 30; y = [1]; open('mine', 'w').close()", "copy")
    merged = server.client.post(
        f"{SESSION}/merge", json={"fork": "copy", "variables": ["x", "y"], "files": ["mine"]}
    ).json()
    assert (merged["variables"], merged["replaced"], merged["files"]) == (["x", "y"], ["x"], ["mine"])
    assert server.execute("import os; print(x, y, os.listdir())")["stdout"] == "30 [1] ['mine']\n"
    problem(server.client.post(f"{SESSION}/try", json={"codes": []}), 422, "invalid_request")
    problem(server.client.post(f"{SESSION}/probe", json={"code": "1", "network": "some"}), 422, "invalid_request")


@pytest.mark.req("failure.kept")
def test_failures_over_http(server: Server) -> None:
    server.make_session(keep_failures=1)
    server.execute(FAILS)
    (kept,) = server.client.get(f"{SESSION}/failures").json()["failures"]
    assert (kept["cell"], [each["function"] for each in kept["frames"]]) == (1, ["<module>", "half"])
    for cell in (1, "last"):
        told = server.client.post(f"{SESSION}/failures/{cell}/inspect", json={"expression": "n, rest"}).json()
        assert (told["type"], told["value"], told["frame"]["line"]) == ("tuple", "(4, 0)", 3)
    asked = {"expression": "half", "frame": 0}
    assert "function half" in server.client.post(f"{SESSION}/failures/1/inspect", json=asked).json()["value"]
    problem(server.client.post(f"{SESSION}/failures/7/inspect", json={"expression": "1"}), 404, "failure_not_found")
    problem(server.client.post(f"{SESSION}/failures/x/inspect", json={"expression": "1"}), 422, "invalid_request")
    problem(server.client.post("/v1/sessions", json={"keep_failures": 1000}), 422, "invalid_request")


@pytest.mark.req("trial.effect", "trial.commit", "trial.discard", "try.best", "probe.clean", "failure.kept")
def test_the_client(server: Server) -> None:
    with Client(server.url, server.token) as client, client.session("main", keep_failures=2) as session:
        session.run("x = 1")
        result = session.trial("x = 2", network=NETWORK)
        assert result.trial is not None
        assert [each.name for each in session.trials()] == [result.trial.name]
        session.discard()
        with pytest.raises(errors.TrialNotFound, match="session 'main' has no open trial"):
            session.commit()
        result = session.trial("x = 3", network=NETWORK)
        assert result.trial is not None
        assert session.commit(result.trial.name).cell == 2
        assert session.try_cells(["x = 4", "x = 5"], score="-x", network=NETWORK).chosen == 0
        assert session.probe("x * 10", network=NETWORK).text == "40"
        with session.fork() as copy:
            copy.run("z = 6")
            assert session.merge(copy.name, variables=["z"]).variables == ["z"]
        session.run(FAILS)
        assert session.inspect_failure("rest").value == "0"
        (kept,) = session.failures()
        assert session.inspect_failure("x + z", cell=kept.cell, frame=0).value == "10"
        with pytest.raises(errors.FailureNotFound):
            session.inspect_failure("x", cell=1)


@pytest.mark.req("failure.kept")
async def test_the_client_of_an_event_loop(server: Server) -> None:
    async with AsyncClient(server.url, server.token) as client, client.session(keep_failures=1) as session:
        result = await session.trial("x = 1", network=NETWORK)
        assert result.trial is not None
        await session.commit()
        await session.run("1 / (x - 1)")
        assert (await session.inspect_failure("x")).value == "1"


def ingle(server: Server, *args: str) -> tuple[int, str, str]:
    env = {**os.environ, "INGLE_HOME": str(server.home)}
    done = subprocess.run([sys.executable, "-m", "ingle", *args], capture_output=True, text=True, env=env, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.req("trial.effect", "trial.commit", "trial.discard", "try.best", "merge.names")
def test_the_command_line(server: Server) -> None:
    server.make_session()
    server.execute("x = 1")
    code, out, told = ingle(server, "trial", "main", "x = 2; print('ran')", "--network", NETWORK)
    assert (code, out) == (0, f"ran\nvariables changed: x (1 -> 2)\n{REACH}"), told
    name = re.findall(r"trial-\w+", told)[0]
    assert ingle(server, "trial", "main")[1] == f"variables changed: x (1 -> 2)\n{REACH}"
    assert ingle(server, "discard", "main") == (0, f"{name} is discarded\n", "")
    assert ingle(server, "trial", "main")[1] == "session 'main' has no open trial\n"
    assert ingle(server, "discard", "main") == (2, "", "ingle: session 'main' has no open trial\n")
    ingle(server, "trial", "main", "x = 2", "--network", NETWORK)
    dropped = json.loads(ingle(server, "discard", "main", "--json")[1])
    assert re.fullmatch(r"trial-\w+", dropped["discarded"])
    out = ingle(server, "trial", "main", "x = 3; open('new', 'w').write('text')", "--network", NETWORK)[1]
    assert out.startswith(f"4\nvariables changed: x (1 -> 3)\nfiles created: new\n{REACH}")
    code, out, _ = ingle(server, "commit", "main")
    assert (code, out.endswith("its cell 2 is now one of this session\nfiles: created new\n")) == (0, True)
    code, out, _ = ingle(server, "try", "main", "x = 1", "x = 9", "1 / 0", "--score", "x", "--network", NETWORK)
    assert [line[:7] for line in out.splitlines()] == ["  0  ok", "* 1  ok", "  2  er"]
    for options, code in ((["--score", "nope"], 1), (["--keep", "none"], 0)):
        told = ingle(server, "try", "main", "x = 1", *options, "--network", NETWORK)
        assert (told[0], told[2]) == (code, "no variant was kept; the session is as it was\n")
    ingle(server, "fork", "main", "copy")
    server.execute("x = 7", "copy")
    assert ingle(server, "merge", "main", "copy", "--only", "x")[:2] == (0, "x (replaced)\n")
    assert server.execute("print(x)")["stdout"] == "7\n"
    assert ingle(server, "commit", "main", "no")[0] == 2


@pytest.mark.req("trial.effect", "trial.discard")
@pytest.mark.parametrize(("failing", "exit_code"), [("1 / 0", 1), ("x = (", 1), ("import os; os._exit(3)", 3)])
def test_a_failed_trial_without_effect_is_discarded_by_its_command(
    server: Server, failing: str, exit_code: int
) -> None:
    server.make_session()
    code, _, told = ingle(server, "trial", "main", failing, "--network", NETWORK)
    assert code == exit_code, told
    assert re.fullmatch(r"trial-\w+ is discarded: its cell failed and changed nothing", told.splitlines()[-1])
    assert "ingle commit" not in told
    assert server.execute("1")["status"] == "ok"
    code, out, _ = ingle(server, "trial", "main", failing, "--network", NETWORK, "--json")
    assert (code, json.loads(out)["trial"]["discarded"]) == (exit_code, True)
    assert server.execute("1")["status"] == "ok"


@pytest.mark.req("trial.effect", "trial.discard")
def test_a_failed_trial_with_an_effect_stays_open(server: Server) -> None:
    server.make_session()
    code, out, told = ingle(server, "trial", "main", "x = 2; 1 / 0", "--network", NETWORK)
    assert (code, out.splitlines()[0]) == (1, "variables created: x (2)")
    assert told.splitlines()[-1] == (
        "its cell failed: drop it with `ingle discard main`, or commit what it did with `ingle commit main`"
    )
    (listed,) = server.client.get(f"{SESSION}/trials").json()["trials"]
    assert listed["status"] == "error"
    assert ingle(server, "discard", "main")[0] == 0


@pytest.mark.req("trial.discard")
def test_a_trial_that_is_discarded_while_its_cell_runs_says_so(server: Server) -> None:
    server.make_session()
    command = [sys.executable, "-m", "ingle", "trial", "main", "import time; time.sleep(1000)", "--network", NETWORK]
    env = {**os.environ, "INGLE_HOME": str(server.home)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as waiting:
        assert wait_until(lambda: server.client.get(f"{SESSION}/trials").json()["trials"], PATIENCE)
        assert ingle(server, "discard", "main")[0] == 0
        out, told = waiting.communicate(timeout=PATIENCE)
    assert (waiting.returncode, out) == (137, "")
    assert re.fullmatch(r"trial-\w+ was discarded while its cell ran\n", told)
    assert server.execute("1")["status"] == "ok"


@pytest.mark.req("trial.discard")
def test_a_session_with_an_open_trial_says_so(server: Server) -> None:
    server.make_session()
    server.execute("x = 1")
    name = server.execute("x = 2", trial=True, network=NETWORK)["trial"]["name"]
    for command in (["ps"], ["top", "--once"]):
        (line,) = (line for line in ingle(server, *command)[1].splitlines() if "main" in line)
        assert f"idle, {name} open  " in line
    assert server.client.get(SESSION).json()["trial"] == name
    told = ingle(server, "vars", "main")[2]
    assert told.startswith("ingle: a trial is open, and the session waits for it; ")
    ingle(server, "discard", "main")
    assert server.client.get(SESSION).json()["trial"] is None
    assert "trial" not in ingle(server, "ps")[1]
    assert ingle(server, "vars", "main")[2] == ""


async def call(tools: Tools, tool: str, **given: Any) -> str:
    async def nothing(seconds: float, line: str) -> None: ...

    answer = await tools.call(tool, given, nothing)
    return "\n".join(part.text for part in answer.parts)  # type: ignore[union-attr]


@pytest.mark.req("trial.effect", "trial.commit", "trial.discard", "try.best", "failure.kept")
async def test_over_mcp(service: Service) -> None:
    tools = Tools(service)
    await service.create_session("main", keep_failures=1)
    await call(tools, "python_session", code="x = 1")
    told = await call(tools, "trial", code="x = 2", network=NETWORK)
    assert "variables changed: x (1 -> 2)" in told
    assert "[next: trial(action='commit'), or 'discard']" in told
    refused = await call(tools, "python_session", code="x")
    assert re.fullmatch(
        r"busy: trial-\w+ is open\. Nothing was run\. Call trial\(action='commit'\) to keep what it did, "
        r"or the same with 'discard', or use another session",
        refused,
    )
    assert "is discarded; session main is as it was." in await call(tools, "trial", action="discard")
    assert await call(tools, "trial", action="discard") == "session 'main' has no open trial. trial(code=…) runs one"
    waiting = asyncio.create_task(call(tools, "trial", code="import time; time.sleep(1000)", network=NETWORK))
    while not await service.trials("main"):
        await asyncio.sleep(0.01)
    await call(tools, "trial", action="discard")
    told = await waiting
    assert re.search(r"\[trial-\w+ was discarded while its cell ran\]$", told)
    assert "commit" not in told
    await call(tools, "trial", code="x = 3", network=NETWORK)
    assert "is now one of this session." in await call(tools, "trial", action="commit")
    assert "needs code" in await call(tools, "trial")
    assert "[kept 1]" in await call(tools, "try_cells", codes=["x = 4", "x = 5"], score="x", network=NETWORK)
    told = await call(tools, "python_session", code=FAILS)
    assert "inspect_failure" in told
    told = await call(tools, "inspect_failure", expression="n * x")
    assert re.fullmatch(r"20\n\[cell \d, frame 1: half, line 3; n, rest\]", told)
    assert "NameError" in await call(tools, "inspect_failure", expression="rest", frame=0)
    await service.create_session("plain")
    told = await call(tools, "inspect_failure", session_id="plain", expression="x")
    assert told.startswith("session 'plain' keeps no failure of any cell. Failures are kept if the user starts ingle")


ANY_HOST = {"network": "any"}
"""Below a sandbox it is not known which hosts a cell asks for."""


@pytest.mark.req("trial.commit")
def test_policies_over_http_the_client_and_the_command_line(server: Server) -> None:
    server.make_session()
    server.execute("x = 1")
    result = server.execute("x = 2", trial=True, network=NETWORK, policy={**ANY_HOST, "variables": "none"})
    assert result["trial"]["decision"]["reasons"] == ["variables differ, or may: x (variables)"]
    server.client.post(f"{SESSION}/trials/{result['trial']['name']}/discard", json={})
    result = server.execute("x = 3", trial=True, network=NETWORK, policy=ANY_HOST)
    assert (result["trial"]["decision"]["committed"], server.execute("print(x)")["stdout"]) == (True, "3\n")
    problem(server.client.post(f"{SESSION}/execute", json={"code": "1", "policy": {}}), 422, "invalid_request")
    unknown = {"code": "1", "trial": True, "policy": {"files": "some"}}
    problem(server.client.post(f"{SESSION}/execute", json=unknown), 422, "invalid_request")
    with Client(server.url, server.token) as client:
        session = client.session("main")
        tried = session.trial("x = 4", network=NETWORK, policy=CommitPolicy(network="any"))
        assert tried.trial is not None
        assert tried.trial.decision is not None
        assert (tried.trial.decision.committed, session.run("x").text) == (True, "4")
    rules = "network=any, files=none, deletes=no, bytes=10MB"
    code, out, told = ingle(server, "trial", "main", "x = 5", "--network", NETWORK, "--policy", rules)
    assert (code, out) == (0, f"variables changed: x (4 -> 5)\n{REACH}"), told
    assert re.fullmatch(r"trial-\w+: committed by its policy: the cell succeeded; .*; any variable may differ\n", told)
    code, _, told = ingle(server, "trial", "main", "open('new', 'w')", "--network", NETWORK, "--policy", rules)
    assert "not committed by its policy, nothing has changed yet: files differ: new (files)" in told
    ingle(server, "discard", "main")
    code, _, told = ingle(server, "trial", "main", "1", "--policy", "bytes=many")
    assert (code, "is not a size such as" in told) == (2, True)
    assert server.execute("print(x)")["stdout"] == "5\n"


@pytest.mark.req("trial.commit")
async def test_policies_over_mcp(service: Service) -> None:
    tools = Tools(service)
    await service.create_session("main")
    await call(tools, "python_session", code="x = 1")
    told = await call(tools, "trial", code="x = 2", network=NETWORK, policy=ANY_HOST)
    assert "committed by its policy: the cell succeeded" in told
    assert "[next:" not in told
    told = await call(tools, "trial", code="1 / 0", network=NETWORK, policy=ANY_HOST)
    assert "not committed by its policy, nothing has changed yet: the cell did not succeed" in told
    assert "[next: trial(action='commit'), or 'discard']" in told
    await call(tools, "trial", action="discard")
    assert (await service.execute("main", "print(x)")).stdout == "2\n"

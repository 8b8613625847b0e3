"""Forks that become the session that they were forked from."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ingle import Client, errors
from ingle.service import Service
from ingle.settings import Settings
from support.server import Server, problem
from support.service import make_settings

pytestmark = [pytest.mark.both_levels, pytest.mark.req("fork.adopt")]


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1)


async def say(service: Service, sid: str, code: str) -> str:
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout


LOOK = "import os; print(x, sorted(os.listdir()), open('data').read(), os.getcwd() == home)"


async def test_a_fork_becomes_the_session(service: Service) -> None:
    await service.create_session("s")
    await say(service, "s", "import os; home = os.getcwd(); x = [1]; open('data', 'w').write('first')")
    await say(service, "s", "log = open('log', 'w')")
    await service.fork_session("s", "f")
    await say(service, "f", "x.append(2); open('data', 'w').write('of the fork'); log.write('told')")
    await say(service, "f", "print('in the fork'); process = os.getpid()")
    await say(service, "s", "x.append(9); open('lost', 'w').close()")
    done = await service.adopt("s", "f")
    assert done.notice == "adopted 'f': its variables and files are now those of this session, with cells 4 to 5"
    assert (done.cell, done.files.deleted if done.files else None) == (5, ["lost"])
    assert await say(service, "s", LOOK) == "[1, 2] ['data', 'log'] of the fork True\n"
    assert await say(service, "s", "log.close(); print(process == os.getpid(), open('log').read())") == "True told\n"
    cells = [(each.cell, each.code.partition(";")[0]) for each in await service.cells("s")]
    assert cells[3:5] == [(4, "x.append(2)"), (5, "print('in the fork')")]
    told = await service.wait("s", 5)
    assert (told.cell, told.session_id, told.stdout) == (5, "s", "in the fork\n")
    with pytest.raises(errors.SessionNotFound):
        await service.execute("f", "1")


async def test_forks_of_an_adopted_fork_go_on(service: Service) -> None:
    await service.create_session("s")
    await say(service, "s", "import os; home = os.getcwd(); x = 1; open('data', 'w').write('a')")
    await service.fork_session("s", "f")
    await say(service, "f", "x = 2; open('data', 'w').write('b')")
    await service.fork_session("f", "g")
    await service.fork_session("s", "later")
    await say(service, "g", "x = 3; open('data', 'w').write('c')")
    await service.checkpoint("s", "before")
    await service.adopt("s", "f")
    assert (await say(service, "g", LOOK)).startswith("3 ['data'] c ")
    assert await say(service, "s", LOOK) == "2 ['data'] b True\n"
    # Both the checkpoint and a fork from before are still good.
    await service.rollback("s", "before")
    assert await say(service, "s", LOOK) == "1 ['data'] a True\n"
    await say(service, "later", "x = 4; open('data', 'w').write('d')")
    await service.adopt("s", "later")
    assert await say(service, "s", LOOK) == "4 ['data'] d True\n"
    await service.fork_session("s", "f")
    await say(service, "f", "x = 5")
    await service.adopt("s", "f")
    assert await say(service, "s", LOOK) == "5 ['data'] d True\n"


async def test_only_a_fork_that_can_be_the_session_is_adopted(service: Service) -> None:
    await service.create_session("s")
    await service.create_session("other")
    await service.fork_session("s", "f")
    with pytest.raises(errors.Conflict, match="'other' is not a fork of 's'"):
        await service.adopt("s", "other")
    with pytest.raises(errors.Conflict, match="cannot adopt itself"):
        await service.adopt("s", "s")
    with pytest.raises(errors.SessionNotFound):
        await service.adopt("s", "nobody")
    waiting = await service.execute("f", "input()")
    with pytest.raises(errors.Busy):
        await service.adopt("s", "f")
    assert (await service.input("f", "go on")).cell == waiting.cell
    await service.execute("f", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(errors.Conflict, match="started anew"):
        await service.adopt("s", "f")
    # A refusal costs neither of them anything.
    assert await say(service, "s", "print(1)") == "1\n"
    assert await say(service, "f", "print(2)") == "2\n"


def test_over_http_the_client_and_the_command_line(server: Server) -> None:
    server.make_session()
    server.execute("x = 1")
    server.client.post("/v1/sessions/main/fork", json={"session_id": "copy"}).raise_for_status()
    server.execute("x = 2", "copy")
    problem(server.client.post("/v1/sessions/copy/adopt", json={"fork": "main"}), 409, "conflict")
    done = server.client.post("/v1/sessions/main/adopt", json={"fork": "copy"}).json()
    assert (done["cell"], server.execute("print(x)")["stdout"]) == (2, "2\n")
    problem(server.client.get("/v1/sessions/copy"), 404, "session_not_found")
    with Client(server.url, server.token) as client:
        main = client.session("main")
        main.fork("again").run("x = 3")
        assert "adopted 'again'" in main.adopt("again").notice
        assert main.run("print(x)").stdout == "3\n"
    server.client.post("/v1/sessions/main/fork", json={"session_id": "last"}).raise_for_status()
    server.execute("x = 4", "last")
    command = [sys.executable, "-m", "ingle", "adopt", "main", "last"]
    env = {**os.environ, "INGLE_HOME": str(server.home)}
    told = subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout
    assert told.startswith("adopted 'last': ")
    assert server.execute("print(x)")["stdout"] == "4\n"

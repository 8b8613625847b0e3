"""Callers reach a session's files through the session's own confinement, and through nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ingle import errors
from ingle.service import Service
from ingle.sessions import files
from support.server import PATIENCE, Server, problem
from support.tokens import client_with, ingle_token


@pytest.mark.req("safe.isolation")
def test_a_caller_writes_nothing_where_its_session_may_only_read(start: Callable[..., Server], tmp_path: Path) -> None:
    folder = tmp_path / "shown"
    (folder / "below").mkdir(parents=True)
    (folder / "file").write_text("as it was")
    server = start("--isolation", "sandbox", "--mount", f"{folder}:ro")
    path = f"/v1/sessions/{server.make_session(cwd=str(folder))['session_id']}/files"
    assert server.client.get(f"{path}/file").text == "as it was"
    for name in ("new", "file", "below/new", "new/folder/file"):
        answer = server.client.put(f"{path}/{name}", content=b"changed")
        assert answer.status_code in (403, 422), answer.text
    for name in ("file", "below"):
        assert server.client.delete(f"{path}/{name}").status_code in (403, 422)
    saved = server.client.post(f"{path.removesuffix('/files')}/save", json={"name": "./state"})
    assert saved.status_code in (403, 422), saved.text
    found = {str(each.relative_to(folder)): each.is_file() and each.read_text() for each in folder.rglob("*")}
    assert found == {"below": False, "file": "as it was"}


@pytest.mark.req("safe.isolation")
def test_a_tenant_plants_no_code_in_an_environment_that_is_shown(
    start: Callable[..., Server], home: Path, tmp_path: Path
) -> None:
    shown, proof = tmp_path / "shown", tmp_path / "proof"
    environment = shown / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=PATIENCE)
    home.mkdir(mode=0o700)
    token = ingle_token(home, "new", "tenant", "--scope", "execute")
    server = start("--isolation", "sandbox", "--mount", f"{shown}:ro")
    packages = next(environment.glob("lib/python3*/site-packages"))
    planted = f"{packages.relative_to(shown)}/sitecustomize.py"
    with client_with(server, token) as client:
        client.post("/v1/sessions", json={"session_id": "main", "cwd": str(shown)}).raise_for_status()
        code = f"open({str(proof)!r}, 'w').write('ran')"
        assert client.put(f"/v1/sessions/main/files/{planted}", content=code.encode()).status_code in (403, 422)
        python = str(environment / "bin" / "python")
        client.post("/v1/sessions", json={"session_id": "second", "python": python})
    assert not (shown / planted).exists()
    assert not proof.exists()


@pytest.mark.req("safe.isolation")
def test_the_servers_own_data_is_not_handed_out_through_a_folder_around_it(
    start: Callable[..., Server], home: Path
) -> None:
    home.parent.chmod(0o755)
    server = start("--isolation", "sandbox", "--mount", f"{home.parent}:ro")
    path = f"/v1/sessions/{server.make_session(cwd=str(home.parent))['session_id']}/files"
    assert (home / "token").read_text().strip() == server.token
    problem(server.client.get(f"{path}/home/token"), 404, "file_not_found")
    listed = server.client.get(path, params={"folder": "home"}).json()
    assert "token" not in {each["name"] for each in listed.get("files", [])}


@pytest.mark.req("safe.isolation")
def test_a_folder_around_the_data_is_refused_where_only_rules_for_files_hold(home: Path) -> None:
    home.mkdir(mode=0o700)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "ingle", "serve", "--port", "0"),
            *("--isolation", "restricted", "--mount", f"{home.parent}:ro"),
        ],
        env={**os.environ, "INGLE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode != 0
    assert "could read the server's own data" in ended.stderr


LINES = "import os; os.environ['INGLE_TEST_RAN'] = 'yes'\n"


@pytest.mark.req("state.save")
async def test_a_save_to_a_path_is_a_file_that_only_ingle_reads(service: Service, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    await service.create_session("main", cwd=str(start))
    await service.execute("main", f"text = {LINES!r} * 20_000")
    saved = await service.save_session("main", "out/state.pth", start=str(start))
    assert saved.snapshot == "out/state.pth.ingle"
    assert os.listdir(start / "out") == ["state.pth.ingle"]
    data = (start / "out" / "state.pth.ingle").read_bytes()
    assert data.startswith(b"INGLE\0\x02\n")
    assert b"import os" not in data
    for number, path in enumerate(("out/state.pth", "out/state.pth.ingle")):
        await service.load_session(path, f"again-{number}", start=str(start))
        result = await service.execute(f"again-{number}", f"text == {LINES!r} * 20_000")
        assert result.result == {"text/plain": "True"}


@pytest.mark.req("state.save")
async def test_no_save_lands_where_python_loads_code_from(service: Service, tmp_path: Path) -> None:
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    await service.create_session("main", cwd=str(tmp_path))
    for target in ("env/lib/python3.11/site-packages/zz", "env/lib/python3.11/site-packages/a/b.ingle"):
        with pytest.raises(errors.NotGranted, match="loads code from"):
            await service.save_session("main", target, start=str(tmp_path))
    with pytest.raises(errors.NotGranted, match="loads code from"):
        await service.save_session("main", "sub/state", start=str(Path(errors.__file__).parents[1]))
    assert [each for each in packages.rglob("*") if each.is_file()] == []


@pytest.mark.req("safe.input")
async def test_an_agent_that_does_not_answer_costs_one_request(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code of the session may stop the agent, whose user it has."""
    monkeypatch.setattr(files, "SILENCE_SECONDS", 1.0)
    await service.create_session("main")
    code = """
import os, signal, threading
init, me = os.getppid(), os.getpid()
def stop():
    while True:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                about = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
                if int(about[1]) == init and int(name) != me:
                    os.kill(int(name), signal.SIGSTOP)
            except OSError: pass
threading.Thread(target=stop, daemon=True).start()
"""
    await service.execute("main", code)
    asked = [service.list_files("main") for _ in range(20)]
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, errors.Unavailable) or each.files == [] for each in ended), ended
    assert (await service.execute("main", "1 + 1")).result == {"text/plain": "2"}


async def test_a_session_whose_process_was_freed_serves_its_files(service: Service) -> None:
    await service.create_session("main")

    async def content(text: bytes):  # type: ignore[no-untyped-def]
        yield text

    await service.write_file("main", "a.txt", content(b"one"))
    await service.execute("main", "import os; os.kill(os.getpid(), 9)")
    opened = await service.open_file("main", "a.txt")
    assert [each async for each in opened.chunks(0, opened.size)] == [b"one"]
    opened.close()
    assert [each.name for each in (await service.list_files("main")).files] == ["a.txt"]
    await service.remove_file("main", "a.txt")
    assert (await service.list_files("main")).files == []

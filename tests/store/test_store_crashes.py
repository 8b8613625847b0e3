"""Real servers with one object store: killed while they save, claim and restore; and what their sessions see of it."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from support.crash_rounds import children, name_of
from support.object_store import KEY, SECRET, bucket, environment
from support.server import Server
from support.store_rounds import run_rounds


@pytest.mark.req("store.remote")
@pytest.mark.timeout(240)
def test_kill_9_while_two_servers_share_a_folder(apart: Path, mark: str, tmp_path: Path) -> None:
    print("\n".join(run_rounds(3, apart, str(tmp_path / "store"), {})))


def descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from descendants(child)


@pytest.mark.req("store.remote")
def test_no_process_of_a_session_has_the_credentials(apart: Path, mark: str, s3: str) -> None:
    """Even unconfined, and although the operator passes all variables on."""
    with bucket(s3, f"b-{uuid4().hex}") as url:
        flags = ("--store", url, "--isolation", "none", "--keep-env", "AWS_SECRET_ACCESS_KEY,AWS_ACCESS_KEY_ID")
        server = Server(apart / "home", *flags, env=environment(s3))
        try:
            server.make_session(durable=True)
            seen = server.execute("import os; dict(os.environ)")["result"]["text/plain"]
            assert SECRET not in seen
            assert KEY not in seen
            shell = server.execute("import subprocess; subprocess.run('env', capture_output=True).stdout")
            assert SECRET not in shell["result"]["text/plain"]
            task = server.client.post("/v1/shell", json={"command": "env"}).json()
            assert "PATH=" in str(task)
            assert SECRET not in str(task)
            names = {name_of(pid) for pid in descendants(server.process.pid)}
            assert {"ingle-zygote", "ingle-init", "ingle-session"} <= names
            for pid in descendants(server.process.pid):
                for file in ("environ", "cmdline"):
                    content = Path(f"/proc/{pid}/{file}").read_bytes()
                    assert SECRET.encode() not in content, (pid, file)
                    assert KEY.encode() not in content, (pid, file)
            server.client.delete("/v1/sessions/main")
        finally:
            server.stop()

"""The reference servers of MCP, called by code in a session."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import running

pytestmark = pytest.mark.req("tools.call")

NODE = Path(os.environ["INGLE_COMPAT_NODE"])
needs_node = pytest.mark.skipif(
    not NODE.is_dir(), reason="npm is not installed: the servers `everything` and `filesystem` are not tested"
)

Run = Callable[[str], Any]


def request(url: str, token: str, body: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files, which is a repository too."""
    made = tmp_path_factory.mktemp("notes")
    (made / "a.txt").write_text("apples\n")
    (made / "b.txt").write_text("pears\n")
    git = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "--quiet"], ["add", "a.txt"], ["commit", "--quiet", "--message=Begin"]):
        subprocess.run([*git, *command], cwd=made, check=True)
    return made


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run code in a session of a server that has all reference servers. Return the value that it prints as JSON."""
    file = tmp_path_factory.mktemp("servers") / "servers.json"
    servers = {
        "everything": {"command": str(NODE / "mcp-server-everything"), "args": ["stdio"]},
        "filesystem": {"command": str(NODE / "mcp-server-filesystem"), "args": [str(folder)]},
        "git": {"command": sys.executable, "args": ["-m", "mcp_server_git", "--repository", str(folder)]},
        "fetch": {
            "command": sys.executable,
            "args": ["-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"],
        },
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    home = file.parent / "home"
    with running(home, "--servers", str(file), "--tool-policy", "allow", "--preload", "") as url:
        token = (home / "token").read_text().strip()
        request(f"{url}/v1/sessions", token, {"session_id": "s"})

        def run_code(code: str) -> Any:
            body = {"code": f"import json, tools\n{code}", "wait": 60}
            result = request(f"{url}/v1/sessions/s/execute", token, body)
            assert result["status"] == "ok", result["error"]
            return json.loads(result["stdout"])

        yield run_code


@needs_node
def test_everything(run: Run) -> None:
    names = run("print(json.dumps(tools.everything.__all__))")
    assert {"echo", "get_sum"} <= set(names)
    assert "echo" in run("print(json.dumps(tools.search('echo the input')))")[0]
    assert run("print(json.dumps(tools.everything.echo(message='ä✓')))") == "Echo: ä✓"
    assert "5" in run("print(json.dumps(tools.everything.get_sum(a=2, b=3)))")
    weather = run("print(json.dumps(tools.everything.get_structured_content(location='Chicago')))")
    assert isinstance(weather["temperature"], int | float)
    code = """
found = [each for each in tools.everything.get_tiny_image() if isinstance(each, bytes)]
print(json.dumps([found[0][1:4].decode(), found[0].mime_type]))
"""
    assert run(code) == ["PNG", "image/png"]
    code = """
try:
    tools.everything.get_sum(a='x', b=1)
except TypeError as error:
    print(json.dumps(str(error)))
"""
    assert "a must be a number, not str" in run(code)
    code = """
import asyncio
all = await asyncio.gather(*(tools.everything.get_sum.aio(a=n, b=1) for n in range(32)))
print(json.dumps(sum(str(n + 1) in text for n, text in enumerate(all))))
"""
    assert run(code) == 32


@needs_node
def test_filesystem(run: Run, folder: Path) -> None:
    code = f"print(json.dumps(tools.filesystem.read_text_file(path={str(folder / 'a.txt')!r})))"
    assert "apples" in str(run(code))
    code = f"""
tools.filesystem.write_file(path={str(folder / "c.txt")!r}, content="plums")
print(json.dumps(str(tools.filesystem.list_directory(path={str(folder)!r}))))
"""
    assert "c.txt" in run(code)
    assert (folder / "c.txt").read_text() == "plums"
    code = """
try:
    tools.filesystem.read_text_file(path="/etc/passwd")
except tools.ToolError as error:
    print(json.dumps([error.kind, str(error)]))
"""
    kind, words = run(code)
    assert kind == "tool"
    assert "denied" in words


def test_git(run: Run, folder: Path) -> None:
    assert "b.txt" in run(f"print(json.dumps(str(tools.git.git_status(repo_path={str(folder)!r}))))")
    assert "Begin" in run(f"print(json.dumps(str(tools.git.git_log(repo_path={str(folder)!r}, max_count=1))))")


def test_fetch(run: Run, folder: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{site.server_port}/a.txt"
        assert "apples" in run(f"print(json.dumps(str(tools.fetch.fetch(url={address!r}))))")
        site.shutdown()

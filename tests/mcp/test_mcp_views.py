"""Views of MCP Apps: which tools name them, what a host reads, and what they show of hostile results."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ingle.mcp import views
from support.mcp_host import INITIALIZE, Host
from support.mcp_model import over_http
from support.server import Server

UI = {"extensions": {views.EXTENSION: {"mimeTypes": [views.MIME]}}}

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

in_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is missing; install it with `apt-get install chromium`"
)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

HOST = """<script>
// A host in the same window: it answers the view's first message, and then sends what a tool was given and answered.
const given = %s;
window.said = [];
window.addEventListener("message", (event) => {
  const message = event.data;
  if (message?.jsonrpc !== "2.0" || message.host) return;
  window.said.push(message.method ?? "answer");
  const say = (told) => window.postMessage({ jsonrpc: "2.0", host: true, ...told }, "*");
  if (message.method === "ui/initialize") {
    say({ id: message.id, result: { protocolVersion: "2026-01-26", hostContext: { theme: "dark" } } });
  } else if (message.method === "ui/notifications/initialized") {
    say({ method: "ui/notifications/tool-input", params: { arguments: given.arguments } });
    say({ method: "ui/notifications/tool-result", params: given.result });
    setTimeout(() => document.body.setAttribute("data-said", [...new Set(window.said)].join(" ")), 200);
  }
});
</script>"""


def shown(tmp_path: Path, view: str, arguments: dict[str, Any], result: dict[str, Any]) -> str:
    """Return the page after the view has shown a result."""
    given = json.dumps({"arguments": arguments, "result": result}).replace("<", "\\u003c")
    page = views.page(view).replace("<head>", "<head>" + HOST % given)
    (tmp_path / "view.html").write_text(page)
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    ended = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "view.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return ended.stdout


def body_of(page: str) -> str:
    found = re.search(r"<main id=\"view\">(.*)</main>", page, re.DOTALL)
    assert found is not None, page
    return found[1]


def test_tools_name_their_views_to_hosts_that_show_them_and_to_no_others(home: Path, mark: str) -> None:
    with Host(home) as host:
        host.initialize()
        plain = host.request("tools/list", {})["result"]["tools"]
        assert not [tool for tool in plain if "_meta" in tool]
    with Host(home) as host:
        host.request("initialize", {**INITIALIZE, "capabilities": UI})
        host.send({"method": "notifications/initialized"})
        listed = host.request("tools/list", {})["result"]["tools"]
        assert len(host.lines[-1]) <= 12_000
        named = {tool["name"]: tool["_meta"]["ui"]["resourceUri"] for tool in listed if "_meta" in tool}
        assert named == {
            **dict.fromkeys(["python_session", "python", "wait", "send_input", "interrupt"], "ui://ingle/cell"),
            "get_session_namespace": "ui://ingle/variables",
        }
        assert [{**tool, "_meta": None} for tool in listed] == [{**tool, "_meta": None} for tool in plain]
        for uri in set(named.values()):
            (page,) = host.request("resources/read", {"uri": uri})["result"]["contents"]
            assert (page["uri"], page["mimeType"]) == (uri, "text/html;profile=mcp-app")
            assert page["text"].startswith("<!doctype html>")


def test_a_view_is_read_over_http_too(server: Server) -> None:
    request = over_http(server.client)
    (page,) = request("resources/read", {"uri": "ui://ingle/cell"})["result"]["contents"]
    assert page["mimeType"] == views.MIME
    assert "error" in request("resources/read", {"uri": "ui://ingle/../cell"})


@pytest.mark.parametrize("view", views.VIEWS, ids=lambda view: view.name)
def test_a_view_asks_nothing_of_other_hosts_and_reads_no_text_as_html(view: views.View) -> None:
    page = views.page(view.name)
    assert not re.findall(r"https?://|\bsrc=|\bhref=|@import|url\(", page)
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", page)


@in_browser
def test_a_cell_is_shown_with_its_table_and_its_plot(tmp_path: Path) -> None:
    result = {
        "session_id": "main",
        "cell": 3,
        "status": "ok",
        "success": True,
        "stdout": "10 %\r100 %\nprinted",
        "stderr": "",
        "displays": [],
        "result": {"text/html": "<table><tr><td>7</td></tr></table>", "text/plain": "7"},
        "error": None,
        "notices": [],
        "execution_time": 1.25,
    }
    content = [{"type": "text", "text": "ignored"}, {"type": "image", "mimeType": "image/png", "data": PNG}]
    page = shown(tmp_path, "cell", {"code": "df"}, {"content": content, "_meta": {"ingle/result": result}})
    body = body_of(page)
    assert '<pre class="code">df</pre><pre class="stdout">100 %\nprinted</pre>' in body
    assert f'src="data:image/png;base64,{PNG}"' in body
    assert '<iframe sandbox="" title="output of the cell" srcdoc="' in body
    assert "cell 3 of main · ok · 1.3 s" in body
    assert "ignored" not in body
    assert "size-changed" in page
    assert 'style="color-scheme: dark;"' in page


@in_browser
def test_variables_are_a_table(tmp_path: Path) -> None:
    variables = [
        {"name": "df", "type": "DataFrame", "shape": [3, 2], "size": 2048, "preview": "<b>3 rows</b>"},
        {"name": "n", "type": "int", "preview": "1"},
    ]
    told = {"content": [], "_meta": {"ingle/variables": {"session_id": "main", "variables": variables, "more": 4}}}
    body = body_of(shown(tmp_path, "variables", {}, told))
    assert "<td>df</td><td>DataFrame</td><td>3 × 2</td><td>2 kB</td><td>&lt;b&gt;3 rows&lt;/b&gt;</td>" in body
    assert "4 more" in body


@in_browser
def test_nothing_of_a_hostile_result_runs_in_a_view(tmp_path: Path) -> None:
    attack = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b]0;owned\x07"
    result = {
        "session_id": attack,
        "cell": attack,
        "status": attack,
        "stdout": attack,
        "stderr": attack,
        "displays": [{"text/html": attack}, {"text/plain": attack}],
        "result": {"text/html": attack + "<script>parent.document.title='owned'</script>"},
        "error": {"traceback": attack},
        "notices": [attack],
    }
    content = [
        {"type": "image", "mimeType": "image/svg+xml", "data": attack},
        {"type": "image", "mimeType": 'image/png" onerror="document.title=1', "data": PNG},
        {"type": "image", "mimeType": "image/png", "data": '" onerror="document.title=1'},
    ]
    page = shown(tmp_path, "cell", {"code": attack}, {"content": content, "_meta": {"ingle/result": result}})
    assert "<title>ingle</title>" in page
    body = body_of(page)
    assert "<script" not in re.sub(r'srcdoc="[^"]*"', "", body)
    assert "<img" not in re.sub(r'srcdoc="[^"]*"', "", body)
    assert set(re.findall(r"<iframe sandbox=\"([^\"]*)\"", body)) == {""}
    variables = [{"name": attack, "type": attack, "preview": attack, "shape": [attack], "size": attack}]
    told = {"content": [], "_meta": {"ingle/variables": {"session_id": attack, "variables": variables, "more": attack}}}
    page = shown(tmp_path, "variables", {}, told)
    assert "<title>ingle</title>" in page
    assert "<img" not in body_of(page)

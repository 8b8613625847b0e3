"""The API of Jupyter on sessions: kernels, their messages in both framings, and the form of its errors."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from uuid import uuid4

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from support.server import PATIENCE, Server
from support.tokens import client_with, ingle_token

V1 = "v1.kernel.websocket.jupyter.org"


class Channels:
    """One client of a kernel, as JupyterLab and other programs are."""

    def __init__(self, server: Server, kernel_id: str, *, token: str | None = None, v1: bool = False) -> None:
        url = server.url.replace("http", "ws") + f"/api/kernels/{kernel_id}/channels?session_id=abc"
        headers = {"Authorization": f"token {token or server.token}"}
        subprotocols: Any = [V1] if v1 else None
        self._connection = connect(url, additional_headers=headers, subprotocols=subprotocols)
        self.socket: ClientConnection = self._connection.__enter__()
        assert self.socket.subprotocol == (V1 if v1 else None)
        self.v1 = v1

    def close(self) -> None:
        self._connection.__exit__(None, None, None)

    def send(self, kind: str, channel: str | None = "shell", **content: Any) -> str:
        header = {"msg_id": uuid4().hex, "msg_type": kind, "username": "u", "session": "s", "version": "5.3"}
        if self.v1:
            parts = [(channel or "").encode(), *(json.dumps(each).encode() for each in (header, {}, {}, content))]
            offsets = [8 * (len(parts) + 2)]
            for part in parts:
                offsets.append(offsets[-1] + len(part))
            self.socket.send(struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(parts))
        else:
            said = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
            self.socket.send(json.dumps({**said, **({"channel": channel} if channel else {})}))
        return header["msg_id"]

    def receive(self) -> dict[str, Any]:
        data = self.socket.recv(PATIENCE)
        if isinstance(data, str):
            return json.loads(data)
        count, *offsets = struct.unpack_from(f"<{1 + struct.unpack_from('<Q', data)[0]}Q", data)
        parts = [data[begin:end] for begin, end in pairwise(offsets)]
        header, parent, _, content = map(json.loads, parts[1:5])
        assert count == len(offsets)
        return {
            "channel": parts[0].decode(),
            "header": header,
            "msg_type": header["msg_type"],
            "parent_header": parent,
            "content": content,
        }

    def until_idle(self, request: str) -> list[dict[str, Any]]:
        """The messages about a request, to its end."""
        found: list[dict[str, Any]] = []
        while True:
            message = self.receive()
            if message["parent_header"].get("msg_id") == request:
                found.append(message)
                if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    return found

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not condition(message := self.receive()):
            continue
        return message

    def reply(self, kind: str, channel: str | None = "shell", **content: Any) -> dict[str, Any]:
        messages = self.until_idle(self.send(kind, channel, **content))
        (found,) = [each["content"] for each in messages if each["msg_type"].endswith("_reply")]
        return found

    def execute(self, code: str, **options: Any) -> list[tuple[str, str, dict[str, Any]]]:
        messages = self.until_idle(self.send("execute_request", code=code, **options))
        return [(each["channel"], each["msg_type"], each["content"]) for each in messages]

    def text(self, code: str) -> str:
        return "".join(content["text"] for _, kind, content in self.execute(code) if kind == "stream")


@pytest.fixture
def open_channels(shared_server: Server) -> Iterator[Callable[..., Channels]]:
    opened: list[Channels] = []

    def make(kernel_id: str, **options: Any) -> Channels:
        opened.append(Channels(shared_server, kernel_id, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def kernel_of(server: Server, name: str) -> str:
    (found,) = [each["id"] for each in server.client.get("/api/kernels").json() if each["session_name"] == name]
    return found


@pytest.fixture
def kernel(shared_server: Server) -> str:
    answer = shared_server.client.post("/api/kernels", json={"name": "python3", "path": None})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


pytestmark = pytest.mark.req("compat.jupyter")


# --- kernels -----------------------------------------------------------------------------------------------


def test_kernels_are_started_listed_restarted_and_ended(shared_server: Server) -> None:
    client = shared_server.client
    assert "version" in client.get("/api").json()
    specs = client.get("/api/kernelspecs").json()
    assert (specs["default"], list(specs["kernelspecs"])) == ("python3", ["python3"])
    assert client.get("/api/kernelspecs/python3").json()["spec"]["language"] == "python"
    made = client.post("/api/kernels")
    model = made.json()
    assert (made.status_code, made.headers["location"]) == (201, f"/api/kernels/{model['id']}")
    assert {**model, "last_activity": "", "session_name": "", "id": ""} == {
        "id": "",
        "name": "python3",
        "last_activity": "",
        "execution_state": "idle",
        "connections": 0,
        "session_name": "",
    }
    path = f"/api/kernels/{model['id']}"
    assert client.get(path).json() == model
    assert [each["id"] for each in client.get("/api/kernels").json()] == [model["id"]]
    assert client.get("/api/status").json()["kernels"] == 1
    shared_server.execute("x = 1", model["session_name"])
    assert client.post(path + "/interrupt").status_code == 204
    again = client.post(path + "/restart")
    assert (again.status_code, again.json()["id"]) == (200, model["id"])
    assert shared_server.execute("'x' in dir()", model["session_name"])["result"] == {"text/plain": "False"}
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert client.get("/v1/sessions").json()["sessions"] == []


def test_a_session_is_a_kernel_that_jupyter_only_detaches_from(shared_server: Server, open_channels: Any) -> None:
    client = shared_server.client
    shared_server.make_session("agent")
    shared_server.execute("answer = 42", "agent")
    kernel_id = kernel_of(shared_server, "agent")
    channels = open_channels(kernel_id)
    assert channels.text("print(answer)") == "42\n"
    assert "session.agent" in client.get("/api/kernelspecs").json()["kernelspecs"]
    joined = client.post("/api/kernels", json={"name": "session.agent"})
    assert (joined.status_code, joined.json()["id"]) == (201, kernel_id)
    assert client.delete(f"/api/kernels/{kernel_id}").status_code == 204
    assert channels.reply("shutdown_request", "control", restart=False)["status"] == "ok"
    assert shared_server.execute("answer", "agent")["result"] == {"text/plain": "42"}
    # A restart keeps the session and its cells, and ends the process.
    assert client.post(f"/api/kernels/{kernel_id}/restart").status_code == 200
    assert shared_server.execute("'answer' in dir()", "agent")["result"] == {"text/plain": "False"}
    assert shared_server.client.get("/v1/sessions/agent").json()["execution_count"] > 3


def test_documents_have_sessions_of_jupyter(shared_server: Server) -> None:
    client = shared_server.client
    new = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
    made = client.post("/api/sessions", json=new)
    assert made.status_code == 201
    one = made.json()
    assert (one["path"], one["type"], one["kernel"]["execution_state"]) == ("a.ipynb", "notebook", "idle")
    assert client.post("/api/sessions", json=new).json()["id"] == one["id"]
    path = f"/api/sessions/{one['id']}"
    assert client.get("/api/sessions").json() == [client.get(path).json()] == [one]
    changed = client.patch(path, json={"path": "b.ipynb", "kernel": {"name": "python3"}}).json()
    assert (changed["path"], changed["kernel"]["id"] != one["kernel"]["id"]) == ("b.ipynb", True)
    assert (
        client.patch(path, json={"kernel": {"id": one["kernel"]["id"]}}).json()["kernel"]["id"] == one["kernel"]["id"]
    )
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert client.get(f"/api/kernels/{one['kernel']['id']}").status_code == 404


# --- messages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v1", [False, True], ids=["json", "v1"])
def test_code_runs_with_the_messages_of_a_kernel(kernel: str, open_channels: Any, v1: bool) -> None:
    channels = open_channels(kernel, v1=v1)
    info = channels.reply("kernel_info_request")
    assert (info["status"], info["protocol_version"], info["language_info"]["name"]) == ("ok", "5.3", "python")
    assert channels.execute("print('hi')\n'é'") == [
        ("iopub", "status", {"execution_state": "busy"}),
        ("iopub", "execute_input", {"code": "print('hi')\n'é'", "execution_count": 1}),
        ("iopub", "stream", {"name": "stdout", "text": "hi\n"}),
        ("iopub", "execute_result", {"data": {"text/plain": "'é'"}, "metadata": {}, "execution_count": 1}),
        ("shell", "execute_reply", {"status": "ok", "execution_count": 1, "user_expressions": {}, "payload": []}),
        ("iopub", "status", {"execution_state": "idle"}),
    ]
    *_, failed, (_, _, reply), _ = channels.execute("1/0")
    assert failed[1:] == ("error", {each: reply[each] for each in ("ename", "evalue", "traceback")})
    assert (reply["status"], reply["ename"], reply["evalue"]) == ("error", "ZeroDivisionError", "division by zero")


def test_displays_have_ids_json_and_full_images(kernel: str, open_channels: Any) -> None:
    channels = open_channels(kernel)
    shown = channels.execute(
        "from IPython.display import display, update_display, JSON\n"
        "display(JSON({'a': 1}), display_id='one')\nupdate_display('two', display_id='one')"
    )
    first, second = [(kind, content) for _, kind, content in shown if "display" in kind]
    assert (first[0], first[1]["data"]["application/json"]) == ("display_data", {"a": 1})
    assert (second[0], first[1]["transient"], second[1]["transient"]) == (
        "update_display_data",
        {"display_id": "one"},
        {"display_id": "one"},
    )


def test_expressions_of_a_request_are_evaluated_after_its_code(kernel: str, open_channels: Any) -> None:
    channels = open_channels(kernel)
    wanted = {"value": "x + 1", "shown": "[x]", "wrong": "missing"}
    messages = channels.execute("x = 1", user_expressions=wanted)
    assert [kind for _, kind, _ in messages] == ["status", "execute_input", "execute_reply", "status"]
    found = messages[2][2]["user_expressions"]
    assert found["value"] == {"status": "ok", "data": {"text/plain": "2"}, "metadata": {}}
    assert found["shown"]["data"] == {"text/plain": "[1]"}
    assert (found["wrong"]["status"], found["wrong"]["ename"]) == ("error", "NameError")
    *_, (_, _, failed), _ = channels.execute("1/0", user_expressions={"value": "x"})
    assert (failed["status"], "user_expressions" in failed) == ("error", False)


def test_a_widget_is_shown_as_text_and_its_messages_are_answered(kernel: str, open_channels: Any) -> None:
    channels = open_channels(kernel)
    code = (
        "class Slider:\n    def _repr_mimebundle_(self, **options):\n"
        "        view = {'model_id': 'm', 'version_major': 2, 'version_minor': 0}\n"
        "        return {'application/vnd.jupyter.widget-view+json': view, 'text/plain': 'Slider(value=1)'}\n"
        "display(Slider())\nSlider()"
    )
    shown = [content["data"] for _, kind, content in channels.execute(code) if "data" in content]
    assert shown == [{"text/plain": "Slider(value=1)"}, {"text/plain": "Slider(value=1)"}]
    # No object of the session has this connection, so that it is closed at once.
    opened = channels.until_idle(channels.send("comm_open", comm_id="c", target_name="jupyter.widget", data={}))
    assert [each["msg_type"] for each in opened] == ["status", "comm_close", "status"]
    assert opened[1]["content"] == {"comm_id": "c", "data": {}}
    for kind in ("comm_msg", "comm_close"):
        told = channels.until_idle(channels.send(kind, comm_id="c", data={}))
        assert [each["msg_type"] for each in told] == ["status", "status"]
    assert channels.text("print(1)") == "1\n"


def test_output_of_others_is_shown_while_a_cell_waits_for_its_turn(
    shared_server: Server, kernel: str, open_channels: Any
) -> None:
    channels = open_channels(kernel)
    name = shared_server.client.get(f"/api/kernels/{kernel}").json()["session_name"]
    path = f"/v1/sessions/{name}/execute"
    code = "print('begun', flush=True)\nprint(input())"
    shared_server.client.post(path, json={"code": code, "wait": 0})
    channels.until(lambda each: each["content"].get("text") == "begun\n")
    request = channels.send("execute_request", code="'own'")
    channels.until(lambda each: each["parent_header"].get("msg_id") == request)
    shared_server.client.post(f"/v1/sessions/{name}/input", json={"text": "answered\n"})
    channels.until(lambda each: "answered" in each["content"].get("text", ""))
    own = [each["msg_type"] for each in channels.until_idle(request)]
    assert own == ["execute_input", "execute_result", "execute_reply", "status"]


def test_requests_besides_code_are_answered(kernel: str, open_channels: Any) -> None:
    channels = open_channels(kernel)
    channels.execute("def greet(name): 'Say hello.'")
    completed = channels.reply("complete_request", code="gre", cursor_pos=99)
    assert (completed["matches"], completed["cursor_start"], completed["cursor_end"]) == (["greet"], 0, 3)
    told = channels.reply("inspect_request", code="greet(", cursor_pos=5, detail_level=0)
    assert told["found"] is True
    assert "Signature: greet(name)" in told["data"]["text/plain"]
    assert "Say hello." in told["data"]["text/plain"]
    assert channels.reply("inspect_request", code="nothing")["found"] is False
    assert channels.reply("is_complete_request", code="if x:") == {"status": "incomplete", "indent": "    "}
    assert channels.reply("comm_info_request") == {"status": "ok", "comms": {}}
    channels.execute("2")
    lines = [[0, 1, "def greet(name): 'Say hello.'"], [0, 2, "2"]]
    assert channels.reply("history_request", hist_access_type="tail", n=10)["history"] == lines
    assert channels.reply("history_request", hist_access_type="tail", n=1)["history"] == lines[1:]
    assert channels.reply("history_request", hist_access_type="range", start=1, stop=2)["history"] == lines[:1]
    assert channels.reply("history_request", hist_access_type="search", pattern="def*")["history"] == lines[:1]
    assert channels.reply("history_request", output=True, n=1)["history"] == [[0, 2, ["2", None]]]
    opened = channels.until_idle(channels.send("comm_open", comm_id="c", target_name="jupyter.widget"))
    assert [each["msg_type"] for each in opened] == ["status", "comm_close", "status"]
    assert channels.reply("interrupt_request", None)["status"] == "ok"


def test_input_is_asked_for_on_the_stdin_channel(kernel: str, open_channels: Any) -> None:
    channels = open_channels(kernel)
    request = channels.send("execute_request", code="print('on'); name = input('Who? ')\nprint(name)", allow_stdin=True)
    asked = channels.until(lambda each: each["msg_type"] == "input_request")
    assert (asked["channel"], asked["content"]) == ("stdin", {"prompt": "Who? ", "password": False})
    assert asked["parent_header"]["msg_id"] == request
    channels.send("input_reply", "stdin", value="Ada")
    rest = channels.until_idle(request)
    assert [each["content"]["text"] for each in rest if each["msg_type"] == "stream"] == ["Ada\n"]
    *_, (_, _, reply), _ = channels.execute("input()", allow_stdin=False)
    assert (reply["status"], reply["ename"]) == ("error", "StdinNotImplementedError")
    assert channels.text("print('Who? ', end='')") == "Who? "


def test_an_error_aborts_the_requests_behind_it(kernel: str, open_channels: Any) -> None:
    channels = open_channels(kernel)
    first = channels.send("execute_request", code="input()", allow_stdin=True)
    channels.until(lambda each: each["msg_type"] == "input_request")
    behind = [channels.send("execute_request", code="print('never')") for _ in range(3)]
    # The answer to a later request shows that the server has those before it.
    channels.reply("comm_info_request")
    assert channels.reply("interrupt_request", "control")["status"] == "ok"
    channels.until(lambda each: each["parent_header"].get("msg_id") == first and each["msg_type"] == "execute_reply")
    for request in behind:
        (reply,) = [each for each in channels.until_idle(request) if each["msg_type"] == "execute_reply"]
        assert reply["content"] == {"status": "aborted"}
    assert channels.text("print('now')") == "now\n"


def test_silent_and_empty_code_show_nothing(kernel: str, open_channels: Any) -> None:
    channels = open_channels(kernel)
    kinds = [kind for _, kind, _ in channels.execute("print('quiet')", silent=True)]
    assert kinds == ["status", "execute_reply", "status"]
    assert [kind for _, kind, _ in channels.execute("  \n")] == ["status", "execute_reply", "status"]


def test_a_process_that_dies_is_an_error_of_its_cell(kernel: str, open_channels: Any) -> None:
    channels = open_channels(kernel)
    *_, (_, _, reply), _ = channels.execute("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert (reply["status"], reply["ename"]) == ("error", "DeadKernelError")
    assert channels.execute("exit()")[-2][2]["status"] == "ok"
    assert "alive\n" in channels.text("print('alive')")


def test_cells_of_other_clients_are_shown_below_a_request_of_nobody(
    shared_server: Server, kernel: str, open_channels: Any
) -> None:
    channels = open_channels(kernel)
    channels.reply("kernel_info_request")
    name = shared_server.client.get(f"/api/kernels/{kernel}").json()["session_name"]
    shared_server.execute("print('from afar')", name)
    seen = []
    while not seen or seen[-1]["content"].get("execution_state") != "idle":
        seen.append(channels.receive())
    assert [each["msg_type"] for each in seen] == ["status", "execute_input", "stream", "status"]
    assert len({each["parent_header"]["msg_id"] for each in seen}) == 1
    assert channels.text("print('mine')") == "mine\n"


def test_a_restart_is_told_to_connected_clients_and_the_next_cell_runs(
    shared_server: Server, kernel: str, open_channels: Any
) -> None:
    channels = open_channels(kernel)
    assert channels.text("x = 1\nprint(x)") == "1\n"
    assert shared_server.client.post(f"/api/kernels/{kernel}/restart").status_code == 200
    channels.until(lambda each: each["content"].get("execution_state") == "starting")
    assert channels.text("print('x' in dir())") == "False\n"
    assert shared_server.client.delete(f"/api/kernels/{kernel}").status_code == 204
    channels.until(lambda each: each["content"].get("execution_state") == "dead")
    with pytest.raises(ConnectionClosed):
        channels.socket.recv(PATIENCE)


# --- who may, and what is wrong ------------------------------------------------------------------------------


@pytest.mark.req("compat.errors")
def test_the_token_may_be_in_three_places_and_in_the_query_only_below_api(shared_server: Server) -> None:
    token = shared_server.token
    with httpx.Client(base_url=shared_server.url) as nobody:
        for headers in ({"Authorization": f"token {token}"}, {"Authorization": f"Bearer {token}"}):
            assert nobody.get("/api/kernels", headers=headers).status_code == 200
        assert nobody.get(f"/api/kernels?token={token}").status_code == 200
        assert nobody.get(f"/v1/sessions?token={token}").status_code == 401
        for wrong in ({}, {"Authorization": "token x"}, {"Authorization": f"Basic {token}"}):
            answer = nobody.get("/api/kernels", headers=wrong)
            assert (answer.status_code, list(answer.json())) == (401, ["message", "reason"])
        assert nobody.get("/api/kernels?token=x").status_code == 401
    assert token not in "".join(shared_server.said)


@pytest.mark.req("compat.errors")
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/nothing", None, 404),
        ("PUT", "/api/kernels", None, 405),
        ("POST", "/api/kernels", b"{", 400),
        ("POST", "/api/kernels", b'{"name": 5}', 400),
        ("POST", "/api/kernels", b'{"env": {"A": 5}}', 400),
        ("POST", "/api/kernels", b'{"env": {"A=B": "x"}}', 400),
        ("POST", "/api/kernels", b'{"name": "r"}', 404),
        ("POST", "/api/kernels", b'{"name": "session.none"}', 404),
        ("GET", "/api/kernels/x", None, 404),
        ("DELETE", "/api/kernels/x", None, 404),
        ("POST", "/api/kernels/x/interrupt", None, 404),
        ("POST", "/api/kernels/x/restart", None, 404),
        ("GET", "/api/kernelspecs/r", None, 404),
        ("POST", "/api/sessions", b"{}", 400),
        ("POST", "/api/sessions", b'{"path": "a", "kernel": {"id": "x"}}', 404),
        ("GET", "/api/sessions/x", None, 404),
        ("PATCH", "/api/sessions/x", b"{}", 404),
        ("DELETE", "/api/sessions/x", None, 404),
    ],
)
def test_bad_requests_get_an_error_of_jupyter(
    shared_server: Server, method: str, path: str, body: bytes | None, status: int
) -> None:
    answer = shared_server.client.request(method, path, content=body)
    assert (answer.status_code, list(answer.json())) == (status, ["message", "reason"]), answer.text
    assert shared_server.client.get("/v1/sessions").json()["sessions"] == []


@pytest.mark.req("compat.errors")
def test_bad_messages_get_an_error_or_end_the_connection(kernel: str, open_channels: Any) -> None:
    channels = open_channels(kernel)
    for kind, content in (
        ("execute_request", {"code": 5}),
        ("execute_request", {}),
        ("complete_request", {"code": "x", "cursor_pos": -1}),
        ("inspect_request", {"code": None}),
        ("history_request", {"n": "many"}),
        ("history_request", {"hist_access_type": "range", "start": 10**20, "stop": -5, "n": 0}),
        ("shutdown_request", {"restart": "x"}),
        ("strange_request", {}),
    ):
        reply = channels.reply(kind, **content)
        assert reply["status"] == "error" or reply["history"] == [], kind
    channels.send("input_reply", "stdin", value=5)
    channels.send("comm_msg", comm_id="x")
    assert channels.text("print('on')") == "on\n"
    for frame in ("{", "[]", "{}", '{"header": 5}', b"", b"\1\2", struct.pack(">I", 2**31), b"\0\0\0\1\0\0\0\xff{}"):
        broken = open_channels(kernel)
        broken.socket.send(frame)
        with pytest.raises(ConnectionClosed):
            broken.until(lambda each: False)
    for frame in (b"", b"\1" * 8, struct.pack("<7Q", 6, 56, 10, 10, 10, 10, 10), struct.pack("<7Q", 6, *[56] * 6)):
        broken = open_channels(kernel, v1=True)
        broken.socket.send(frame)
        with pytest.raises(ConnectionClosed):
            broken.until(lambda each: False)
    assert channels.text("print('still')") == "still\n"


@pytest.mark.req("compat.errors")
def test_a_tenant_never_sees_kernels_of_another(shared_server: Server, kernel: str) -> None:
    token = ingle_token(shared_server.home, "new", f"t{uuid4().hex[:8]}")
    made = shared_server.client.post("/api/sessions", json={"path": "a.ipynb", "kernel": {"id": kernel}}).json()
    with client_with(shared_server, token) as other:
        assert other.get("/api/kernels").json() == other.get("/api/sessions").json() == []
        assert list(other.get("/api/kernelspecs").json()["kernelspecs"]) == ["python3"]
        for method, path, body in (
            ("GET", f"/api/kernels/{kernel}", None),
            ("DELETE", f"/api/kernels/{kernel}", None),
            ("POST", f"/api/kernels/{kernel}/interrupt", None),
            ("POST", f"/api/kernels/{kernel}/restart", None),
            ("GET", f"/api/sessions/{made['id']}", None),
            ("DELETE", f"/api/sessions/{made['id']}", None),
            ("POST", "/api/sessions", {"path": "b", "kernel": {"id": kernel}}),
        ):
            assert other.request(method, path, json=body).status_code == 404, path
    with pytest.raises(InvalidStatus) as refused:
        Channels(shared_server, kernel, token=token)
    assert refused.value.response.status_code == 404
    assert shared_server.client.get(f"/api/kernels/{kernel}").status_code == 200

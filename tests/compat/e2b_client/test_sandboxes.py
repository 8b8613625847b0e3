"""Life of a sandbox: made, listed, joined, paused, forked, saved, measured and ended."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from e2b import (
    AuthenticationException,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b_code_interpreter import AsyncSandbox, Sandbox
from serving import Server, ingle

pytestmark = pytest.mark.req("compat.sandboxes")


def test_a_sandbox_is_described_and_listed(sandbox: Sandbox) -> None:
    other = Sandbox.create(metadata={"purpose": "list"})
    try:
        info = other.get_info()
        assert (info.sandbox_id, info.metadata, info.state) == (
            other.sandbox_id, {"purpose": "list"}, SandboxState.RUNNING
        )  # fmt: skip
        listed = Sandbox.list(query=SandboxQuery(metadata={"purpose": "list"})).next_items()
        assert [each.sandbox_id for each in listed] == [other.sandbox_id]
        pages = Sandbox.list(limit=1)
        ids = []
        while pages.has_next:
            ids += [each.sandbox_id for each in pages.next_items()]
        assert {sandbox.sandbox_id, other.sandbox_id} <= set(ids)
    finally:
        other.kill()


def test_a_sandbox_is_joined_by_its_id(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.run_code("x").text == "1"
    assert again.is_running() is True


def test_a_sandbox_that_was_killed_is_gone() -> None:
    sandbox = Sandbox.create()
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert sandbox.is_running() is False
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
    with pytest.raises(Exception, match="sandbox"):
        sandbox.run_code("1")


def test_a_kill_ends_a_run_that_is_under_way() -> None:
    sandbox = Sandbox.create()
    begun = threading.Event()

    def kill() -> None:
        assert begun.wait(20)
        sandbox.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(TimeoutException, match="sandbox was killed while the request was in progress"):
        sandbox.run_code("print(1, flush=True)\nimport time; time.sleep(60)", on_stdout=lambda each: begun.set())
    thread.join(20)


async def test_async_a_kill_ends_a_run_that_is_under_way() -> None:
    sandbox = await AsyncSandbox.create()
    killing: list[asyncio.Task[bool]] = []

    async def kill(message: object) -> None:
        killing.append(asyncio.create_task(sandbox.kill()))

    with pytest.raises(TimeoutException, match="sandbox was killed while the request was in progress"):
        await sandbox.run_code("print(1, flush=True)\nimport time; time.sleep(60)", on_stdout=kill)
    assert await killing[0] is True


@pytest.mark.parametrize("options", [{}, {"secure": True}, {"network": {"allow_public_traffic": False}}])
def test_a_sandbox_takes_requests_with_its_token_alone(server: Server, options: dict[str, Any]) -> None:
    sandbox = Sandbox.create(**options)
    try:
        assert sandbox.run_code("x = 1; x").text == "1"
        context = sandbox.create_code_context()
        assert context.id in [each.id for each in sandbox.list_code_contexts()]
        sandbox.restart_code_context(context)
        sandbox.remove_code_context(context)
        headers = {"E2b-Sandbox-Id": sandbox.sandbox_id}
        for given in ({}, {"E2B-Traffic-Access-Token": "wrong"}, {"X-Access-Token": "wrong"}):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(f"{server.url}/contexts", headers={**headers, **given}))
            assert refused.value.code == 401
    finally:
        sandbox.kill()


async def test_async_a_secure_sandbox_runs_code() -> None:
    sandbox = await AsyncSandbox.create(secure=True)
    assert (await sandbox.run_code("x = 1; x")).text == "1"
    await sandbox.kill()


async def test_async_contexts_need_the_token_of_their_sandbox(server: Server) -> None:
    sandbox = await AsyncSandbox.create(network={"allow_public_traffic": False})
    context = await sandbox.create_code_context()
    assert context.id in [each.id for each in await sandbox.list_code_contexts()]
    await sandbox.restart_code_context(context)
    await sandbox.remove_code_context(context)
    request = urllib.request.Request(f"{server.url}/contexts", headers={"E2b-Sandbox-Id": sandbox.sandbox_id})
    with pytest.raises(urllib.error.HTTPError) as refused:
        await asyncio.to_thread(urllib.request.urlopen, request)
    assert refused.value.code == 401
    await sandbox.kill()


async def test_async_a_sandbox_is_joined_by_its_id(async_sandbox: AsyncSandbox) -> None:
    await async_sandbox.run_code("x = 1")
    again = await AsyncSandbox.connect(async_sandbox.sandbox_id)
    assert (await again.run_code("x")).text == "1"


def test_a_sandbox_ends_after_its_time() -> None:
    sandbox = Sandbox.create(timeout=300)
    sandbox.set_timeout(1)
    deadline = time.monotonic() + 20
    while sandbox.is_running():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_paused_sandbox_keeps_its_state(sandbox: Sandbox) -> None:
    sandbox.run_code("x = [1]; open('f', 'w').write('kept')")
    sandbox.pause()
    assert sandbox.get_info().state == SandboxState.PAUSED
    assert sandbox.is_running() is False
    with pytest.raises(Exception, match="sandbox"):
        sandbox.run_code("x")
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.run_code("x, open('f').read()").text == "([1], 'kept')"


async def test_async_a_paused_sandbox_keeps_its_state(async_sandbox: AsyncSandbox) -> None:
    await async_sandbox.run_code("x = 1")
    await async_sandbox.pause()
    again = await AsyncSandbox.connect(async_sandbox.sandbox_id)
    assert (await again.run_code("x")).text == "1"


def paused_at_its_end(**lifecycle: Any) -> Sandbox:
    """Return a sandbox with some state that was paused when its life had ended."""
    sandbox = Sandbox.create(timeout=300, lifecycle={"on_timeout": "pause", **lifecycle})
    sandbox.run_code("x = 1")
    sandbox.set_timeout(1)
    deadline = time.monotonic() + 20
    while sandbox.get_info().state != SandboxState.PAUSED:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return sandbox


def test_a_sandbox_is_paused_at_its_end_if_it_was_asked_for() -> None:
    sandbox = paused_at_its_end()
    assert sandbox.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": False}
    with pytest.raises(Exception, match="sandbox"):
        sandbox.run_code("x")
    assert Sandbox.connect(sandbox.sandbox_id).run_code("x").text == "1"
    sandbox.kill()


def test_a_request_resumes_a_sandbox_if_it_was_asked_for() -> None:
    sandbox = paused_at_its_end(auto_resume=True)
    sandbox.set_timeout(300)
    assert sandbox.is_running() is False
    assert sandbox.run_code("x").text == "1"
    assert (sandbox.get_info().state, sandbox.is_running()) == (SandboxState.RUNNING, True)
    sandbox.kill()


def test_forks_go_on_from_the_same_state(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1; open('f', 'w').write('both')")
    forks = sandbox.fork(count=3)
    try:
        for number, fork in enumerate(forks):
            assert isinstance(fork, Sandbox)
            assert fork.run_code(f"x += {number}; x, open('f').read()").text == f"({1 + number}, 'both')"
            fork.files.write("f", str(number))
        assert sandbox.run_code("x, open('f').read()").text == "(1, 'both')"
        assert [fork.files.read("f") for fork in forks] == ["0", "1", "2"]
    finally:
        for fork in forks:
            fork.kill()


def test_more_forks_are_made_than_the_client_asks_for(sandbox: Sandbox, server: Server) -> None:
    sandbox.run_code("x = 1")
    url = f"{server.url}/sandboxes/{sandbox.sandbox_id}/fork"
    headers = {"X-API-Key": server.token, "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, b'{"count": 21, "timeout": 300}', headers)) as answer:
        ids = {each["sandbox"]["sandboxID"] for each in json.load(answer)}
    assert len(ids) == 21
    assert Sandbox.connect(max(ids)).run_code("x").text == "1"
    assert all(Sandbox.kill(each) for each in ids)


def test_a_fork_has_all_contexts_under_their_ids(sandbox: Sandbox) -> None:
    first, second = sandbox.create_code_context(), sandbox.create_code_context(cwd="/tmp")
    sandbox.run_code("x = 'default'; open('f', 'w').write('original')")
    sandbox.run_code("x = 'first'", context=first)
    count = sandbox.run_code("x = 'second'", context=second).execution_count
    fork, other = (each for each in sandbox.fork(count=2) if isinstance(each, Sandbox))
    try:
        assert fork.list_code_contexts() == sandbox.list_code_contexts()
        default = fork.list_code_contexts()[0]
        assert [fork.run_code("x", context=each).text for each in (None, default, first, second)] == [
            "default", "default", "first", "second"
        ]  # fmt: skip
        assert fork.run_code("x += '!'; x", context=second).execution_count == count + 2
        fork.run_code("open('f', 'w').write('fork')", context=first)
        read = "open('f').read()"
        assert (fork.run_code(read).text, fork.files.read("f"), fork.commands.run("cat f").stdout) == ("fork",) * 3
        for each in (sandbox, other):
            assert (each.run_code(read, context=first).text, each.run_code("x", context=second).text) == (
                "original", "second"
            )  # fmt: skip
        fork.restart_code_context(first)
        fork.remove_code_context(second)
        assert fork.run_code("x", context=first).error.name == "NameError"
        assert [each.id for each in fork.list_code_contexts()] == [default.id, first.id]
        added = fork.create_code_context()
        assert fork.run_code(read, context=added).text == "fork"
        with pytest.raises(Exception, match="default context ends with its sandbox"):
            fork.remove_code_context(default)
        again = fork.fork()[0]
        assert (again.run_code(read, context=added).text, again.run_code("x").text) == ("fork", "default")
        again.kill()
    finally:
        fork.kill()
        other.kill()
    assert sandbox.run_code("x", context=second).text == "second"


async def test_async_a_fork_has_all_contexts_under_their_ids(async_sandbox: AsyncSandbox) -> None:
    context = await async_sandbox.create_code_context()
    await async_sandbox.run_code("x = 1", context=context)
    (fork,) = await async_sandbox.fork()
    assert isinstance(fork, AsyncSandbox)
    assert (await fork.run_code("x += 1; x", context=context)).text == "2"
    await fork.kill()
    assert (await async_sandbox.run_code("x", context=context)).text == "1"


def test_no_session_is_left_if_a_context_cannot_be_copied(sandbox: Sandbox, server: Server) -> None:
    context = sandbox.create_code_context()
    begun = threading.Event()
    code = "print(1, flush=True)\nimport os, time\nwhile not os.path.exists('end'): time.sleep(0.01)"
    thread = threading.Thread(target=sandbox.run_code, args=(code,), kwargs={
        "context": context, "on_stdout": lambda each: begun.set()
    })  # fmt: skip
    thread.start()
    assert begun.wait(20)
    before = len(ingle(server.home, "ps").splitlines())
    with pytest.raises(SandboxException, match="busy"):
        sandbox.fork()
    assert len(ingle(server.home, "ps").splitlines()) == before
    sandbox.files.write("end", "")
    thread.join(20)


def test_a_snapshot_is_a_template_for_new_sandboxes(sandbox: Sandbox) -> None:
    sandbox.run_code("x = {'kept': 1}")
    snapshot = sandbox.create_snapshot()
    other = Sandbox.create(template=snapshot.snapshot_id)
    try:
        assert other.run_code("x['kept']").text == "1"
    finally:
        other.kill()
    listed = Sandbox.list_snapshots().next_items()
    assert snapshot.snapshot_id in [each.snapshot_id for each in listed]
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False
    with pytest.raises(SandboxException):
        Sandbox.create(template=snapshot.snapshot_id)


def test_metrics_tell_memory_and_processors(sandbox: Sandbox) -> None:
    (metric,) = sandbox.get_metrics()
    assert metric.cpu_count >= 1
    assert metric.mem_used > 0


def test_a_wrong_key_and_another_tenant_see_nothing(sandbox: Sandbox, server: Server) -> None:
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="wrong")
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id, api_key=server.other_token)
    assert Sandbox.list(api_key=server.other_token).next_items() == []
    assert Sandbox.kill(sandbox.sandbox_id, api_key=server.other_token) is False


def test_what_needs_a_virtual_machine_is_refused() -> None:
    with pytest.raises(SandboxException, match="needs a virtual machine"):
        Sandbox.create(volume_mounts={"/data": "volume"})
    with pytest.raises(SandboxException, match="snapshot"):
        Sandbox.create(template="my-template")

"""Contexts of a sandbox."""

from __future__ import annotations

import pytest
from e2b_code_interpreter import AsyncSandbox, Sandbox

pytestmark = pytest.mark.req("compat.sandboxes")

CWD = "import os; os.getcwd()"


def test_contexts_have_their_own_names_and_share_the_folder(sandbox: Sandbox) -> None:
    context = sandbox.create_code_context()
    assert (context.language, context.cwd) == ("python", sandbox.run_code(CWD).text)
    sandbox.run_code("x = 1; open('f.txt', 'w').write('seen')")
    assert sandbox.run_code("x", context=context).error is not None
    assert sandbox.run_code("open('f.txt').read()", context=context).text == "seen"
    sandbox.run_code("open('f.txt', 'w').write('both')", context=context)
    assert sandbox.run_code("open('f.txt').read()").text == "both"


def test_contexts_are_listed_restarted_and_removed(sandbox: Sandbox) -> None:
    first, second = sandbox.create_code_context(), sandbox.create_code_context()
    listed = sandbox.list_code_contexts()
    assert [each.id for each in listed[1:]] == [first.id, second.id]
    assert {each.language for each in listed} == {"python"}
    sandbox.run_code("x = 1", context=first)
    sandbox.restart_code_context(first)
    assert sandbox.run_code("x", context=first).error is not None
    sandbox.remove_code_context(second)
    assert [each.id for each in sandbox.list_code_contexts()[1:]] == [first.id]
    for act in (sandbox.restart_code_context, sandbox.remove_code_context):
        with pytest.raises(Exception, match=f"Context {second.id} not found"):
            act(second)
    with pytest.raises(Exception, match="not found"):
        sandbox.run_code("1", context=second)


def test_a_context_begins_in_its_folder(sandbox: Sandbox) -> None:
    context = sandbox.create_code_context(cwd="/tmp")
    assert (context.cwd, sandbox.run_code(CWD, context=context).text) == ("/tmp", "/tmp")
    assert sandbox.create_code_context(cwd="/not/there").cwd == "/not/there"


def test_a_context_is_listed_last_with_its_language_and_folder(sandbox: Sandbox) -> None:
    for options in ({}, {"language": "python", "cwd": "/home/user/test"}):
        made = sandbox.create_code_context(**options)
        last = sandbox.list_code_contexts()[-1]
        assert (last.id, last.language, last.cwd) == (made.id, "python", options.get("cwd", made.cwd))


async def test_async_contexts_are_apart(async_sandbox: AsyncSandbox) -> None:
    await async_sandbox.run_code("x = 1")
    context = await async_sandbox.create_code_context()
    failed = await async_sandbox.run_code("x", context=context)
    assert failed.error is not None
    assert failed.error.value == "name 'x' is not defined"
    assert (await async_sandbox.list_code_contexts())[-1].id == context.id


async def test_async_contexts(async_sandbox: AsyncSandbox) -> None:
    context = await async_sandbox.create_code_context(cwd="/tmp")
    assert (await async_sandbox.run_code(CWD, context=context)).text == "/tmp"
    await async_sandbox.restart_code_context(context.id)
    await async_sandbox.remove_code_context(context.id)
    assert len(await async_sandbox.list_code_contexts()) == 1

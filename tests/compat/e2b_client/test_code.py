"""Code in a sandbox: values, output, errors, state."""

from __future__ import annotations

import pytest
from e2b_code_interpreter import AsyncSandbox, Sandbox

pytestmark = pytest.mark.req("compat.sandboxes")


def test_the_last_value_is_the_text_of_the_execution(sandbox: Sandbox) -> None:
    assert sandbox.run_code("x = 1; x").text == "1"


async def test_async_the_last_value_is_the_text_of_the_execution(async_sandbox: AsyncSandbox) -> None:
    assert (await async_sandbox.run_code("x = 1; x")).text == "1"

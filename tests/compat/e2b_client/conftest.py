"""The SDK in redirected mode, and sandboxes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from e2b_code_interpreter import AsyncSandbox, Sandbox
from serving import Server


@pytest.fixture(scope="session", autouse=True)
def redirected(server: Server) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("E2B_API_KEY", server.token)
        patch.setenv("E2B_API_URL", server.url)
        patch.setenv("E2B_SANDBOX_URL", server.url)
        yield


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox.create(timeout=300)
    yield made
    made.kill()


@pytest.fixture
async def async_sandbox() -> AsyncIterator[AsyncSandbox]:
    made = await AsyncSandbox.create(timeout=300)
    yield made
    await made.kill()

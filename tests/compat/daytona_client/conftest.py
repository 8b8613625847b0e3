"""The SDK with the address of the server, and sandboxes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from daytona import AsyncDaytona, AsyncSandbox, CreateSandboxFromSnapshotParams, Daytona, DaytonaConfig, Sandbox
from serving import Server


@pytest.fixture(scope="session")
def config(server: Server) -> DaytonaConfig:
    return DaytonaConfig(api_key=server.token, api_url=f"{server.url}/api")


@pytest.fixture
def daytona(config: DaytonaConfig) -> Daytona:
    return Daytona(config)


@pytest.fixture
def sandbox(daytona: Daytona) -> Iterator[Sandbox]:
    made = daytona.create(CreateSandboxFromSnapshotParams(language="python", env_vars={"WIDE": "it's wide"}))
    yield made
    made.delete()


@pytest.fixture
async def async_sandbox(config: DaytonaConfig) -> AsyncIterator[AsyncSandbox]:
    async with AsyncDaytona(config) as client:
        made = await client.create(CreateSandboxFromSnapshotParams(language="python"))
        yield made
        await made.delete()

"""Files of a gigabyte in checkpoints, saves and restarts."""

import hashlib
import os
from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings
from support.internals import session_of
from support.service import make_settings

pytestmark = pytest.mark.soak

WRITE = """
import os
with open('large', 'wb') as file:
    for _ in range(256):
        _ = file.write(os.urandom(1 << 22))
"""
GIGABYTE = 1 << 30


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, durable_size=4 * GIGABYTE, limit_file_size=2 * GIGABYTE, exit_grace=300.0)


def digest_of(service: Service, sid: str) -> str:
    with open(Path(session_of(service, sid).folders.place) / "large", "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def say(service: Service, sid: str, code: str) -> None:
    result = await service.execute(sid, code, wait=300)
    assert (result.status, result.error) == ("ok", None), result


@pytest.mark.timeout(900)
async def test_a_file_of_a_gigabyte_goes_back(service: Service) -> None:
    await service.create_session("main")
    await say(service, "main", WRITE)
    before = digest_of(service, "main")
    assert (await service.checkpoint("main", "base")).notices == []
    await say(service, "main", "with open('large', 'r+b') as file: file.seek(5_000_000); _ = file.write(b'changed')")
    assert digest_of(service, "main") != before
    await service.rollback("main", "base")
    assert digest_of(service, "main") == before
    saved = await service.save_session("main", "large")
    assert saved.files == 1
    await service.load_session("large", "other")
    assert digest_of(service, "other") == before
    await service.delete_snapshot("large")


@pytest.mark.timeout(900)
async def test_a_file_of_a_gigabyte_survives_a_restart(apart: Path, mark: str, settings: Settings) -> None:
    async with Service.local(settings, apart / "kept", "serve") as first:
        await first.create_session("main", durable=True)
        await say(first, "main", WRITE)
        before = digest_of(first, "main")
        path = Path(session_of(first, "main").folders.place) / "large"
    os.truncate(path, 1000)
    async with Service.local(settings, apart / "kept", "serve") as second:
        await say(second, "main", "pass")
        assert digest_of(second, "main") == before

"""Checkpoints: a session parked in memory, to which it can return again and again; and undoing the last cell."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import Notice
from ingle.service import Service
from ingle.sessions.persistence import checkpoints
from ingle.settings import Settings
from support.internals import session_folders, session_of
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.rollback")]


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, max_checkpoints=3, timeout_grace=0.3)


@pytest.fixture
async def main(service: Service) -> str:
    return (await service.create_session("main")).session_id


async def say(service: Service, sid: str, code: str) -> str:
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout


async def test_rolling_back_returns_again_and_again(service: Service, main: str) -> None:
    await say(service, main, "import random\nrandom.seed(1)\ntrail = ['a']; extra = 1")
    made = await service.checkpoint(main, "base")
    assert (made.name, made.cell, made.auto, made.notices) == ("base", 1, False, [])
    await say(service, main, "trail.append('b'); del extra; later = 2")
    drawn = await say(service, main, "print(random.random())")
    for _ in range(3):
        back = await service.rollback(main, "base")
        assert back.notice.startswith("rolled back to checkpoint 'base' of cell 1, 0.")
        assert back.notice.endswith(" s ago")
        assert (back.checkpoint.name, back.session.variables) == ("base", ["extra", "random", "trail"])
        result = await service.execute(main, "trail.append('c'); print(trail, extra, random.random())")
        assert result.stdout == f"['a', 'c'] 1 {drawn}"
        # The reader is told once.
        assert result.notices == [back.notice]
    # Cells are counted on; what happened is in the timeline.
    assert (await service.get_session(main)).execution_count == 6
    notices = [event.text async for event in events_so_far(service, main) if isinstance(event, Notice)]
    assert len(notices) == 3
    assert notices[-1] == back.notice
    assert (await service.wait(main, 3)).stdout == drawn


async def events_so_far(service: Service, sid: str):  # type: ignore[no-untyped-def]
    last = session_of(service, sid).journal.timeline.next_seq - 1
    async for event in service.events(sid, 1):
        yield event
        if event.seq == last:
            return


async def test_checkpoints_are_listed_with_their_memory_and_bounded(service: Service, main: str) -> None:
    await say(service, main, "data = bytearray(20_000_000)")
    first = await service.checkpoint(main, "one")
    await say(service, main, "data[:] = b'x' * len(data)")  # from now on, these pages are the checkpoint's alone
    for name in ("two", "three"):
        assert (await service.checkpoint(main, name)).notices == []
    (one, two, three) = await service.checkpoints(main)
    assert [each.name for each in (one, two, three)] == ["one", "two", "three"]
    assert (one.cell, one.created_at, one.auto) == (1, first.created_at, False)
    assert one.memory is not None
    assert two.memory is not None
    assert one.memory > 20_000_000 > 12_000_000 > two.memory
    # The same name again takes the place; one more than the limit drops the oldest, and says so.
    assert (await service.checkpoint(main, "three")).notices == []
    assert (await service.checkpoint(main, "four")).notices == [
        "checkpoint 'one' was dropped: a session keeps 3, and it was the oldest"
    ]
    assert [each.name for each in await service.checkpoints(main)] == ["two", "three", "four"]
    with pytest.raises(errors.CheckpointNotFound, match=r"'one': it was dropped when .* it has 'four', 'three', 'two'"):
        await service.rollback(main, "one")
    assert (await service.rollback(main)).checkpoint.name == "four"
    with pytest.raises(errors.InvalidName):
        await service.checkpoint(main, ".auto")


async def test_one_that_is_dropped_frees_its_process(service: Service, main: str) -> None:
    await service.checkpoint(main, "base")
    session = session_of(service, main)
    pid = session.checkpoints.find("base").worker.pid
    assert os.path.exists(f"/proc/{pid}")
    await service.drop_checkpoint(main, "base")
    assert not os.path.exists(f"/proc/{pid}")
    assert await service.checkpoints(main) == []
    with pytest.raises(errors.CheckpointNotFound, match="it was dropped"):
        await service.rollback(main, "base")


async def test_with_none_to_go_back_to_that_is_said(service: Service, main: str) -> None:
    with pytest.raises(errors.CheckpointNotFound, match="has no checkpoint; make one"):
        await service.rollback(main)
    assert await service.checkpoints(main) == []


@pytest.mark.req("cell.busy")
async def test_while_a_cell_runs_rolling_back_is_answered_busy(service: Service, main: str) -> None:
    await service.checkpoint(main, "base")
    await service.execute(main, "import time; time.sleep(600)", wait=0)
    with pytest.raises(errors.Busy, match=r"cell 1 has run for .* s; wait, or interrupt"):
        await service.rollback(main, "base")
    await service.interrupt(main)
    assert (await service.wait(main, 1)).status == "interrupted"
    assert (await service.rollback(main, "base")).notice.startswith("rolled back to checkpoint 'base' before any cell")


def below_init(service: Service, sid: str) -> list[str]:
    """The family, and its strays."""
    worker = session_of(service, sid).worker
    assert worker is not None
    return Path(f"/proc/{worker.init_pid}/task/{worker.init_pid}/children").read_text().split()


async def test_what_a_session_started_since_ends_when_it_is_rolled_back(service: Service, main: str) -> None:
    await say(service, main, "import subprocess, threading")
    await service.checkpoint(main, "base")
    pid = int(await say(service, main, "p = subprocess.Popen(['sleep', '600'], start_new_session=True); print(p.pid)"))
    await service.rollback(main, "base")
    if service.settings.isolation == "none":  # else it is a number of another namespace
        assert not Path(f"/proc/{pid}").exists()
    # The file agent that brought the files back ends by itself.
    assert await until(lambda: len(below_init(service, main)) == 2)


async def test_a_checkpoint_survives_the_end_of_the_worker(service: Service, main: str) -> None:
    await say(service, main, "import os, tempfile\nfile = tempfile.NamedTemporaryFile('w+')\nx = 7")
    await service.checkpoint(main, "base")
    result = await service.execute(main, "os._exit(9)")
    assert result.exit is not None
    assert result.exit.code == 9
    assert result.notices == [
        "the session's process ended with exit code 9; the session's variables, functions and imports are lost, and a "
        "new process takes its place; roll back to have checkpoint 'base' of cell 1 again"
    ]
    back = await service.rollback(main, "base")
    result = await service.execute(main, "print(x, os.path.exists(file.name))")
    # Nothing is said any more of a new process: this is not one.
    assert (result.stdout, result.notices) == ("7 True\n", [back.notice])


async def test_a_checkpoint_whose_process_ended_is_named(service: Service, main: str) -> None:
    await service.checkpoint(main, "base")
    worker = session_of(service, main).checkpoints.find("base").worker
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    await worker.gone
    assert await service.checkpoints(main) == []
    with pytest.raises(errors.CheckpointNotFound, match="'base': its process was killed by SIGKILL"):
        await service.rollback(main, "base")
    assert await say(service, main, "print(1)") == "1\n"


async def test_a_rollback_that_fails_leaves_the_session_as_it_was(
    service: Service, main: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await say(service, main, "x = 1")
    await service.checkpoint(main, "base")
    await say(service, main, "x = 2")

    async def refuse(*given: object, **more: object) -> None:
        raise errors.StartFailed("no process could be forked")

    monkeypatch.setattr(session_of(service, main).checkpoints.find("base").worker, "fork", refuse)
    with pytest.raises(errors.StartFailed):
        await service.rollback(main, "base")
    assert await say(service, main, "print(x)") == "2\n"


async def test_forks_of_a_session_that_was_rolled_back(service: Service, main: str) -> None:
    await say(service, main, "x = 1")
    await service.checkpoint(main, "base")
    await say(service, main, "x = 2")
    await service.fork_session(main, "copy")
    await service.rollback(main, "base")
    assert [await say(service, sid, "print(x)") for sid in (main, "copy")] == ["1\n", "2\n"]
    # A fork has no checkpoints of its original's.
    assert await service.checkpoints("copy") == []
    await service.end_session(main)
    assert await say(service, "copy", "print(x)") == "2\n"


class TestAuto:
    @pytest.fixture
    async def main(self, service: Service) -> str:
        return (await service.create_session("main", checkpoints="auto")).session_id

    async def test_the_last_cell_is_undone(self, service: Service, main: str) -> None:
        await say(service, main, "x = [1]")
        await say(service, main, "x.append(2); y = 3")
        (auto,) = await service.checkpoints(main)
        assert (auto.cell, auto.auto) == (1, True)
        for _ in range(2):
            back = await service.rollback(main)
            assert back.notice.startswith("rolled back to the state before cell 2, 0.")
            assert back.session.variables == ["x"]
        assert await say(service, main, "print(x)") == "[1]\n"
        # The state before this third cell is the one to return to now.
        assert (await service.rollback(main)).notice.startswith("rolled back to the state before cell 3, ")

    async def test_undoing_twice_says_that_it_is_the_same_state_and_what_lies_before(
        self, service: Service, main: str
    ) -> None:
        again = "; no cell has run since the last rollback, so this is the same state again; "
        await say(service, main, "x = 1")
        await say(service, main, "x = 2")
        assert again not in (await service.rollback(main)).notice
        assert (await service.rollback(main)).notice.endswith(
            f" ago{again}the session keeps no earlier state; `checkpoint` marks one that later rollbacks can name"
        )
        await service.checkpoint(main, "one")
        await say(service, main, "x = 3")
        await say(service, main, "x = 4")
        await service.checkpoint(main, "four")
        assert (await service.rollback(main)).notice.endswith(" ago")
        assert (await service.rollback(main)).notice.endswith(
            f" ago{again}to go further back, name an earlier one: checkpoint 'one' of cell 2"
        )
        assert (await service.rollback(main, "one")).notice.endswith(" ago")
        assert await say(service, main, "print(x)") == "1\n"

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            ("x = 0; import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "exit"),
            ("x = 0; exit(3)", "exit"),
            ("x = 0; 1 / 0", "error"),
            (
                "x = 0\nimport signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)",
                "interrupted",
            ),
            ("x = 0\nimport os\nos.kill(os.getppid(), 9)\nimport time; time.sleep(60)", "exit"),
        ],
        ids=["crashed", "exited", "failed", "killed", "init killed"],
    )
    async def test_also_when_it_ended_the_worker(self, service: Service, main: str, code: str, status: str) -> None:
        if "getppid" in code and service.settings.isolation != "none":
            pytest.skip("code in a room cannot kill its init")
        await say(service, main, "x = 41")
        result = await service.execute(main, code, timeout=0.5 if status == "interrupted" else None)
        assert result.status == status
        if "getppid" in code:
            # The whole family went with its init.
            with pytest.raises(errors.CheckpointNotFound, match="no state before the last cell"):
                await service.rollback(main)
            return
        back = await service.rollback(main)
        result = await service.execute(main, "print(x + 1)")
        assert (result.stdout, result.notices) == ("42\n", [back.notice])

    async def test_there_is_only_one_and_it_goes_with_the_session(self, service: Service, main: str) -> None:
        for _ in range(5):
            await say(service, main, "0")
        assert await until(lambda: len(below_init(service, main)) == 2)
        worker = session_of(service, main).worker
        assert worker is not None
        await service.end_session(main)
        assert (worker.siblings.members, await until(lambda: not Path(f"/proc/{worker.init_pid}").exists())) == (
            set(),
            True,
        )

    async def test_a_cell_in_the_queue_waits_for_those_before(self, service: Service, main: str) -> None:
        codes = [f"print({number})" for number in range(5)]
        results = await asyncio.gather(*(service.execute(main, code, queue=True) for code in codes))
        assert sorted(result.stdout for result in results) == [f"{number}\n" for number in range(5)]
        asked = [service.execute(main, "import time; time.sleep(0.2)") for _ in range(2)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in answers if isinstance(each, Exception)] == [errors.Busy]

    @pytest.mark.parametrize("end", ["worker", "request"])
    async def test_whoever_waits_gets_his_turn_when_the_one_before_is_given_up(
        self, service: Service, main: str, end: str
    ) -> None:
        for number in range(8):
            await say(service, main, "0")
            worker = session_of(service, main).worker
            assert worker is not None
            assert worker.pid is not None
            asked = [asyncio.ensure_future(service.execute(main, "1", queue=queue)) for queue in (False, True, True)]
            for _ in range(number):
                await asyncio.sleep(0.001)
            if end == "worker":
                os.kill(worker.pid, signal.SIGKILL)
            else:
                asked[0].cancel()
            answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)
            assert not any(isinstance(each, BaseException) for each in answers[1:]), answers
            assert not isinstance(answers[0], Exception) or isinstance(answers[0], errors.Busy), answers

    async def test_without_a_copy_the_cell_runs_and_says_so(
        self, service: Service, main: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await say(service, main, "x = 1")

        async def refuse(*given: object, **more: object) -> None:
            raise errors.StartFailed("no process could be forked")

        monkeypatch.setattr(session_of(service, main).worker, "fork", refuse)
        result = await service.execute(main, "print(x)")
        assert result.notices == ["there is no checkpoint of the state before this cell: no process could be forked"]
        assert result.stdout == "1\n"
        with pytest.raises(errors.CheckpointNotFound):
            await service.rollback(main)


async def test_a_session_that_ends_in_the_middle_of_a_rollback_leaves_nothing(
    service: Service, main: str, home: Path
) -> None:
    for number in range(20):
        sid = (await service.create_session()).session_id
        await service.checkpoint(sid, "base")
        rolling = asyncio.ensure_future(service.rollback(sid, "base"))
        for _ in range(number * 3):
            await asyncio.sleep(0)
        await service.end_session(sid)
        (answer,) = await asyncio.gather(rolling, return_exceptions=True)
        allowed = errors.SessionNotFound | errors.StartFailed | errors.CheckpointNotFound | asyncio.CancelledError
        assert not isinstance(answer, BaseException) or isinstance(answer, allowed), repr(answer)
    assert len(session_folders(service, home)) == 1


async def test_why_a_checkpoint_is_gone_is_remembered_of_the_last_ones(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_REASONS", 3)
    await service.create_session("s")
    for number in range(6):
        await service.checkpoint("s", f"c{number}")
        await service.drop_checkpoint("s", f"c{number}")
    for number, why in ((0, False), (5, True)):
        with pytest.raises(errors.CheckpointNotFound) as refused:
            await service.rollback("s", f"c{number}")
        assert ("it was dropped" in refused.value.message) == why
    made = session_of(service, "s").checkpoints
    assert list(made._why_gone) == ["c3", "c4", "c5"]

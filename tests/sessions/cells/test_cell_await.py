"""Cells that await: the loop of a session, what goes on between cells, what an interrupt ends."""

from pathlib import Path
from textwrap import dedent

import pytest

from ingle.events import Result
from ingle.service import Service
from support.waiting import until

pytestmark = pytest.mark.req("cell.await")


@pytest.fixture
def run(run):
    """As everywhere, but its code may be indented as the test is."""
    return lambda code, **options: run(dedent(code).strip("\n"), **options)


def outcome(result: Result) -> tuple[str, str, str | None]:
    """What a cell printed and showed, once it went well."""
    assert (result.status, result.error, result.stderr) == ("ok", None, "")
    return result.stdout, (result.result or {}).get("text/plain")


async def begin_and_see(service: Service, code: str, sign: Path) -> int:
    """Begin a cell that makes the file `sign`, and wait for that."""
    cell = await service.begin("s", dedent(code))
    assert await until(sign.exists)
    return cell


async def test_await_async_for_and_async_with_work_at_top_level(run) -> None:
    code = """
    import asyncio

    class Guard:
        async def __aenter__(self):
            await asyncio.sleep(0)
            return "in"
        async def __aexit__(self, *exc):
            print("out")

    async def numbers():
        for i in range(3):
            await asyncio.sleep(0)
            yield i

    async for i in numbers():
        print(i)
    async with Guard() as g:
        print(g)
    x = await asyncio.sleep(0, "slept")
    print(x)
    [i async for i in numbers()]
    """
    assert outcome(await run(code)) == ("0\n1\n2\nin\nout\nslept\n", "[0, 1, 2]")
    assert outcome(await run("await asyncio.sleep(0, 'value')")) == ("", "'value'")
    assert outcome(await run("_, x")) == ("", "('value', 'slept')")
    assert outcome(await run("await asyncio.sleep(0, 'hidden');")) == ("", None)
    assert outcome(await run("y = await asyncio.sleep(0, 5)\ny + 1")) == ("", "6")


async def test_names_assigned_before_and_after_an_await_are_the_sessions(run) -> None:
    await run("import asyncio\na = 1\nawait asyncio.sleep(0)\nb = 2\nfor c in range(3): await asyncio.sleep(0)")
    assert outcome(await run("a, b, c")) == ("", "(1, 2, 2)")


async def test_one_loop_serves_all_cells_of_a_session(run) -> None:
    await run("import asyncio\nfirst = asyncio.get_running_loop()\nqueue = asyncio.Queue()\nawait asyncio.sleep(0)")
    await run("await queue.put('from an earlier cell')")
    code = "await queue.get(), asyncio.get_running_loop() is first"
    assert outcome(await run(code)) == ("", "('from an earlier cell', True)")


async def test_tasks_go_on_while_the_session_is_idle(service: Service, run, tmp_path: Path) -> None:
    code = f"""
    import asyncio, pathlib
    folder = pathlib.Path({str(tmp_path)!r})

    async def work():
        n = 0
        while not (folder / "go").exists():
            await asyncio.sleep(0.001)
        while True:
            await asyncio.sleep(0.001)
            n += 1
            (folder / f"step {{n}}").touch()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    """
    assert (await run(code)).status == "ok"
    # The session is idle from here on: whatever is done now is done between cells.
    assert (await service.get_session("s")).state == "idle"
    assert not (tmp_path / "step 1").exists()
    (tmp_path / "go").touch()
    assert await until((tmp_path / "step 50").exists)
    assert outcome(await run("task.cancel()\ntask.done()")) == ("", "False")
    await run("await asyncio.wait({task})")
    assert outcome(await run("task.cancelled()")) == ("", "True")


async def test_tasks_stand_still_during_a_cell_without_await(run) -> None:
    code = """
    import asyncio
    steps = 0

    async def work():
        global steps
        while True:
            await asyncio.sleep(0)
            steps += 1

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    """
    await run(code)
    still = "before = steps\nfor i in range(10**6): pass\n(steps - before, before > 0)"
    assert outcome(await run(still)) == ("", "(0, True)")
    awaiting = "before = steps\nawait asyncio.sleep(0.01)\nsteps > before"
    assert outcome(await run(awaiting)) == ("", "True")


async def test_asyncio_run_works_in_a_cell_without_await_and_leaves_the_sessions_loop(run) -> None:
    assert outcome(await run("import asyncio\nasyncio.run(asyncio.sleep(0, 'fresh'))")) == ("", "'fresh'")
    await run("future = asyncio.get_running_loop().create_future(); await asyncio.sleep(0)")
    assert outcome(await run("asyncio.run(asyncio.sleep(0, 'beside'))")) == ("", "'beside'")
    await run("future.set_result('kept')")
    assert outcome(await run("await future")) == ("", "'kept'")
    code = "loop = asyncio.new_event_loop()\nx = loop.run_until_complete(asyncio.sleep(0, 3))\nloop.close()\nx"
    assert outcome(await run(code)) == ("", "3")


async def test_a_task_that_stops_the_loop_or_fails_does_not_stop_the_others(
    service: Service, run, tmp_path: Path
) -> None:
    code = f"""
    import asyncio, pathlib
    folder = pathlib.Path({str(tmp_path)!r})

    async def stopper():
        while not (folder / "go").exists():
            await asyncio.sleep(0.001)
        asyncio.get_running_loop().stop()
        1 / 0

    async def worker():
        while not (folder / "go").exists():
            await asyncio.sleep(0.001)
        for n in range(20):
            await asyncio.sleep(0.001)
        (folder / "done").touch()

    tasks = asyncio.create_task(stopper()), asyncio.create_task(worker())
    await asyncio.sleep(0)
    """
    await run(code)
    (tmp_path / "go").touch()
    assert await until((tmp_path / "done").exists)
    assert (await run("await asyncio.sleep(0, 'alive')")).result == {"text/plain": "'alive'"}


async def test_an_interrupt_cancels_the_awaiting_cell_and_nothing_of_it_resumes(
    service: Service, run, tmp_path: Path
) -> None:
    # Said by a thread that sees the cell wait: said by the cell itself, it may be interrupted while it says so.
    await run(f"""
import asyncio, pathlib, threading, time
def tell(task):
    while task._fut_waiter is None: time.sleep(0.001)
    pathlib.Path({str(tmp_path / "begun")!r}).touch()
""")
    code = """\
import asyncio
tell_of = lambda task: threading.Thread(target=tell, args=(task,)).start()
log = []
async def deep():
    tell_of(asyncio.current_task())
    try:
        await asyncio.sleep(3600)
        log.append("resumed inside")
    finally:
        log.append("finally")
await deep()
log.append("resumed after")
"""
    cell = await begin_and_see(service, code, tmp_path / "begun")
    result = await service.interrupt("s")
    assert (result.cell, result.status, result.error.name) == (cell, "interrupted", "KeyboardInterrupt")
    assert f'  File "<cell {cell}>", line 11, in <module>\n    await deep()\n' in result.error.traceback
    assert f'  File "<cell {cell}>", line 7, in deep\n    await asyncio.sleep(3600)\n' in result.error.traceback
    assert "ingle" not in result.error.traceback
    code = "for i in range(20): await asyncio.sleep(0.001)\nlog, asyncio.all_tasks() == {asyncio.current_task()}"
    assert outcome(await run(code)) == ("", "(['finally'], True)")


async def test_an_interrupt_stops_code_of_an_awaiting_cell_that_never_yields(
    service: Service, run, tmp_path: Path
) -> None:
    code = f"""
    import asyncio, pathlib
    log = []
    await asyncio.sleep(0)
    pathlib.Path({str(tmp_path / "begun")!r}).touch()
    while True:
        pass
    log.append("resumed")
    """
    await begin_and_see(service, code, tmp_path / "begun")
    result = await service.interrupt("s")
    assert (result.status, result.error.name) == ("interrupted", "KeyboardInterrupt")
    assert outcome(await run("await asyncio.sleep(0.01)\nlog")) == ("", "[]")


async def test_an_interrupt_spares_the_tasks_of_earlier_cells(service: Service, run, tmp_path: Path) -> None:
    await run(
        """
        import asyncio
        steps = 0
        async def work():
            global steps
            while True:
                await asyncio.sleep(0)
                steps += 1
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        """
    )
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'begun')!r}).touch()\nawait asyncio.sleep(3600)"
    await begin_and_see(service, code, tmp_path / "begun")
    # Most signals land while the other task is on the stack: that must not kill it, nor be lost.
    assert (await service.interrupt("s")).status == "interrupted"
    code = "before = steps\nawait asyncio.sleep(0.01)\ntask.done(), steps > before"
    assert outcome(await run(code)) == ("", "(False, True)")


async def test_a_gathering_cell_that_is_interrupted_takes_its_branches_with_it(
    service: Service, run, tmp_path: Path
) -> None:
    code = f"""
    import asyncio, pathlib
    ended = []
    async def branch(n):
        try:
            await asyncio.sleep(3600)
            ended.append("resumed")
        except asyncio.CancelledError:
            ended.append(n)
            raise
    async def sign():
        pathlib.Path({str(tmp_path / "begun")!r}).touch()
    await asyncio.gather(branch(1), branch(2), sign())
    """
    await begin_and_see(service, code, tmp_path / "begun")
    assert (await service.interrupt("s")).status == "interrupted"
    assert outcome(await run("await asyncio.sleep(0.01)\nsorted(ended)")) == ("", "[1, 2]")


async def test_an_interrupt_raised_by_another_task_ends_the_awaiting_cell_for_good(run) -> None:
    await run(
        """
        import asyncio
        log, now = [], asyncio.Event()
        async def raiser():
            await now.wait()
            raise KeyboardInterrupt
        task = asyncio.create_task(raiser())
        await asyncio.sleep(0)
        """
    )
    result = await run("log.append('before')\nnow.set()\nawait asyncio.sleep(0.05)\nlog.append('resumed')")
    assert (result.status, result.error.name) == ("interrupted", "KeyboardInterrupt")
    assert outcome(await run("await asyncio.sleep(0.1)\nlog")) == ("", "['before']")


async def test_a_timeout_ends_an_awaiting_cell_and_keeps_the_loop(run) -> None:
    await run("import asyncio\nfirst = asyncio.get_running_loop(); await asyncio.sleep(0)")
    result = await run("await asyncio.sleep(3600)", timeout=0.05)
    assert (result.status, result.timed_out, result.notices) == ("interrupted", True, [])
    assert outcome(await run("(await asyncio.sleep(0, asyncio.get_running_loop())) is first")) == ("", "True")


async def test_a_process_forked_by_a_cell_has_a_loop_of_its_own_and_leaves_the_sessions(run, tmp_path: Path) -> None:
    code = f"""
    import asyncio, os, pathlib
    seen = pathlib.Path({str(tmp_path / "seen")!r})
    async def work():
        while True:
            await asyncio.sleep(0.001)
            with seen.open("a") as f:
                f.write(f"{{os.getpid()}}\\n")
    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    """
    await run(code)
    code = """
    child = os.fork()
    if child == 0:
        os._exit(asyncio.run(asyncio.sleep(0.05, 7)))
    os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    """
    assert outcome(await run(code)) == ("", "7")
    assert outcome(await run("await asyncio.sleep(0.01)\ntask.done(), str(child) in seen.read_text()")) == (
        "",
        "(False, False)",
    )

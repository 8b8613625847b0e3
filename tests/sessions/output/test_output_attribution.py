"""Whose output it is: every event carries its cell, and what goes on in the background is nobody's next output."""

from pathlib import Path
from textwrap import dedent

import pytest

from ingle.events import AnyEvent, Done, Result, Stderr, Stdout
from ingle.service import Service

pytestmark = pytest.mark.req("out.attributed")


@pytest.fixture
async def run(service: Service):
    """Runs a cell in the one session of the test."""
    await service.create_session("s")

    async def execute(code: str, **options: object) -> Result:
        result = await service.execute("s", dedent(code).strip("\n"), **options)
        assert (result.status, result.error) == ("ok", None)
        return result

    return execute


async def events_until(service: Service, last: int) -> list[AnyEvent]:
    """The events up to the `done` of the cell `last`."""
    seen = []
    async for event in service.events("s"):
        seen.append(event)
        if isinstance(event, Done) and event.cell == last:
            return seen
    raise AssertionError("the timeline ended")


class Timeline:
    """The texts of a session so far, as (cell, background, text), neighbours joined."""

    def __init__(self, service: Service) -> None:
        self._events = service.events("s")
        self._seen: list[tuple[int | None, bool, str]] = []

    async def until_text(self, text: str) -> list[tuple[int | None, bool, str]]:
        async for event in self._events:
            if not isinstance(event, Stdout | Stderr):
                continue
            whose = (event.cell, event.background)
            if self._seen and self._seen[-1][:2] == whose:
                self._seen[-1] = (*whose, self._seen[-1][2] + event.text)
            else:
                self._seen.append((*whose, event.text))
            if text in self._seen[-1][2]:
                return self._seen
        raise AssertionError("the timeline ended")


def background(events: list[AnyEvent]) -> tuple[str, str]:
    texts = [e for e in events if isinstance(e, Stdout | Stderr) and e.background]
    return tuple("".join(e.text for e in texts if isinstance(e, kind)) for kind in (Stdout, Stderr))


async def test_every_event_of_a_cell_carries_its_number(service: Service, run) -> None:
    await run("import sys; print('a'); print('b', file=sys.stderr)\n1")
    result = await service.execute("s", "print(input('? ')) or 1 / 0", wait=5)
    assert result.status == "waiting_for_input"
    await service.input("s", "yes")
    kinds: dict[int | None, list[str]] = {}
    for event in await events_until(service, 2):
        name = type(event).__name__
        if kinds.setdefault(event.cell, [])[-1:] != [name]:
            kinds[event.cell].append(name)
    assert kinds == {
        None: ["StateChanged"],
        1: ["StateChanged", "Stdout", "Stderr", "ResultShown", "Done"],
        2: ["StateChanged", "Stdout", "StateChanged", "InputWanted", "StateChanged", "Stdout", "ErrorRaised", "Done"],
    }
    numbers = [event.seq for event in await events_until(service, 2)]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(
    "write",
    [
        "print('late')",
        "os.write(1, b'late\\n')",
        "subprocess.run(['echo', 'late'])",
        "print('late', file=sys.stderr)",
        "sys.__stdout__.write('late\\n')",
    ],
)
async def test_what_a_thread_writes_after_its_cell_is_kept_as_background(
    service: Service, run, tmp_path: Path, write: str
) -> None:
    code = f"""
    import os, subprocess, sys, threading, time
    def late():
        while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.002)
        {write}
    thread = threading.Thread(target=late)
    thread.start()
    print("cell 1")
    """
    assert (await run(code)).stdout == "cell 1\n"
    (tmp_path / "go").touch()
    timeline = Timeline(service)
    assert await timeline.until_text("late\n") == [(1, False, "cell 1\n"), (None, True, "late\n")]
    result = await run("thread.join(); print('cell 2')")
    assert (result.stdout, result.stderr) == ("cell 2\n", "")
    # Nor has it become output of the cell that started the thread.
    first = await service.wait("s", 1)
    assert (first.stdout, first.stderr) == ("cell 1\n", "")
    page = await service.read_output("s", 1, stream="both")
    assert [line.text for line in page.lines] == ["cell 1"]


async def test_a_thread_that_prints_while_the_next_cell_prints_is_not_mixed_into_it(service: Service, run) -> None:
    code = """
    import sys, threading
    step, stepped = threading.Semaphore(0), threading.Semaphore(0)
    def talk():
        for i in range(200):
            step.acquire()
            print("bg", i, file=(sys.stdout, sys.stderr)[i % 2])
            stepped.release()
    thread = threading.Thread(target=talk)
    thread.start()
    """
    await run(code)
    # The two take turns: each line of the cell has one of the thread before and after it.
    turns = """
    for i in range(100):
        print("fg", i, file=(sys.stdout, sys.stderr)[i // 2 % 2])
        step.release(); stepped.acquire()
    """
    out = "".join(f"fg {i}\n" for i in range(100) if i // 2 % 2 == 0)
    err = "".join(f"fg {i}\n" for i in range(100) if i // 2 % 2 == 1)
    for _ in range(2):
        result = await run(turns)
        assert (result.stdout, result.stderr) == (out, err)
    events = await events_until(service, 3)
    assert background(events) == (
        "".join(f"bg {i}\n" for i in range(0, 200, 2)),
        "".join(f"bg {i}\n" for i in range(1, 200, 2)),
    )
    assert {e.cell for e in events if isinstance(e, Stdout | Stderr) and e.background} == {2, 3}
    # In the timeline they stand in the order they were written.
    lines = "".join(e.text for e in events if isinstance(e, Stdout | Stderr) and e.cell == 2).splitlines()
    assert lines == [line for i in range(100) for line in (f"fg {i}", f"bg {i}")]


@pytest.mark.parametrize("pause", ["0.0005", "0.0005 * n"])
async def test_threads_that_never_rest_do_not_reach_the_cells_that_follow(service: Service, pause: str) -> None:
    code = f"""
import threading
stop = threading.Event()
counts = [0, 0, 0]
def talk(n):
    while not stop.is_set():
        print(f"bg {{n}} {{counts[n]}}\\n", end="")
        counts[n] += 1
        stop.wait({pause})
threads = [threading.Thread(target=talk, args=(n,)) for n in range(3)]
for t in threads: t.start()
"""
    for _ in range(2):
        await service.create_session("s")
        assert (await service.execute("s", code)).status == "ok"
        for cell in range(2, 22):
            result = await service.execute("s", f"for i in range(10): print({cell}, i)")
            assert (result.status, result.stdout) == ("ok", "".join(f"{cell} {i}\n" for i in range(10)))
        result = await service.execute("s", "stop.set()\nfor t in threads: t.join()\nprint(*counts)")
        # What they said while their own cell still ran is its output; all the rest is background; nothing is lost.
        events = [e for e in await events_until(service, 22) if isinstance(e, Stdout)]
        lines = "".join(e.text for e in events if e.cell == 1 or e.background).splitlines()
        counts = [int(word) for word in result.stdout.split()]
        for n, count in enumerate(counts):
            assert [line for line in lines if line.startswith(f"bg {n} ")] == [f"bg {n} {i}" for i in range(count)]
        assert len(lines) == sum(counts)
        await service.end_session("s")


async def test_a_long_text_that_a_thread_is_still_writing_when_its_cell_ends_stays_out_of_the_next(
    service: Service, run
) -> None:
    await run("import threading\ndef pour(n): print(f'{n:02}' + 'é' * 99_997)")
    for n in range(40):
        first = await run(f"thread = threading.Thread(target=pour, args=({n},)); thread.start()")
        second = await run("print('mine')")
        third = await run("thread.join()")
        assert (second.stdout, third.stdout) == ("mine\n", "")
        whole = f"{n:02}" + "é" * 99_997 + "\n"
        assert whole.startswith(first.stdout)
    # What was not its own cell's is background; together they are all there is.
    texts = [e.text for e in await events_until(service, 121) if isinstance(e, Stdout) and e.text != "mine\n"]
    assert "".join(texts).count("é") == 40 * 99_997


async def test_threads_of_the_running_cell_are_its_own_also_among_older_ones(service: Service, run) -> None:
    await run("import threading\nend = threading.Event()\nold = threading.Thread(target=end.wait); old.start()")
    code = """
    def talk(n):
        print(f"thread {n}\\n", end="")
    for n in range(5):
        t = threading.Thread(target=talk, args=(n,)); t.start(); t.join()
    import asyncio
    await asyncio.to_thread(print, "to_thread")
    """
    assert (await run(code)).stdout == "".join(f"thread {n}\n" for n in range(5)) + "to_thread\n"
    result = await run("end.set(); old.join(); print('alone again')")
    assert result.stdout == "alone again\n"
    assert (await run("print('and quiet')")).stdout == "and quiet\n"
    assert background(await events_until(service, 4)) == ("", "")


async def test_a_thread_that_an_older_thread_starts_is_background_too(service: Service, run) -> None:
    code = """
    import threading
    step, stepped = threading.Semaphore(0), threading.Semaphore(0)
    def tick(n):
        step.acquire()
        print("tick", n)
        if n < 3:
            threading.Timer(0, tick, (n + 1,)).start()
        stepped.release()
    threading.Timer(0, tick, (0,)).start()
    """
    await run(code)
    result = await run("for i in range(4):\n    step.release(); stepped.acquire(); print('cell', i)")
    assert result.stdout == "".join(f"cell {i}\n" for i in range(4))
    assert background(await events_until(service, 2)) == ("".join(f"tick {i}\n" for i in range(4)), "")


async def test_a_failing_background_thread_tells_it_in_the_background(service: Service, run) -> None:
    thread = "t = threading.Thread(target=lambda: go.wait() and 1 / 0, name='T'); t.start()"
    await run(f"import threading\ngo = threading.Event()\n{thread}")
    result = await run("go.set(); t.join(); print('cell 2')")
    assert (result.stdout, result.stderr) == ("cell 2\n", "")
    out, err = background(await events_until(service, 2))
    assert out == ""
    assert err.startswith("Exception in thread T:\nTraceback (most recent call last):\n")
    assert '  File "<cell 1>", line 3, in <lambda>\n' in err
    assert err.endswith("ZeroDivisionError: division by zero\n")


async def test_tasks_of_an_earlier_cell_are_background_while_idle_and_while_the_next_cell_runs(
    service: Service, run, tmp_path: Path
) -> None:
    code = f"""
    import asyncio, os
    step, stepped = asyncio.Semaphore(0), asyncio.Semaphore(0)
    async def talk():
        while not os.path.exists({str(tmp_path / "go")!r}):
            await asyncio.sleep(0.002)
        asyncio.get_running_loop().call_soon(print, "called")
        await asyncio.sleep(0)
        print("idle")
        for i in range(20):
            await step.acquire()
            print("bg", i)
            stepped.release()
    task = asyncio.create_task(talk())
    await asyncio.sleep(0)
    print("cell 1")
    """
    assert (await run(code)).stdout == "cell 1\n"
    (tmp_path / "go").touch()
    timeline = Timeline(service)
    assert await timeline.until_text("idle\n") == [(1, False, "cell 1\n"), (None, True, "called\nidle\n")]
    result = await run(
        """
        async def mine():
            print("of a task of cell 2")
        for i in range(20):
            print("fg", i)
            step.release(); await stepped.acquire()
        await asyncio.create_task(mine())
        """
    )
    assert result.stdout == "".join(f"fg {i}\n" for i in range(20)) + "of a task of cell 2\n"
    events = await events_until(service, 2)
    assert background(events) == ("called\nidle\n" + "".join(f"bg {i}\n" for i in range(20)), "")


async def test_children_that_outlive_their_cell_are_background_while_the_session_is_idle(
    service: Service, run, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    await run(f"import os; os.system('(until [ -e \"{go}\" ]; do sleep 0.01; done; echo late) &'); print('cell 1')")
    go.touch()
    timeline = Timeline(service)
    assert await timeline.until_text("late\n") == [(1, False, "cell 1\n"), (None, True, "late\n")]
    assert (await run("print('cell 2')")).stdout == "cell 2\n"


async def test_late_output_of_a_dead_worker_is_not_the_next_ones(service: Service, run) -> None:
    code = "import os\nif not os.fork():\n    os.setsid()\n    while True: os.write(1, b'stray\\n')\nos._exit(0)"
    result = await service.execute("s", code)
    assert result.status == "exit"
    for _ in range(3):
        result = await service.execute("s", "print('fresh')")
        assert (result.status, result.stdout) == ("ok", "fresh\n")

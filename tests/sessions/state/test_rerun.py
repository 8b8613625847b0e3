"""What cannot be saved is told with the cell that made it, and made again by that cell if whoever loads it says so."""

from pathlib import Path
from typing import Any

import pytest
from test_saving import run

from ingle.events import Skipped
from ingle.service import Service
from ingle_worker.session.compiler import Compiled, Compiler
from ingle_worker.snapshot import provenance

pytestmark = [pytest.mark.req("state.save"), pytest.mark.req("state.load")]

BEGUN = "a generator that has started: its position in the code cannot be saved"


async def saved(service: Service, *cells: str) -> list[Skipped]:
    await service.create_session("main")
    for cell in cells:
        await run(service, cell)
    skipped = (await service.save_session("main", "calc")).skipped
    await service.end_session("main")
    return sorted(skipped, key=lambda each: each.name)


async def test_without_being_asked_nothing_runs_again_and_the_cells_are_named(service: Service, tmp_path: Path) -> None:
    skipped = await saved(
        service, f"with open('{tmp_path}/runs', 'a') as f: f.write('x')\ng = (n for n in 'abc'); next(g)", "held = [g]"
    )
    assert skipped == [Skipped("g", "generator", BEGUN, "<cell 1>"), Skipped("held", "list", BEGUN, "<cell 2>")]
    restored = await service.load_session("calc")
    assert sorted(restored.skipped, key=lambda each: each.name) == skipped
    assert restored.notices == ["g, held: made by cell 1, cell 2; load it with rerun to run them again"]
    assert await run(service, "'g' in globals()") == "False"
    assert (tmp_path / "runs").read_text() == "x"


async def test_asked_for_the_cells_make_what_is_missing_and_nothing_else(service: Service) -> None:
    await saved(
        service,
        "n = 0\nrows = [1]\nimport socket, threading",
        "n += 5; helper = 'gone'\ng = (n * each for each in [1, 2]); first = next(g); print('made g')",
        "del helper; n = 7; rows.append(2)",
        "one, other = socket.socketpair(); stop = threading.Event(); both = [g, rows]\n"
        "t = threading.Thread(target=stop.wait, daemon=True); t.start()",
    )
    restored = await service.load_session("calc", rerun=True)
    assert (restored.skipped, restored.notices) == (
        [],
        [
            "cell 2 was run again for g; it printed 'made g'",
            "cell 4 was run again for both, one, other, t",
        ],
    )
    # What was loaded is as it was: neither `n` nor `rows` has anything from running the cells again.
    assert await run(service, "n, rows, first, 'helper' in globals()") == "(7, [1, 2], 5, False)"
    assert await run(service, "both[0] is g, both[1] is rows, list(g), t.is_alive()") == "(True, True, [14], True)"
    assert await run(service, "one.send(b'x'); other.recv(1)") == "b'x'"
    assert restored.variables == 11
    assert await run(service, "stop.set()") == ""


async def test_a_session_that_was_loaded_knows_it_again(service: Service) -> None:
    await saved(service, "g = (n for n in 'abc'); next(g)")
    await service.load_session("calc", rerun=True)
    await run(service, "x = 1")
    again = await service.save_session("main", "calc")
    assert again.skipped == [Skipped("g", "generator", BEGUN, "<cell 1 before loading>")]
    await service.end_session("main")
    restored = await service.load_session("calc", rerun=True)
    assert (restored.skipped, await run(service, "list(g), x")) == ([], "(['b', 'c'], 1)")


async def test_a_cell_that_fails_again_is_told_and_costs_only_what_it_made(service: Service, tmp_path: Path) -> None:
    await saved(
        service,
        "import os\nx = 5",
        f"os.mkdir('{tmp_path}/once'); g = (n for n in 'ab'); next(g)",
        "h = (n for n in 'ab'); next(h); i = input if x else 0; 5",
    )
    restored = await service.load_session("calc", rerun=True)
    assert restored.skipped == [Skipped("g", "generator", BEGUN, "<cell 2>")]
    assert restored.notices == [
        f"cell 2 was run again, and failed: FileExistsError: [Errno 17] File exists: '{tmp_path}/once'",
        "cell 3 was run again for h",
    ]
    assert await run(service, "x, list(h), 'g' in globals()") == "(5, ['b'], False)"


@pytest.mark.parametrize(
    "cells",
    [
        ["globals()['g'] = (n for n in 'ab'); next(globals()['g'])"],
        ["def f():\n    global g\n    g = (n for n in 'ab'); next(g)", "f()"],
    ],
)
async def test_a_cell_that_did_not_bind_the_name_itself_is_not_named(service: Service, cells: list[str]) -> None:
    assert await saved(service, *cells) == [Skipped("g", "generator", BEGUN)]
    restored = await service.load_session("calc", rerun=True)
    assert (restored.skipped, restored.notices) == ([Skipped("g", "generator", BEGUN)], [])


async def test_neither_is_one_that_came_before_a_failure_or_before_a_clearing(service: Service) -> None:
    await service.create_session("main")
    await run(service, "g = (n for n in 'ab'); next(g)")
    await service.execute("main", "g = (n for n in 'xyz'); next(g); 1 / 0")
    assert (await service.save_session("main", "calc")).skipped == [Skipped("g", "generator", BEGUN)]
    await run(service, "g = (n for n in 'ab'); next(g)")
    assert (await service.save_session("main", "calc")).skipped == [Skipped("g", "generator", BEGUN, "<cell 3>")]
    await service.clear_session("main")
    await run(service, "globals()['g'] = (n for n in 'ab'); next(g)")
    assert (await service.save_session("main", "calc")).skipped == [Skipped("g", "generator", BEGUN)]


def test_a_cell_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "RERUN_SECONDS", 1)
    space: dict[str, Any] = {}

    def execute(compiled: Compiled) -> None:
        assert compiled.body is not None
        exec(compiled.body, space)

    endless = "g = 5\nwhile True:\n    try: g += 1\n    except Exception: pass"
    again = provenance.Rerun(space, Compiler(), execute)
    told = again.run("cell 1", "<cell 1>", endless, {"g"})
    assert told == "cell 1 was run again for g, and failed: TooLong: it took longer than 1 s"
    provenance.forget()


def test_the_code_that_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "MAX_CODE_CHARS", 10 * (provenance.CELL_OVERHEAD_CHARS + 5))
    provenance.forget()
    for number in range(30):
        provenance.note(f"<cell {number}>", f"a{number:02}=1", True)
    found = provenance.find([f"a{number:02}" for number in range(30)], 0)
    provenance.forget()
    assert sorted(found) == [f"a{number}" for number in range(20, 30)]

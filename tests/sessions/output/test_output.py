"""Output: all of it is captured, told apart, in order, whole, at once, and as the output of the cell it belongs to."""

import asyncio
import itertools
from pathlib import Path
from textwrap import dedent

import pytest

from ingle.events import AnyEvent, Done, Result, Stderr, Stdout
from ingle.service import Service
from support.waiting import until

pytestmark = pytest.mark.both_levels


@pytest.fixture
def run(run):
    """As everywhere, but its code may be indented as the test is."""
    return lambda code, **options: run(dedent(code).strip("\n"), **options)


def said(result: Result) -> tuple[str, str]:
    assert (result.status, result.error, result.truncated.stdout, result.truncated.stderr) == ("ok", None, 0, 0)
    return result.stdout, result.stderr


async def events_until(service: Service, last: int, first: int = 1) -> list[AnyEvent]:
    """The events up to the `done` of the cell `last`."""
    seen = []
    async for event in service.events("s", first):
        seen.append(event)
        if isinstance(event, Done) and event.cell == last:
            return seen
    raise AssertionError("the timeline ended")


def in_order(events: list[AnyEvent], background: bool = False) -> list[tuple[str, str]]:
    """Text as (stream, text), neighbours of one stream joined."""
    texts = [
        ("out" if isinstance(event, Stdout) else "err", event.text)
        for event in events
        if isinstance(event, Stdout | Stderr) and event.background is background
    ]
    return [
        (stream, "".join(text for _, text in group)) for stream, group in itertools.groupby(texts, lambda pair: pair[0])
    ]


# --- all of it ---

WRITERS = {
    "print": ("print('out'); print('err', file=sys.stderr)", "out\n", "err\n"),
    "the streams' own methods": (
        "sys.stdout.write('a'); sys.stdout.writelines(['b', 'c\\n']); sys.stderr.write('d\\n');",
        "abc\n",
        "d\n",
    ),
    "their buffers": ("sys.stdout.buffer.write(b'a\\n'); sys.stderr.buffer.write(b'b\\n');", "a\n", "b\n"),
    "the original streams": (
        "sys.stdout = sys.stderr = open(os.devnull, 'w')\n"
        "print('out', file=sys.__stdout__); print('err', file=sys.__stderr__)",
        "out\n",
        "err\n",
    ),
    "os.write": ("os.write(1, b'out\\n'); os.write(2, b'err\\n');", "out\n", "err\n"),
    "open on the descriptors": (
        "for fd, text in ((1, 'out\\n'), (2, 'err\\n')):\n    with open(fd, 'w', closefd=False) as f: f.write(text)",
        "out\n",
        "err\n",
    ),
    "/dev/stdout and /dev/stderr": (
        "for name in ('stdout', 'stderr'):\n    with open(f'/dev/{name}', 'w') as f: f.write(name + '\\n')",
        "stdout\n",
        "stderr\n",
    ),
    "C code": (
        "import ctypes; c = ctypes.CDLL(None); c.puts(b'from C'); c.fflush(None)\nc.write(2, b'raw C\\n', 6);",
        "from C\n",
        "raw C\n",
    ),
    "a child process": ("import subprocess; subprocess.run('echo out; echo err >&2', shell=True);", "out\n", "err\n"),
    "os.system": ("os.system('echo out; echo err >&2');", "out\n", "err\n"),
    "a Python child": (
        "import subprocess; subprocess.run([sys.executable, '-c', 'import sys; print(1); print(2, file=sys.stderr)']);",
        "1\n",
        "2\n",
    ),
    "a forked child": (
        "if not (pid := os.fork()):\n    print('out'); print('err', file=sys.stderr); os._exit(0)\nos.waitpid(pid, 0);",
        "out\n",
        "err\n",
    ),
    "a thread": (
        "import threading\ndef f(): print('out'); print('err', file=sys.stderr); os.write(1, b'raw\\n')\n"
        "t = threading.Thread(target=f); t.start(); t.join()",
        "out\nraw\n",
        "err\n",
    ),
    "logging and warnings": (
        "import logging, warnings; logging.basicConfig(format='%(message)s')\nlogging.warning('log')\n"
        "warnings.showwarning = lambda m, *a: print('warned', m, file=sys.stderr)\nwarnings.warn('now')",
        "",
        "log\nwarned now\n",
    ),
    "a stream that was closed, and one that was detached": (
        "print('a'); sys.stdout.close(); print('b'); sys.stdout.flush(); sys.stderr.reconfigure(encoding='ascii')\n"
        "print('ä', file=sys.stderr)",
        "a\nb\n",
        "ä\n",
    ),
}


@pytest.mark.req("out.all")
@pytest.mark.parametrize("name", WRITERS)
async def test_whoever_writes_is_heard_and_the_streams_are_told_apart(run, name: str) -> None:
    code, out, err = WRITERS[name]
    assert said(await run("import os, sys\n" + code)) == (out, err)


@pytest.mark.req("out.all")
async def test_the_last_words_of_a_segfault_are_kept_with_what_was_printed_before(run) -> None:
    result = await run("import ctypes\nprint('before', end='')\nctypes.string_at(0)")
    assert (result.status, result.stdout, result.exit.signal) == ("exit", "before", "SIGSEGV")
    assert result.stderr.startswith("Fatal Python error: Segmentation fault\n\n")
    assert '  File "<cell 1>", line 3 in <module>\n' in result.stderr


@pytest.mark.req("out.all")
@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.abort()", "sys.exit()"])
async def test_nothing_is_stranded_when_the_process_ends(run, end: str) -> None:
    result = await run(f"import os, sys\nprint('out', end='')\nprint('err', end='', file=sys.stderr)\n{end}")
    assert (result.status, result.stdout, result.stderr[:3]) == ("exit", "out", "err")


@pytest.mark.req("out.all")
async def test_output_from_before_an_error_and_an_interrupt_is_kept(service: Service, run, tmp_path: Path) -> None:
    result = await run("print('a', end='')\n1 / 0")
    assert (result.status, result.stdout, result.stderr) == ("error", "a", "")
    await service.begin("s", f"print('b', end='')\nopen({str(tmp_path / 'sign')!r}, 'w')\nwhile True: pass")
    assert await until((tmp_path / "sign").exists)
    result = await service.interrupt("s")
    assert (result.status, result.stdout, result.stderr) == ("interrupted", "b", "")


@pytest.mark.req("out.all")
async def test_a_signal_handler_and_a_finalizer_may_print_in_the_middle_of_anything(run) -> None:
    code = """
    import gc, signal, sys
    class Loud:
        def __init__(self):
            self.me = self
        def __del__(self):
            global finalized
            finalized += 1
            print("f", end="", file=sys.stderr)
    def handler(number, frame):
        global handled
        handled += 1
        print("h", end="", file=(sys.stdout, sys.stderr)[handled % 2])
    handled = finalized = 0
    gc.set_threshold(7)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    for i in range(5000):
        Loud()
        print("o", end="")
        print("e", end="", file=sys.stderr)
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.set_threshold(700)
    gc.collect()
    handled, finalized
    """
    result = await run(code, timeout=30)
    out, err = said(result)
    handled, finalized = map(int, result.result["text/plain"].strip("()").split(","))
    assert handled > 0
    assert finalized == 5000
    assert (out.count("o"), err.count("e"), err.count("f")) == (5000, 5000, 5000)
    assert (out + err).count("h") == handled
    assert set(out) <= {"o", "h"}
    assert set(err) <= {"e", "h", "f"}


# --- order ---


@pytest.mark.req("out.order")
async def test_pythons_own_writes_keep_their_order_across_the_streams(service: Service, run) -> None:
    code = """
    import sys
    for i in range({n}):
        sys.stdout.write(f"o{{i}} ")
        sys.stderr.write(f"e{{i}} ")
    """
    first = 1
    for cell, n in enumerate((1, 2, 300, 300, 300, 2000), 1):
        result = await run(code.format(n=n))
        assert said(result) == ("".join(f"o{i} " for i in range(n)), "".join(f"e{i} " for i in range(n)))
        events = await events_until(service, cell, first)
        first = events[-1].seq + 1
        assert in_order(events) == [pair for i in range(n) for pair in (("out", f"o{i} "), ("err", f"e{i} "))]


@pytest.mark.req("out.order")
async def test_the_order_holds_for_runs_of_any_length_and_over_pauses(service: Service, run) -> None:
    code = """
    import random, sys, time
    source = random.Random(7)
    for i in range(400):
        stream = source.choice((sys.stdout, sys.stderr))
        for j in range(source.choice((1, 1, 2, 5))):
            stream.write(source.choice("abc") * source.choice((1, 10, 3000)) + ";")
        if i % 40 == 0:
            time.sleep(0.002)
    """
    await run(code)
    import random

    source, expected = random.Random(7), []
    for _ in range(400):
        stream = source.choice(("out", "err"))
        for _ in range(source.choice((1, 1, 2, 5))):
            text = source.choice("abc") * source.choice((1, 10, 3000)) + ";"
            if expected and expected[-1][0] == stream:
                expected[-1] = (stream, expected[-1][1] + text)
            else:
                expected.append((stream, text))
    assert in_order(await events_until(service, 1)) == expected


@pytest.mark.req("out.order")
async def test_the_order_holds_with_output_of_children_and_raw_writes_in_between(service: Service, run) -> None:
    code = """
    import os, subprocess, sys
    for i in range(60):
        sys.stdout.write(f"o {i}\\n")
        if i % 3 == 0:
            subprocess.run(f"echo c {i}; echo d {i} >&2", shell=True)
        sys.stderr.write(f"e {i}\\n")
        os.write(1, b"w %d\\n" % i)
        os.write(2, b"x %d\\n" % i)
    """
    out = [line for i in range(60) for line in (f"o {i}", *([f"c {i}"] if i % 3 == 0 else []), f"w {i}")]
    err = [line for i in range(60) for line in (*([f"d {i}"] if i % 3 == 0 else []), f"e {i}", f"x {i}")]
    for cell in (1, 2):
        result = await run(code)
        # Within one stream nothing is reordered, whoever wrote it.
        assert [text.splitlines() for text in said(result)] == [out, err]
        lines = "".join(text for _, text in in_order(await events_until(service, cell))).splitlines()
        python = [line for line in lines if line[0] in "oe"]
        assert python[-120:] == [line for i in range(60) for line in (f"o {i}", f"e {i}")]


@pytest.mark.req("out.order")
async def test_within_one_stream_each_of_many_writers_keeps_its_order(run) -> None:
    code = """
    import os, subprocess, sys, threading
    def write(name):
        for i in range(300):
            (sys.stdout.write(f"{name} {i}\\n") if i % 2 else os.write(1, f"{name} {i}\\n".encode()))
    threads = [threading.Thread(target=write, args=(f"t{n}",)) for n in range(4)]
    child = subprocess.Popen("for i in `seq 0 299`; do echo child $i; done", shell=True)
    for t in threads: t.start()
    for t in threads: t.join()
    child.wait();
    """
    out, err = said(await run(code))
    seen: dict[str, list[int]] = {}
    for line in out.splitlines():
        name, number = line.split()
        seen.setdefault(name, []).append(int(number))
    assert err == ""
    assert seen == {name: list(range(300)) for name in ("t0", "t1", "t2", "t3", "child")}


# --- bytes ---


@pytest.mark.req("out.bytes")
async def test_a_character_split_over_writes_and_reads_comes_out_whole(service: Service, run, tmp_path: Path) -> None:
    code = f"""
    import os, sys, time
    for byte in "é中\U0001f600".encode():
        os.write(1, bytes([byte]))
        os.write(2, bytes([byte]))
        time.sleep(0.003)
    open({str(tmp_path / "half")!r}, "w").close()
    sys.stdout.buffer.write("ä".encode()[:1])
    while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.002)
    sys.stdout.buffer.write("ä".encode()[1:])
    """
    call = asyncio.ensure_future(run(code))
    assert await until((tmp_path / "half").exists)
    early = await service.wait("s", 1, wait=0.02)
    assert (early.status, early.stdout) == ("running", "é中\U0001f600")
    (tmp_path / "go").touch()
    assert said(await call) == ("é中\U0001f600ä", "é中\U0001f600")


@pytest.mark.req("out.bytes")
async def test_a_megabyte_of_wide_characters_has_no_seam(run) -> None:
    result = await run(
        "import os\ndata = '中é\U0001f600'.encode() * 20_000\nwhile data: data = data[os.write(1, data[:4099]):]"
    )
    assert said(result) == ("中é\U0001f600" * 20_000, "")


ODD_BYTES = {
    "invalid bytes": (r"os.write(1, b'a\xff\xfeb\x80')", r"a\xff\xfeb\x80"),
    "a character cut off by another": (r"os.write(1, b'\xe4\xb8x')", r"\xe4\xb8x"),
    "a character cut off by the end of the cell": (r"os.write(1, b'x\xf0\x9f')", r"x\xf0\x9f"),
    "an overlong form and an encoded surrogate": (r"os.write(1, b'\xc0\x80\xed\xa0\x80')", r"\xc0\x80\xed\xa0\x80"),
    "a lone surrogate": (r"print('a\ud800b\udcff', end='')", r"a\ud800b\udcff"),
    "a lone surrogate on a file name": (r"print(os.fsdecode(b'n\xffm'), end='')", r"n\udcffm"),
    "NUL": (r"print('a\0b', end=''); os.write(1, b'\0')", "a␀b␀"),
    "bytes on the buffer": (r"sys.stdout.buffer.write(b'\xffa')", r"\xffa"),
    "control characters": (r"print('\x01\x1b[31m\x7f\r\b', end='')", "\x01\x1b[31m\x7f\r\b"),
    "line separators": (r"print('a\u2028b\x85c\x0bd', end='')", "a\u2028b\x85c\x0bd"),
    "a byte order mark": (r"os.write(1, '\ufeffa'.encode())", "\ufeffa"),
}


@pytest.mark.req("out.bytes")
@pytest.mark.parametrize("name", ODD_BYTES)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_odd_bytes_are_replaced_visibly_and_never_fatal(run, name: str, stream: str) -> None:
    code, expected = ODD_BYTES[name]
    if stream == "stderr":
        code = (
            code.replace("write(1", "write(2").replace("stdout", "stderr").replace("end=''", "end='', file=sys.stderr")
        )
    result = await run(f"import os, sys\n{code};")
    assert said(result) == ((expected, "") if stream == "stdout" else ("", expected))
    assert said(await run("print('on')")) == ("on\n", "")


@pytest.mark.req("out.bytes")
async def test_odd_text_in_values_errors_and_source_is_visible_too(service: Service, run) -> None:
    result = await run("class Odd:\n    def __repr__(self): return 'v\\ud800\\0'\nOdd()")
    assert (result.status, result.result) == ("ok", {"text/plain": "v\\ud800\0"})
    result = await run("raise ValueError('e\\ud800')")
    assert (result.error.value, result.error.traceback.splitlines()[-1]) == ("e\\ud800", "ValueError: e\\ud800")
    result = await run("'''\ud800'''")
    assert result.status in ("ok", "error")
    assert (await service.cells("s", first=3))[0].code == "'''\\ud800'''"
    assert said(await run("print('on')")) == ("on\n", "")


@pytest.mark.req("out.bytes", "out.attributed")
async def test_half_a_character_of_the_background_is_not_put_before_the_next_cells_text(
    service: Service, run, tmp_path: Path
) -> None:
    code = f"""
    import os, threading, time
    def write():
        while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.002)
        os.write(1, b"bg\\xc3")
        open({str(tmp_path / "written")!r}, "w").close()
    threading.Thread(target=write).start()
    """
    await run(code)
    (tmp_path / "go").touch()
    assert await until((tmp_path / "written").exists)
    assert said(await run("print('mine')")) == ("mine\n", "")
    assert in_order(await events_until(service, 2), background=True) == [("out", "bg\\xc3")]


# --- live ---


@pytest.mark.req("out.live")
@pytest.mark.parametrize(
    "write",
    [
        "print('chunk')",
        "print('chunk', end='')",
        "sys.stdout.write('chunk')",
        "os.write(1, b'chunk')",
        "os.system('printf chunk')",
        "sys.stdout.buffer.write(b'chunk')",
        "for c in 'chunk': print(c, end='')",
        "print('chunk', end='', file=sys.stderr)",
    ],
)
async def test_a_chunk_reaches_a_reader_while_the_cell_runs(service: Service, run, tmp_path: Path, write: str) -> None:
    go = tmp_path / "go"
    # The cell cannot end before the file is there, and the file is made only when the chunk was seen.
    code = f"import os, sys, time\n{write}\nwhile not os.path.exists({str(go)!r}): time.sleep(0.001)\nprint('end')"
    cell = await service.begin("s", code)
    seen = ""
    async for event in service.events("s"):
        if isinstance(event, Stdout | Stderr):
            assert (event.cell, event.background) == (cell, False)
            seen += event.text
            if seen.strip() == "chunk":
                result = await service.wait("s", cell, wait=0)
                assert (result.status, result.stdout + result.stderr) == ("running", seen)
                go.touch()
        if isinstance(event, Done):
            break
    assert (seen.replace("\n", ""), event.result.status) == ("chunkend", "ok")


@pytest.mark.req("out.live")
async def test_every_reader_gets_every_chunk_as_it_comes_and_late_ones_from_the_start(
    service: Service, run, tmp_path: Path
) -> None:
    code = f"""
import os, time
for i in range(20):
    print(i)
    while not os.path.exists(f"{tmp_path}/go {{i}}"): time.sleep(0.001)
"""
    seen = ["", "", ""]

    async def read(reader: int) -> None:
        async for event in service.events("s"):
            if isinstance(event, Stdout):
                seen[reader] += event.text
            elif isinstance(event, Done):
                return

    readers = [asyncio.ensure_future(read(reader)) for reader in (0, 1)]
    await service.begin("s", code)
    so_far = ""
    for i in range(20):
        so_far += f"{i}\n"
        assert await until(lambda: seen == [so_far, so_far, ""]), (so_far, seen)  # noqa: B023
        (tmp_path / f"go {i}").touch()
    await asyncio.gather(*readers)
    await read(2)
    assert seen == [so_far] * 3

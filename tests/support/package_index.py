"""A package index on this machine's loopback, with one package in it: `hearth`, which is warm."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOOP = "127.0.0.1"


@contextmanager
def serve_index(files: Path) -> Iterator[int]:
    """Its port."""
    (files / "simple/hearth").mkdir(parents=True)
    wheel = files / "hearth-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("hearth.py", "warm = True\n")
        info = "hearth-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hearth\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    (files / "simple/hearth/index.html").write_text(f'<a href="../../{wheel.name}">{wheel.name}</a>')
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", LOOP, "--directory", str(files)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline().split(" port ")[1].split()[0])
    finally:
        server.kill()
        server.wait()
        server.stdout.close()

"""Every CPython of the machine, for the tests that run in each of them."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ASK = "import platform, sys; print(platform.python_implementation()); print(list(sys.version_info[:3]))"


@dataclass(frozen=True)
class Python:
    path: str
    version: tuple[int, int, int]

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


def pythons() -> list[Python]:
    """Return this one, those of pyenv and those on the PATH: one for each release."""
    names = [f"python{major}" for major in ("2", "2.7", "3")] + [f"python3.{minor}" for minor in range(6, 20)]
    folders = sorted(Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv").glob("versions/*/bin/python"))
    # The shims of pyenv lead to the same interpreters, each through a shell script.
    on_path = [path for path in filter(None, map(shutil.which, names)) if Path(path).parent.name != "shims"]
    found: dict[tuple[int, int, int], Python] = {}
    for path in (sys.executable, *map(str, folders), *on_path):
        # Without `site`, since each process that collects tests asks all of them.
        asked = subprocess.run([path, "-S", "-E", "-c", ASK], capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.startswith("CPython"):
            version = tuple(json.loads(asked.stdout.splitlines()[1]))
            found.setdefault(version, Python(path, version))
    return sorted(found.values(), key=lambda python: python.version)


FOUND = pythons()
GOOD = [python for python in FOUND if python.version >= (3, 10)]
OLD = [python for python in FOUND if python.version < (3, 10)]

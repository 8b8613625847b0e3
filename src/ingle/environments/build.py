"""Builds an environment: a virtual environment, its wheels in the shared folder, then their installation.

pip resolves and fetches wheels, because its folder of wheels also serves sessions, which can read it. uv, if it is on
the PATH, makes the virtual environment, finds interpreters, and installs. A failed build leaves nothing behind.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ingle.environments.shapes import NewEnvironment
from ingle.environments.store import IN_USE, Record, Store, locked
from ingle.errors import EnvironmentFailed, InvalidRequest

MAX_REASON_LINES = 3
MAX_REASON_CHARS = 600

LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_NO_DEPS")
"""Variables of the caller that would lead the installation elsewhere."""

STORED_BUILD = "1ingle"
PARTS_WITHOUT_BUILD = 5
"""Parts of a wheel's name: project, version, then three tags; a build number would come before the tags."""

VERSION = re.compile(r"\d+(?:\.\d+){0,2}")
PROGRESS = re.compile(
    r"\s*(?:(?P<verb>Collecting|Downloading|Building wheel for|Processing)\s+(?P<what>\S+(?: \([\d.]+ [kMG]?B\))?))"
)
VERSIONS = re.compile(r"(\(from versions: ).+?, ((?:[^, ]+, ){2}[^, ]+)\)$")
"""The versions that the index has, the newest last."""

ASK = (
    "import json, sys, importlib.metadata as m;"
    "print(json.dumps(['.'.join(map(str, sys.version_info[:3])),"
    " {d.metadata['Name']: d.version for d in m.distributions()}]))"
)


class Build:
    """One build. `run` blocks; `cancel` may be called from another thread."""

    def __init__(
        self,
        store: Store,
        name: str,
        new: NewEnvironment,
        *,
        python: str = sys.executable,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`python` is the interpreter where the request names none. `tell` receives each step in words."""
        self._store = store
        self._name = name
        self._new = new
        self._default = python
        self._tell = tell
        self._uv = shutil.which("uv")
        self._process: subprocess.Popen[str] | None = None
        self._cancelled = False

    def run(self) -> Record:
        """Build the environment and make it the current one. Sessions of an earlier build keep it."""
        with self._store.changing(self._name):
            self._store.sweep_locked(self._name)
            folder = self._store.new_build(self._name)
            try:
                record = self._make(folder)
                self._store.publish(record)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._store.sweep_locked(self._name)
            return record

    def cancel(self) -> None:
        self._cancelled = True
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _make(self, folder: Path) -> Record:
        self._tell("making a virtual environment")
        self._make_venv(folder)
        python = folder / "bin" / "python"
        with locked(folder / IN_USE, fcntl.LOCK_SH), tempfile.TemporaryDirectory() as scratch:
            (folder / IN_USE).chmod(0o644)
            wheels = self._fetch(python, Path(scratch))
            self._tell(f"installing {len(wheels)} packages")
            self._install(python, wheels)
            version, packages = json.loads(self._ask([str(python), "-I", "-c", ASK]))
        return Record(self._name, folder.name, version, self._new, packages, time.time())

    # --- the interpreter ---

    def _make_venv(self, folder: Path) -> None:
        wanted = self._new.python
        if self._uv is not None:
            self._step([self._uv, "venv", "--quiet", "--python", wanted or self._default, str(folder)])
            return
        python = self._find(wanted) if wanted else self._default
        self._step([python, "-m", "venv", "--without-pip", str(folder)])

    def _find(self, wanted: str) -> str:
        """Return the interpreter with this path, or of this version on the PATH."""
        if not VERSION.fullmatch(wanted):
            path = shutil.which(os.path.expanduser(wanted))
            if path is None:
                raise InvalidRequest(f"there is no interpreter {wanted[:200]!r}; give a version as 3.12, or a path")
            return path
        short = ".".join(wanted.split(".")[:2])
        for name in (f"python{short}", "python3", self._default):
            path = shutil.which(name)
            if path is not None and self._version(path)[: len(wanted.split("."))] == wanted.split("."):
                return path
        raise InvalidRequest(f"there is no Python {wanted} on the PATH; install it, name its path, or install uv")

    def _version(self, python: str) -> list[str]:
        try:
            answer = self._ask([python, "-I", "-c", "import platform; print(platform.python_version())"])
            return answer.strip().split(".")
        except EnvironmentFailed:
            return []

    # --- the packages ---

    def _fetch(self, python: Path, scratch: Path) -> list[str]:
        """Put the wheels of all packages into the shared folder, and return them as exact requirements."""
        shared, fetched = self._store.wheels, python.parent.parent / ".wheels"
        options = ["--progress-bar", "off", "--wheel-dir", str(fetched), "--no-input"]
        for folder in (shared, _bundled_pip()):
            options += ["--find-links", str(folder)] if folder.is_dir() else []
        self._step([*self._pip(python), "wheel", *options, *self._sources(scratch)])
        found = sorted(fetched.iterdir())
        for wheel in found:
            wheel.chmod(0o644)
            os.replace(wheel, shared / stored_name(wheel.name))
        fetched.rmdir()
        return ["==".join(wheel.name.split("-")[:2]) for wheel in found]

    def _sources(self, scratch: Path) -> list[str]:
        new = self._new
        arguments = ["pip"]  # for `python -m pip` of programs in a session
        if new.requirements:
            (scratch / "requirements.txt").write_text(new.requirements, "utf-8")
            arguments += ["--requirement", str(scratch / "requirements.txt")]
        if new.constraints:
            (scratch / "constraints.txt").write_text(new.constraints, "utf-8")
            arguments += ["--constraint", str(scratch / "constraints.txt")]
        for each in new.packages:
            if each.lstrip().startswith("-"):
                raise InvalidRequest(f"{each[:200]!r} is no package; put options into a file of requirements")
        return [*arguments, *new.packages]

    def _install(self, python: Path, exact: list[str]) -> None:
        # By name: for the path of a file, `pip freeze` would later show that path.
        options = ["--quiet", "--no-index", "--no-deps", "--find-links", str(self._store.wheels), *exact]
        if self._uv is not None:
            self._step([self._uv, "pip", "install", "--compile-bytecode", "--python", str(python), *options])
        else:
            self._step([*self._pip(python), "install", *options])

    def _pip(self, python: Path) -> list[str]:
        """Return the command of a pip that works for the environment's interpreter, which has none yet."""
        quiet = ["--disable-pip-version-check", "--no-color"]
        if importlib.util.find_spec("pip") is not None:
            return [sys.executable, "-m", "pip", "--python", str(python), *quiet]
        if self._uv is not None:
            return [self._uv, "tool", "run", "--quiet", "pip", "--python", str(python), *quiet]
        if bundled := sorted(_bundled_pip().glob("pip-*.whl")):
            return [str(python), f"{bundled[-1]}/pip", *quiet]
        raise EnvironmentFailed(self._name, "ingle's interpreter has no pip, and there is no uv; install one of them")

    # --- programs ---

    def _step(self, command: list[str]) -> None:
        """Run a program and tell its steps. Raise an error with its reason if it fails."""
        lines: list[str] = []
        with self._started(command, subprocess.STDOUT) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                found = PROGRESS.match(line)
                if found is not None:
                    self._tell(_step_of(found["verb"].lower(), os.path.basename(found["what"])))
        if self._cancelled:
            raise EnvironmentFailed(self._name, "the build was stopped")
        if process.returncode:
            raise EnvironmentFailed(self._name, reason_of(lines))

    def _ask(self, command: list[str]) -> str:
        with self._started(command, subprocess.DEVNULL) as process:
            assert process.stdout is not None
            text = process.stdout.read()
        if process.returncode:
            raise EnvironmentFailed(self._name, f"{command[0]} does not run")
        return text

    @contextlib.contextmanager
    def _started(self, command: list[str], stderr: int) -> Iterator[subprocess.Popen[str]]:
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in LEFT_OUT and not name.startswith(("INGLE_", "SESSION_"))
        }
        process = self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
            text=True,
            errors="replace",
            umask=0o022,
            start_new_session=True,
        )
        try:
            if self._cancelled:
                self.cancel()
            yield process
            process.wait()
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._process = None
            if process.stdout is not None:
                process.stdout.close()


def _bundled_pip() -> Path:
    """Return the folder with the pip of the standard library. It may not exist."""
    return Path(tempfile.__file__).parent / "ensurepip" / "_bundled"


def _step_of(verb: str, what: str) -> str:
    mark = f"-{STORED_BUILD}-"
    return f"reusing {what.replace(mark, '-')}" if mark in what else f"{verb} {what}"


def stored_name(wheel: str) -> str:
    """Return the name of a wheel in the shared folder.

    A build number makes pip take this file instead of the same version from the index.
    """
    parts = wheel.split("-")
    return wheel if len(parts) != PARTS_WITHOUT_BUILD else "-".join([*parts[:2], STORED_BUILD, *parts[2:]])


def reason_of(lines: list[str]) -> str:
    """Return why a program failed, from what it printed: at most three lines."""
    text = [line.strip() for line in lines if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in text if line.startswith(("ERROR:", "error:"))]
    # pip lists every version that it passes over, and every version that there is.
    errors = [VERSIONS.sub(r"\1…, \2)", line) for line in errors if not line.startswith("Ignored the following")]
    chosen = list(dict.fromkeys(errors or text))
    chosen = chosen[:MAX_REASON_LINES] if errors else chosen[-MAX_REASON_LINES:]
    return "\n".join(line[:MAX_REASON_CHARS] for line in chosen) or "the installer said nothing"


def merged(before: NewEnvironment, added: NewEnvironment) -> NewEnvironment:
    """Return what an update builds: what the environment was made from, and what the update adds or replaces."""
    packages = [each for each in before.packages if _project(each) not in {_project(new) for new in added.packages}]
    return msgspec.structs.replace(
        before,
        python=added.python or before.python,
        packages=[*packages, *added.packages],
        requirements=added.requirements or before.requirements,
        constraints=added.constraints or before.constraints,
    )


def _project(requirement: str) -> str:
    """Return the normal form of the project's name in a requirement."""
    name = re.match(r"\s*([\w.-]+)", requirement)
    return re.sub(r"[-_.]+", "-", name[1] if name else requirement).lower()

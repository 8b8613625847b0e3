"""Environments on disk: a folder for each name, with one folder for each build, and the shared wheels.

    environments/NAME/environment.json    which build is current, and what it was made from
    environments/NAME/BUILD/              a virtual environment; never changed once it is current
    wheels/                               every wheel that a build has fetched or made

A build is made beside the current one, and `environment.json` is replaced in one step. Locks of the kernel tell what
is in use, so a process that dies leaves no trace: `.lock` is held while an environment is built or removed, and
`BUILD/.in-use` by each server with sessions of that build.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ingle.environments.shapes import NewEnvironment
from ingle.errors import EnvironmentInUse, EnvironmentNotFound, InvalidName

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
RECORD, LOCK, IN_USE = "environment.json", ".lock", ".in-use"


class Record(msgspec.Struct, frozen=True):
    """The current build of an environment."""

    name: str
    build: str
    python: str
    """Version of its interpreter."""
    made_from: NewEnvironment
    packages: dict[str, str]
    """Installed packages with their versions."""
    created_at: float


class Store:
    """Environments of a data folder. Every method blocks."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "environments"
        self.wheels = home / "wheels"

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.folder.glob(f"*/{RECORD}"))

    def read(self, name: str) -> Record:
        check_name(name)
        try:
            data = (self.folder / name / RECORD).read_bytes()
            return msgspec.json.decode(data, type=Record)
        except (OSError, msgspec.MsgspecError):
            raise EnvironmentNotFound(name, self.names()) from None

    def all(self) -> list[Record]:
        found = []
        for name in self.names():
            with contextlib.suppress(EnvironmentNotFound):
                found.append(self.read(name))
        return found

    def build_folder(self, record: Record) -> Path:
        return self.folder / record.name / record.build

    def is_current(self, build: Path) -> bool:
        """Return whether new sessions of the environment get this build."""
        try:
            return self.build_folder(self.read(build.parent.name)) == build
        except EnvironmentNotFound:
            return False

    def new_build(self, name: str) -> Path:
        """Return the path of a build to be made. The caller holds the environment's lock."""
        self.wheels.mkdir(mode=0o755, parents=True, exist_ok=True)
        return self.folder / name / secrets.token_hex(4)

    def publish(self, record: Record) -> None:
        """Make a build the current one, in one step."""
        file = self.folder / record.name / RECORD
        fresh = file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(record))
        os.replace(fresh, file)

    @contextlib.contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """Hold the lock of an environment, so that nothing else builds or removes it."""
        check_name(name)
        folder = self.folder / name
        for each in (self.folder, folder):
            # Sessions with a user of their own must pass through, also where the server's umask is strict.
            each.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(locked(folder / LOCK, fcntl.LOCK_EX)):
                raise EnvironmentInUse(f"the environment {name!r} is being built or removed; wait until that has ended")
            yield

    def remove(self, name: str) -> None:
        """Remove an environment that no session uses."""
        self.read(name)
        with self.changing(name):
            folder = self.folder / name
            with contextlib.ExitStack() as stack:
                for build in self._builds(name):
                    if not stack.enter_context(locked(build / IN_USE, fcntl.LOCK_EX)):
                        raise EnvironmentInUse(
                            f"sessions use the environment {name!r}; end them first, or update it: "
                            "sessions that run keep the packages they have"
                        )
                (folder / RECORD).unlink(missing_ok=True)
                for build in self._builds(name):
                    shutil.rmtree(build, ignore_errors=True)

    def sweep(self, name: str) -> None:
        """Remove builds that are not current and that no session uses. Does nothing while the environment changes."""
        with contextlib.suppress(EnvironmentInUse, InvalidName), self.changing(name):
            self.sweep_locked(name)

    def sweep_locked(self, name: str) -> None:
        """Remove unused builds. The caller holds the environment's lock."""
        current = ""
        with contextlib.suppress(EnvironmentNotFound):
            current = self.read(name).build
        for build in self._builds(name):
            if build.name != current:
                with locked(build / IN_USE, fcntl.LOCK_EX) as free:
                    if free:
                        shutil.rmtree(build, ignore_errors=True)

    def _builds(self, name: str) -> list[Path]:
        return [each for each in (self.folder / name).glob("*") if each.is_dir()]


class BuildsInUse:
    """Builds that sessions of this process use, each with a lock that other processes respect."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.held: dict[Path, int] = {}
        """Descriptors of the locks by the folders of the builds."""

    def take(self, name: str) -> Path:
        """Return the folder of the current build, and hold it. Blocks."""
        folder = self.store.build_folder(self.store.read(name))
        if folder in self.held:
            return folder
        try:
            fd = os.open(folder / IN_USE, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise EnvironmentNotFound(name, self.store.names()) from None
        if folder in self.held:  # another thread was quicker
            os.close(fd)
        else:
            self.held[folder] = fd
        return folder

    def keep_only(self, used: set[str]) -> list[Path]:
        """Give up all other builds, and return them."""
        dropped = [folder for folder in self.held if str(folder) not in used]
        for folder in dropped:
            os.close(self.held.pop(folder))
        return dropped


@contextlib.contextmanager
def locked(file: Path, kind: int) -> Iterator[bool]:
    """Hold a lock on a file and provide whether it could be had. A file that cannot be opened counts as free."""
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(fd)


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidName(
            f"{name[:80]!r} cannot be the name of an environment; use 1 to 64 letters, digits, '.', '_' and '-', "
            "not starting with a dot"
        )

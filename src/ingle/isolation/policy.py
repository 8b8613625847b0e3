"""The operator's grants, and the check of each request against them.

The policy is made once from the settings. Requests and files that sessions can write can only reduce it.
Each refusal names the setting that would grant the request.

At the levels `none` and `limits` code has the rights of the server, so the owner may name any folder and interpreter.
Other tenants are restricted to the grants there too, so a stronger level later takes nothing from them.
"""

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ingle.errors import InterpreterRefused, InvalidRequest, NotGranted
from ingle.grants import OPEN_LEVELS
from ingle.isolation.egress import package_index
from ingle.isolation.egress.allow_list import AllowList, read_option
from ingle.isolation.gpus import UNCONFINED, GpuGrant, Gpus
from ingle.isolation.limits import limits
from ingle.isolation.paths import is_missing, resolve
from ingle.requests import Bounds, NewSession, SessionLimits
from ingle.settings import LEVELS, NETWORKS, Settings

logger = logging.getLogger(__name__)

READ_ONLY = ":ro"
TRACKED = ":tracked"
SHARED = ":shared"

NO_LIMITS = SessionLimits()

WORKSPACE = "workspace"

OWN_FOLDERS = (WORKSPACE, "tenants")
"""Folders in the data folder that have a subfolder for each tenant."""

OWNERS_PART = ".owner"

INDEX = "index"
"""Entry in the list of hosts that stands for pip's package index. Other entries are added to it."""

NO_HOSTS = "none"
"""Entry in the list of hosts that takes the package index away."""


@dataclass(frozen=True)
class Mount:
    """A folder of the host that sessions may use."""

    folder: str
    read_only: bool = False
    tracked: bool = False
    """Whether checkpoints keep its files, and rollbacks bring them back."""

    def holds(self, path: str) -> bool:
        return path == self.folder or path.startswith(self.folder.rstrip("/") + "/")


@dataclass(frozen=True)
class Grant:
    """What one session gets."""

    isolation: str = "none"
    network: str = "full"
    limits: SessionLimits = NO_LIMITS
    cwd: str | None = None
    """Start folder with every link resolved; None is the session's workspace."""
    python: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that configure pip and uv for the reachable package index."""
    build: str = ""
    """Folder of the environment that the session asked for; empty without one."""
    mounts: tuple[Mount, ...] = ()
    """Folders in addition to its own. A nested folder comes after its parent, and its rights take precedence."""
    gpus: GpuGrant = UNCONFINED

    @property
    def tracked(self) -> tuple[str, ...]:
        """Folders whose files checkpoints keep."""
        return tuple(mount.folder for mount in self.mounts if mount.tracked)

    @property
    def writable(self) -> tuple[str, ...]:
        """Folders that the session may write."""
        return tuple(mount.folder for mount in self.mounts if not mount.read_only)


NOTHING_ASKED = (None, None, None, None, None, SessionLimits())
MAX_CACHED_GRANTS = 1000
"""Cached grants: one for each token with its own bounds, and one for each tenant's workspace."""

NO_GRANT = Grant()
"""Grant for trusted code."""


def read_mount(text: str) -> Mount:
    """Return the mount that the operator wrote as `DIR`, `DIR:ro`, `DIR:tracked` or `DIR:shared`."""
    read_only = text.endswith(READ_ONLY)
    path = written_folder(text)
    folder = os.path.realpath(path)
    if not os.path.isdir(folder):
        raise InvalidRequest(f"there is no folder {path!r} to grant; create it, or name another")
    if folder == "/":
        raise InvalidRequest("the whole file system cannot be granted; name the folders that sessions need")
    return Mount(folder, read_only, text.endswith(TRACKED))


def written_folder(text: str) -> str:
    """Return the folder without what is written about its rights."""
    return os.path.expanduser(text.removesuffix(READ_ONLY).removesuffix(TRACKED).removesuffix(SHARED))


def tracked(text: str) -> str:
    """Return a folder that the operator wrote, as a tracked one unless something else is written."""
    return text if text.endswith((READ_ONLY, TRACKED, SHARED)) else text + TRACKED


def can_be_granted(folder: str, home: Path) -> bool:
    """Return whether sessions may use this folder without a grant.

    They may not have the root, the user's home, or a folder that overlaps the server's data.
    """
    asked, data = Mount(os.path.realpath(folder)), Mount(os.path.realpath(home))
    whole = ("/", os.path.realpath(os.path.expanduser("~")))
    return asked.folder not in whole and not asked.holds(data.folder) and not data.holds(asked.folder)


class Policy:
    """The grants of a server. `level` is the level in force, with `auto` resolved."""

    def __init__(
        self, settings: Settings, home: Path, level: str | None = None, more_folders: Iterable[str] = ()
    ) -> None:
        """`more_folders` are for the owner's sessions, as `settings.folder` is, and no session starts there."""
        self.level = level or ("none" if settings.isolation == "auto" else settings.isolation)
        self._settings = settings
        self._home = os.path.realpath(home)
        self._owners = tuple(read_mount(text) for text in (*settings.folder, *more_folders))
        self._shared = tuple(read_mount(text) for text in settings.mount)
        self.gpus = Gpus(settings.gpu, settings.gpu_memory)
        self._written = tuple(os.path.abspath(written_folder(text)) for text in settings.mount)
        """Granted folders as the operator wrote them: links on the way to them are no secret."""
        own = {mount.folder for mount in self._owners}
        self.mounts = (*self._owners, *(mount for mount in self._shared if mount.folder not in own))
        """Folders that the owner's sessions may use. Those of other tenants may use some of them."""
        self.start = self._owners[0].folder if settings.folder else None
        """Folder in which the owner's sessions start; None is each session's own."""
        for mount in self.mounts:
            if Mount(self._home).holds(mount.folder) or (mount.holds(self._home) and not mount.read_only):
                raise InvalidRequest(
                    f"sessions could write the server's own data in {self._home} through {mount.folder}; "
                    "grant another folder, or set INGLE_HOME to another place"
                )
            if self.level == "restricted" and mount.holds(self._home):
                raise InvalidRequest(
                    f"sessions at 'restricted' could read the server's own data and its token through "
                    f"{mount.folder}:ro; grant folders beside {self._home}, or set INGLE_HOME to another place"
                )
        self.limits = limits.of_settings(settings) if self.level != "none" else SessionLimits()
        self._own_python = self._listed(settings.python)
        self._pythons = {self._own_python, *map(self._listed, settings.pythons)}
        self._kept = self._kept_from_writing()
        self._cached: dict[tuple[Bounds, bool, str | None], Grant] = {}
        wheels = os.path.join(self._home, "wheels")
        # Fixed at the start of a server, because all its workers are prepared for the same mounts.
        self._wheels = wheels if os.path.isdir(wheels) else None
        prefix = os.path.dirname(os.path.dirname(self._own_python))
        self.index = package_index.find(prefix=prefix, written=self._is_left_to_sessions)
        self._index_folders = tuple(
            Mount(os.path.realpath(each), read_only=True) for each in self.index.folders if os.path.isdir(each)
        )

    @property
    def network(self) -> str:
        """Return the network of sessions. Only a sandbox has its own network."""
        return self._settings.network if self.level == "sandbox" else "full"

    def hosts(self) -> AllowList:
        """Return the hosts that a session with the network `allowlist` may reach."""
        given = self._settings.allow_host
        of_index = () if not given or NO_HOSTS in given else self.index.hosts
        return AllowList((*of_index, *(read_option(text) for text in given if text not in (INDEX, NO_HOSTS))))

    def settle(self, wanted: NewSession, build: str = "") -> Grant:
        """Return the grant for a new session, or raise. Blocks if the request names files.

        `build` is the folder of the environment that the request names.
        """
        grant = self._settle(wanted, build)
        if self._is_usual(wanted):
            if len(self._cached) >= MAX_CACHED_GRANTS:
                self._cached.clear()
            self._cached[wanted.bounds, not wanted.tenant, wanted.cwd] = grant
        return grant

    def cached(self, wanted: NewSession) -> Grant | None:
        """Return the grant for a request like an earlier one, without blocking; None if it has to be settled."""
        if not self._is_usual(wanted):
            return None
        return self._cached.get((wanted.bounds, not wanted.tenant, wanted.cwd))

    def _is_usual(self, wanted: NewSession) -> bool:
        """Return whether a request names nothing, or only the tenant's workspace, which no session can replace."""
        asked = (wanted.isolation, wanted.network, wanted.gpus, wanted.python, wanted.environment, wanted.limits)
        own = f"{self._home}/{WORKSPACE}/{wanted.tenant or OWNERS_PART}"
        return asked == NOTHING_ASKED and wanted.cwd in (None, own)

    def _settle(self, wanted: NewSession, build: str = "") -> Grant:
        if wanted.environment is not None and wanted.python is not None:
            raise InvalidRequest("a session has either `python` or `environment`; leave one of them out")
        level = self._level(wanted)
        free = level in OPEN_LEVELS and not wanted.tenant
        gpus = self.gpus.settle(wanted.gpus, wanted.bounds.gpus, level)
        return Grant(
            isolation=level,
            network=self._network(wanted, level),
            limits=self._limits(wanted),
            cwd=None if wanted.cwd is None else self.folder(wanted.cwd, wanted.tenant, free=free),
            python=os.path.join(build, "bin", "python") if build else self._python(wanted.python, wanted.tenant, free),
            build=build,
            environment={**self._installing(level), **gpus.environment()},
            mounts=(*self.all_mounts(wanted.cwd, wanted.tenant), *self._shown(level, build)),
            gpus=gpus,
        )

    def all_mounts(self, cwd: str | None, tenant: str) -> tuple[Mount, ...]:
        """Return every folder of the host that a session gets, in the order of `Grant.mounts`.

        Parts of the data folder are not among them: they are mounted for each session.
        """
        return (*self._index_folders, *self.mounts_of(tenant), *self._own_part(cwd, tenant), *self._kept)

    def _shown(self, level: str, build: str) -> tuple[Mount, ...]:
        """Return the parts of the data folder that a session reads: its environment, and wheels of earlier builds."""
        wheels = [] if self._wheels is None or level != "sandbox" else [self._wheels]
        return tuple(Mount(each, read_only=True) for each in (*wheels, build) if each)

    def _installing(self, level: str) -> dict[str, str]:
        """Return variables that configure pip and uv: the package index, and the wheels of environments."""
        given = {} if level in OPEN_LEVELS else self.index.environment
        if self._wheels is None or level == "restricted":
            return given
        known = self.index.environment
        return {
            **given,
            "PIP_FIND_LINKS": f"{known.get('PIP_FIND_LINKS', '')} {self._wheels}".strip(),
            "UV_FIND_LINKS": ",".join(filter(None, (known.get("UV_FIND_LINKS", ""), self._wheels))),
        }

    def _level(self, wanted: NewSession) -> str:
        floor = _stricter(LEVELS, self.level, wanted.bounds.isolation)
        asked = wanted.isolation
        if asked is None:
            return floor
        if asked not in LEVELS:
            raise InvalidRequest(f"isolation is {asked[:80]!r}; it must be one of {', '.join(LEVELS)}")
        if LEVELS.index(asked) < LEVELS.index(floor):
            raise NotGranted(
                f"isolation {asked!r} is weaker than {floor!r}, which {_who(floor == self.level)} requires; leave it "
                f"out, or ask the operator for a server with --isolation {asked}"
            )
        return asked

    def _network(self, wanted: NewSession, level: str) -> str:
        allowed = _stricter(NETWORKS, self._settings.network if level == "sandbox" else "full", wanted.bounds.network)
        asked = wanted.network
        if asked is not None and asked not in NETWORKS:
            raise InvalidRequest(f"network is {asked[:80]!r}; it must be one of {', '.join(NETWORKS)}")
        if asked is not None and NETWORKS.index(asked) < NETWORKS.index(allowed):
            raise NotGranted(
                f"network {asked!r} is more than {allowed!r}, which {_who(wanted.bounds.network != allowed)} allows; "
                f"leave it out, or ask the operator for --network {asked}"
            )
        network = asked or allowed
        if network != "full" and level != "sandbox":
            raise NotGranted(
                f"only a sandbox can restrict the network, and this session would be at {level!r}; "
                "ask for isolation 'sandbox', or for network 'full' if it is allowed"
            )
        return network

    def _limits(self, wanted: NewSession) -> SessionLimits:
        allowed = limits.at_least_minimum(limits.lower(self.limits, wanted.bounds.limits))
        for name, value in limits.given(wanted.limits):
            most = getattr(allowed, name)
            limits.check_minimum(name, value)
            if most is not None and value > most:
                asked, whose = limits.amount(name, value), _who(getattr(self.limits, name) == most)
                raise NotGranted(
                    f"the limit {name} can only be lowered: {asked} is above {limits.amount(name, most)}, the limit of "
                    f"{whose}; ask for less, or ask the operator for --limit-{name.replace('_', '-')} {asked}"
                )
        return limits.lower(wanted.limits, allowed)

    # --- folders ---

    @property
    def granted_folders(self) -> set[str]:
        """Return the granted folders of all tenants, with every link resolved."""
        return {mount.folder for mount in (*self._owners, *self._shared)}

    def mounts_of(self, tenant: str) -> tuple[Mount, ...]:
        """Return the granted folders that a tenant's sessions may use."""
        return self._shared if tenant else self.mounts

    def folder(self, path: str, tenant: str = "", *, free: bool | None = None) -> str:
        """Return the folder that a request names, with every link resolved, or raise if it is not granted."""
        if free is None:
            free = self.level in OPEN_LEVELS and not tenant
        if "\0" in path or not os.path.isabs(path):
            raise InvalidRequest(f"there is no folder {path[:200]!r} to start in; give an absolute path")
        real = self._real(path, tenant)
        granted = real is not None and self._is_start(real, tenant)
        # Existence is told only of folders that the session may use.
        if (granted or free) and not os.path.isdir(path if free else real or ""):
            raise InvalidRequest(f"there is no folder {path[:200]!r} to start in; name another, or leave cwd out")
        if free:
            return path
        if granted and real is not None:
            return real
        how = (
            f"grant it with `ingle grant {path[:200]}`" if not tenant else f"ask the operator for --mount {path[:200]}"
        )
        raise NotGranted(
            f"{path[:200]!r} is not in a folder that sessions may use; leave cwd out to start in the session's own "
            f"folder, or {how}"
        )

    def _real(self, path: str, tenant: str) -> str | None:
        """Return the path with its links resolved; None if they are circular.

        For a tenant no link is looked at outside of its folders and of the way to them as the operator wrote it.
        Otherwise its requests could try which files other users have.
        """

        def is_known(at: str) -> bool:
            return self._is_start(at, tenant) or any(Mount(at).holds(each) for each in self._written)

        resolved = resolve(path, is_known if tenant else None)
        return None if resolved is None else resolved.path

    def _is_start(self, real: str, tenant: str) -> bool:
        """Return whether a tenant's sessions may start there. A grant around the data folder gives none of it."""
        if Mount(self._home).holds(real):
            return any(part.holds(real) for part in self._own_parts(tenant))
        return any(mount.holds(real) for mount in (*self.mounts_of(tenant), *self._own_parts(tenant)))

    def _own_parts(self, tenant: str) -> tuple[Mount, ...]:
        """Return the tenant's parts of the data folder."""
        parts = [Mount(os.path.join(self._home, each, tenant or OWNERS_PART)) for each in OWN_FOLDERS]
        if not tenant:
            parts.append(Mount(os.path.realpath(self._settings.shell_folder or os.path.join(self._home, "shell"))))
        return tuple(parts)

    def _own_part(self, path: str | None, tenant: str) -> tuple[Mount, ...]:
        """Return the tenant's parts of the data folder that contain the path."""
        real = None if path is None else self._real(path, tenant)
        return tuple(part for part in self._own_parts(tenant) if real is not None and part.holds(real))

    # --- interpreters ---

    def _listed(self, python: str) -> str:
        """Return an interpreter that the operator named. Refuse a path over a link that sessions could change."""
        path = interpreter(python)
        place = self._in_place(path)
        if place != path and self.level not in OPEN_LEVELS and path != os.path.abspath(sys.executable):
            raise InvalidRequest(
                f"sessions could replace the interpreter {path}, because they may write the folder of a link "
                f"on its path; name it as {place}"
            )
        return place

    def _in_place(self, path: str) -> str:
        """Return a path to the interpreter without links that sessions could change."""
        folder, name = os.path.split(path)
        resolved = resolve(folder)
        if resolved is None:
            raise InvalidRequest(f"the links on the path {path[:200]!r} are circular; name another interpreter")
        turned = any(self._is_written(os.path.dirname(link)) for link in resolved.links)
        return os.path.join(resolved.path, name) if turned else path

    def _python(self, wanted: str | None, tenant: str, free: bool) -> str:
        """Return a granted interpreter. The server starts it, so sessions must not be able to write it."""
        if not wanted:
            return self._own_python
        refusal = NotGranted(
            f"the interpreter {wanted[:200]!r} is not granted; leave python out, "
            f"or ask the operator for --pythons {wanted[:200]}"
        )
        path = interpreter(wanted)
        if tenant and path not in self._pythons:
            # This comes first: a tenant is told nothing about interpreters outside of its folders.
            folder = self._real(os.path.dirname(path), tenant)
            if folder is None or not any(mount.holds(folder) for mount in self.mounts_of(tenant)):
                raise refusal
        path = self._in_place(path)
        if free or path in self._pythons:
            return path
        within = self._within(path)
        if within is None or not _in_environment(path):
            if not tenant and is_missing(path):
                raise InterpreterRefused(f"there is no interpreter at {path[:200]}; name a CPython 3.10 or later")
            raise refusal
        if not within.read_only:
            raise InterpreterRefused(
                f"sessions can write the folder of {path[:200]!r}, so it is not started; ask the operator for "
                f"--pythons {path[:200]}, which makes it read-only in sandboxes, or for --mount {within.folder}:ro"
            )
        return path

    def loads_code_from(self, folder: str) -> bool:
        """Return whether this server or a granted interpreter loads code from this folder or a parent of it."""
        pythons = {*self._pythons, os.path.abspath(sys.executable)}
        prefixes = {os.path.dirname(os.path.dirname(each)) for python in pythons for each in (python, *_bases(python))}
        modules = {path for path in sys.path if path and os.path.isdir(path)}
        return any(Mount(os.path.realpath(each)).holds(folder) for each in {*prefixes, *modules} - {"/", "/usr"})

    def _is_written(self, folder: str) -> bool:
        real = os.path.realpath(folder)
        return any(mount.holds(real) for mount in self.mounts if not mount.read_only)

    def _is_left_to_sessions(self, folder: str) -> bool:
        """Return whether sessions can write the folder, with read-only mounts considered."""
        real = os.path.realpath(folder)
        within = self._within(os.path.join(real, "any"))
        kept = self.level != "restricted" and any(mount.holds(real) for mount in self._kept)
        return within is not None and not within.read_only and not kept

    def _within(self, path: str) -> Mount | None:
        """Return the mount that decides an interpreter's rights: the innermost, or at `restricted` any writable."""
        resolved = resolve(os.path.dirname(path))
        folder = "" if resolved is None else resolved.path
        around = [mount for mount in self.mounts if mount.holds(folder)]
        if self.level == "restricted":
            around = [mount for mount in around if not mount.read_only] or around
        return max(around, key=lambda mount: (len(mount.folder), not mount.read_only), default=None)

    def _kept_from_writing(self) -> tuple[Mount, ...]:
        """Return read-only mounts for interpreters in folders that sessions write.

        They are the granted interpreters, the server's own, and the base interpreters of their environments.
        """
        found = []
        named = {*self._pythons, self._in_place(os.path.abspath(sys.executable))}
        for path in sorted({*named, *(base for each in named for base in _bases(each))}):
            within = self._within(path)
            if within is not None and not within.read_only:
                folder = os.path.realpath(os.path.dirname(os.path.dirname(path)))
                found.append(Mount(folder if within.holds(folder) else within.folder, read_only=True))
        return (*found, *(Mount(folder, read_only=True) for folder in self._own_modules()))

    def _own_modules(self) -> list[str]:
        """Return folders with modules of this server that sessions could write."""
        found = []
        for path in sorted({os.path.realpath(path) for path in sys.path if path and os.path.isdir(path)}):
            if any(mount.folder == path and not mount.read_only for mount in self.mounts):
                logger.warning("this server loads modules from %s, where sessions write; start it elsewhere", path)
            elif self._is_written(path):
                found.append(path)
        return found


def interpreter(python: str) -> str:
    """Return the path of an interpreter, found as a shell finds it.

    Links are not followed, because a link may be what makes a virtual environment.
    """
    return os.path.abspath(shutil.which(python) or python) if "\0" not in python else python


def _in_environment(path: str) -> bool:
    """Return whether the interpreter belongs to a virtual environment."""
    return os.path.isfile(_mark(path))


def _mark(path: str) -> str:
    return os.path.join(os.path.dirname(os.path.dirname(path)), "pyvenv.cfg")


def _bases(path: str) -> Iterator[str]:
    """Yield the interpreters that this one is a link to or an environment of."""
    yield os.path.realpath(path)
    with contextlib.suppress(OSError, UnicodeDecodeError), open(_mark(path), encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition("=")
            if name.strip() == "home":
                yield os.path.realpath(os.path.join(value.strip(), os.path.basename(path)))


def _stricter(order: tuple[str, ...], first: str, second: str | None) -> str:
    return first if second is None else max(first, second, key=order.index)


def _who(server: bool) -> str:
    return "this server" if server else "this token"

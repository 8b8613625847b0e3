"""Saving of a session: its names, group by group, as chunks of bytes.

It runs in a copy of the worker, which exits afterwards, so the session sees no effects. A name that cannot be saved is
left out with the reason, like all names that need it. User code such as `__reduce__` runs here, and can end only the
copy.
"""

import builtins
import gc
import os
import random
import sys
import types
from collections.abc import Callable
from typing import Any

from ingle_worker.magics import packages
from ingle_worker.session import variables
from ingle_worker.snapshot import (
    chunks,
    definitions,
    groups,
    own_folder,
    provenance,
    reduce,
    reduce_builtin,
    reduce_torch,
    time_limit,
)
from ingle_worker.snapshot.rebuild.registry import MAKERS, MODULE
from ingle_worker.wire import child_variables

MAX_DEPTH = 50_000
"""Maximum levels of nesting. They need a large stack."""

STACK_BYTES = 256 * 1024 * 1024

BUILTIN_NAMES = frozenset({"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "__file__"})
"""Names that every session has, also after loading."""

MAX_TEXT_CHARS = 300

SEARCH_PATHS = ("PATH", "PYTHONPATH")
"""Variables that name the folder of the session's packages among others."""


class Environment:
    """Environment of a session besides its names: recorded at its start, compared when it is saved.

    The zygote records it, because looking at every variable in each session would copy their pages.
    """

    def __init__(self) -> None:
        self._environ = dict(os.environ)
        self._own: dict[str, str] = {}
        self._path = list(sys.path)
        self._cwd = ""

    def begin(self, env: dict[str, str], cwd: str) -> None:
        """Record the session's own variables and its folder."""
        self._own = env
        self._cwd = cwd

    def changes(self) -> dict[str, Any]:
        before = {**self._environ, **self._own}
        now = dict(os.environ)
        for name in SEARCH_PATHS:
            # A session that loads this one has a folder of packages of its own.
            now[name] = os.pathsep.join(packages.without_own(now.get(name, "").split(os.pathsep)))
            if not now[name]:
                del now[name]
        now.pop(child_variables.PACKAGES, None)
        changed: dict[str, Any] = {name: value for name, value in now.items() if before.get(name) != value}
        changed.update({name: None for name in before if name not in now})
        changed.pop("TMPDIR", None)
        path = packages.without_own([each for each in sys.path if type(each) is str])
        try:
            cwd: str | None = os.getcwd()
        except OSError:
            cwd = None
        return {
            "environ": {_plain(name): value if value is None else _plain(value) for name, value in changed.items()},
            "path": [_plain(each) for each in path] if path != ["", *self._path] else None,
            "cwd": _plain(own_folder.relative(cwd)) if cwd is not None and cwd != self._cwd else None,
        }


def save(
    offers: chunks.Offers, main: types.ModuleType, environment: Environment, flags: int, call_seconds: float
) -> None:
    """Send the whole session over the channel, without objects whose own code takes too long."""
    _Save(offers, main, environment, flags, time_limit.TimeLimit(call_seconds)).run()


def prepare(main: types.ModuleType) -> None:
    """Make this copy ready to pickle the session's objects."""
    sys.modules["__main__"] = main
    made = types.ModuleType(MODULE)
    vars(made).update(MAKERS)
    sys.modules[MODULE] = made
    definitions.forget()
    reduce_builtin.forget()


def pickled(attempt: Callable[[Any], Any]) -> Any:
    """Pickle with the usual pickler, or with a deeper one if that fails."""
    try:
        return attempt(reduce.Pickler)
    except RecursionError:
        deep = reduce.deep_pickler()
        return _with_large_stack(lambda: attempt(deep))


def _with_large_stack(run: Callable[[], Any]) -> Any:
    """Call `run` in a thread with a large stack, for deeply nested objects.

    This is the second choice: some objects, such as database connections and held locks, belong to their thread.
    """
    import threading

    done: list[Any] = []
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            done.append(run())
        except BaseException as error:  # raised again in the waiting thread
            failed.append(error)

    before = sys.getrecursionlimit()
    try:
        threading.stack_size(STACK_BYTES)
        thread = threading.Thread(target=attempt)
        sys.setrecursionlimit(max(before, MAX_DEPTH))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(0)
        sys.setrecursionlimit(before)
    if failed:
        raise failed[0]
    return done[0]


class _Save:
    def __init__(
        self,
        offers: chunks.Offers,
        main: types.ModuleType,
        environment: Environment,
        flags: int,
        limit: time_limit.TimeLimit,
    ) -> None:
        self._limit = limit
        self._main = main
        self._environment = environment
        self._flags = flags
        self._offers = offers
        self._sources: dict[str, list[tuple[str, int]]] = {}
        self._skipped: list[dict[str, str]] = []
        self._written: dict[groups.Group, int] = {}
        self._groups: list[dict[str, Any]] = []
        self._failed: dict[groups.Group, str] = {}
        self._unsaved_keys: set[str] = set()
        """Keys of definitions that could not be saved."""

    def run(self) -> None:
        gc.disable()
        states = _random_states()
        prepare(self._main)
        space = {
            name: value
            for name, value in vars(self._main).copy().items()
            if type(name) is str and name not in BUILTIN_NAMES and not (name == "__annotations__" and not value)
        }
        found = groups.find(space, (vars(self._main), sys.modules, vars(builtins)))
        for group in found.ordered:
            self._save_group(group, space, found)
        names, buffers, _ = self._pickle(reduce.Pickler, states, found, groups.Group())
        makers = self._find_makers()
        self._offers.finish(
            {
                "groups": self._groups,
                "skipped": self._skipped,
                "makers": makers,
                "sources": [{"file": file, "chunks": names} for file, names in sorted(self._sources.items())],
                "random": {"stream": names, "buffers": buffers},
                "flags": self._flags,
                "library": [_plain(name) for name, value in variables.unlisted.items() if space.get(name) is value],
                "packages": _packages(),
                **self._environment.changes(),
            }
        )

    def _save_group(self, group: groups.Group, space: dict[str, Any], found: groups.Groups) -> None:
        for need in group.needs:
            if need in self._failed:
                self._skip_group(group, space, f"it needs {self._failed[need]}")
                return
        names, keys = list(group.names), list(group.keys)
        try:
            saved = self._pickle_names(group, names, keys, space, found)
        except BaseException as error:  # user code runs here
            alone = {id(space[name]) for name in names} | {id(found.defined[key]) for key in keys}
            if len(alone) == 1:
                self._skip_group(group, space, reduce.why_not(error))
                return
            names, keys = self._savable_parts(group, space, found)
            if not names and not keys:
                return
            try:
                saved = self._pickle_names(group, names, keys, space, found)
            except BaseException as again:  # as above
                group.names = names
                self._skip_group(group, space, reduce.why_not(again))
                return
        stream, buffers, size = saved
        needs = sorted({self._written[need] for need in group.needs})
        self._written[group] = len(self._groups)
        about = [
            {"name": _plain(name), "type": _plain(variables.type_name(space[name]))[:MAX_TEXT_CHARS]} for name in names
        ]
        self._groups.append(
            {"names": about, "keys": keys, "needs": needs, "stream": stream, "buffers": buffers, "size": size}
        )

    def _savable_parts(
        self, group: groups.Group, space: dict[str, Any], found: groups.Groups
    ) -> tuple[list[str], list[str]]:
        """Return the names and definitions of a group that can be saved alone, so that one failure costs no other."""
        reasons: dict[str, str] = {}

        def can(value: Any, name: str) -> bool:
            try:
                pickled(lambda make: self._dump(make, chunks.NullFile(), value, found, group, lambda buffer: False))
            except BaseException as error:  # as above
                reasons[name] = reduce.why_not(error)
                return False
            return True

        keys = [key for key in group.keys if can(found.defined[key], key)]
        self._unsaved_keys.update(key for key in group.keys if key not in keys)
        names = [name for name in group.names if can(space[name], name)]
        for name in group.names:
            if name not in names:
                self._skip(name, space[name], reasons[name])
        return names, keys

    def _pickle_names(
        self, group: groups.Group, names: list[str], keys: list[str], space: dict[str, Any], found: groups.Groups
    ) -> tuple[Any, Any, int]:
        content = ({name: space[name] for name in names}, {key: found.defined[key] for key in keys})
        made: tuple[Any, Any, int] = pickled(lambda make: self._pickle(make, content, found, group))
        return made

    def _pickle(self, make: Any, content: Any, found: groups.Groups, group: groups.Group) -> tuple[Any, Any, int]:
        stream = chunks.Stream(self._offers)
        buffers: list[list[tuple[str, int]]] = []

        def on_buffer(buffer: Any) -> bool:
            try:
                view = buffer.raw()
            except BufferError:
                return True  # not contiguous: pickle copies it
            if view.nbytes < reduce.OUT_OF_BAND:
                return True
            names: list[tuple[str, int]] = []
            chunks.offer_block(self._offers, view, names, owned=False)
            buffers.append(names)
            return False

        sources = self._dump(make, stream, content, found, group, on_buffer)
        stream.end_chunk()
        for file in sources:
            self._save_source(file)
        size = sum(size for _, size in stream.names) + sum(size for names in buffers for _, size in names)
        return stream.names, buffers, size

    def _dump(
        self,
        make: Any,
        file: Any,
        value: Any,
        found: groups.Groups,
        group: groups.Group,
        on_buffer: Callable[[Any], bool],
    ) -> set[str]:
        """Pickle a value to a file and return the sources of the code in it."""
        pickler = make(file, on_buffer, found.keys, frozenset(group.keys), group.views)
        with self._limit:
            pickler.dump(value)
        lost = pickler.needed & self._unsaved_keys
        if lost:
            raise reduce_builtin.Unsavable(f"it needs {', '.join(sorted(lost)[:3])}")
        sources: set[str] = pickler.sources
        return sources

    def _save_source(self, file: str) -> None:
        import linecache

        if file not in self._sources:
            self._save_text(file, "".join(linecache.cache[file][2]))  # type: ignore[misc]

    def _save_text(self, file: str, text: str) -> None:
        if file not in self._sources:
            stream = chunks.Stream(self._offers)
            stream.write(text.encode("utf-8", "surrogatepass"))
            stream.end_chunk()
            self._sources[file] = stream.names

    def _find_makers(self) -> list[str]:
        """Return the cells that made the skipped names, in order, and save their code."""
        found = provenance.find([each["name"] for each in self._skipped], self._flags)
        for each in self._skipped:
            if each["name"] in found:
                file, text = found[each["name"]]
                each["made_by"] = _plain(file)
                self._save_text(file, text)
        return [_plain(each) for each in provenance.order({file for file, _ in found.values()})]

    def _skip_group(self, group: groups.Group, space: dict[str, Any], reason: str) -> None:
        self._failed[group] = ", ".join([*dict.fromkeys([*group.names, *group.keys])][:3]) or "something"
        for name in group.names:
            self._skip(name, space[name], reason)

    def _skip(self, name: str, value: Any, reason: str) -> None:
        kind = _plain(variables.type_name(value))[:MAX_TEXT_CHARS]
        self._skipped.append({"name": _plain(name), "type": kind, "reason": _plain(reason)[:MAX_TEXT_CHARS]})


def _plain(text: str) -> str:
    """Return text that is valid in JSON, with lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"random": random.getstate()}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        states["numpy.random"] = numpy.get_state()
    if hasattr(sys.modules.get("torch"), "get_rng_state"):
        states["torch"] = reduce_torch.random_states()
    return states


def _packages() -> dict[str, str]:
    """Return the imported packages with their versions, without the standard library."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        if "." in name or name.startswith("_") or name in sys.stdlib_module_names:
            continue
        if type(module) is types.ModuleType:
            version = vars(module).get("__version__")
            if type(version) is str:
                found[_plain(name)[:100]] = _plain(version)[:100]
    return dict(sorted(found.items()))

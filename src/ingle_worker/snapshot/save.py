"""Saving a session: what its names stand for, group by group, as chunks of bytes.

Runs in a copy of the worker, which ends afterwards, so nothing it does is seen by the session. A name that cannot be
saved is left out and told of with the reason, as is what cannot be without it. Code of the user's runs here (his
classes' `__reduce__` and the like), at worst to the end of the copy.
"""

import builtins
import gc
import os
import random
import sys
import types
from collections.abc import Callable
from typing import Any

from ingle_worker.session import variables
from ingle_worker.snapshot import chunks, definitions, groups, provenance, reduce, reduce_builtin
from ingle_worker.snapshot.rebuild import MAKERS, MODULE

DEEP = 50_000
"""Levels of nesting that can be saved, where the interpreter lets us decide; it takes a stack that is large enough."""

STACK = 256 * 1024 * 1024

FIRST = frozenset({"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "__file__"})
"""What every session has, and has again after loading."""

MAX_TEXT = 300


class Surroundings:
    """What a session has besides its names: noted when it starts, compared when it is saved.

    Nearly all of it is as it was in the zygote, and is noted there: to look at every variable is to copy the pages that
    they lie in.
    """

    def __init__(self) -> None:
        self._environ = dict(os.environ)
        self._own: dict[str, str] = {}
        self._path = list(sys.path)
        self._cwd = ""

    def begin(self, env: dict[str, str], cwd: str) -> None:
        """A session begins here, with these variables of its own and its folder first on the path."""
        self._own = env
        self._cwd = cwd

    def changes(self) -> dict[str, Any]:
        before = {**self._environ, **self._own}
        now = dict(os.environ)
        changed: dict[str, Any] = {name: value for name, value in now.items() if before.get(name) != value}
        changed.update({name: None for name in before if name not in now})
        changed.pop("TMPDIR", None)
        path = [each for each in sys.path if type(each) is str]
        try:
            cwd: str | None = os.getcwd()
        except OSError:
            cwd = None
        return {
            "environ": {_plain(name): value if value is None else _plain(value) for name, value in changed.items()},
            "path": [_plain(each) for each in path] if path != ["", *self._path] else None,
            "cwd": _plain(cwd) if cwd is not None and cwd != self._cwd else None,
        }


def save(fd: int, main: types.ModuleType, around: Surroundings, flags: int) -> None:
    """Send the whole session over the channel."""
    _Save(fd, main, around, flags).run()


def _pickled(attempt: Callable[[Any], Any]) -> Any:
    """Pickle with the usual pickler; with one that goes deeper, where that is needed."""
    try:
        return attempt(reduce.Pickler)
    except RecursionError:
        deep = reduce.deep_pickler()
        return _deeply(lambda: attempt(deep))


def _deeply(run: Callable[[], Any]) -> Any:
    """Call this in a thread with a large stack: what is nested deeply takes more than the main thread has.

    Only then: some objects (connections to databases, locks that are held) are their thread's own.
    """
    import threading

    done: list[Any] = []
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            done.append(run())
        except BaseException as error:  # raised again below, in the thread that waits
            failed.append(error)

    before = sys.getrecursionlimit()
    try:
        threading.stack_size(STACK)
        thread = threading.Thread(target=attempt)
        sys.setrecursionlimit(max(before, DEEP))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(0)
        sys.setrecursionlimit(before)
    if failed:
        raise failed[0]
    return done[0]


class _Save:
    def __init__(self, fd: int, main: types.ModuleType, around: Surroundings, flags: int) -> None:
        self._main = main
        self._around = around
        self._flags = flags
        self._offers = chunks.Offers(fd)
        self._sources: dict[str, list[tuple[str, int]]] = {}
        self._skipped: list[dict[str, str]] = []
        self._written: dict[groups.Group, int] = {}
        self._groups: list[dict[str, Any]] = []
        self._failed: dict[groups.Group, str] = {}
        self._lost: set[str] = set()
        """Keys of definitions that could not be saved."""

    def run(self) -> None:
        gc.disable()
        states = _random_states()
        sys.modules["__main__"] = self._main
        made = types.ModuleType(MODULE)
        vars(made).update(MAKERS)
        sys.modules[MODULE] = made
        definitions.forget()
        reduce_builtin.forget()
        space = {
            name: value
            for name, value in vars(self._main).copy().items()
            if type(name) is str and name not in FIRST and not (name == "__annotations__" and not value)
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
                "packages": _packages(),
                **self._around.changes(),
            }
        )

    def _save_group(self, group: groups.Group, space: dict[str, Any], found: groups.Groups) -> None:
        for need in group.needs:
            if need in self._failed:
                self._leave_out(group, space, f"it needs {self._failed[need]}")
                return
        names, keys = list(group.names), list(group.keys)
        try:
            saved = self._pickle_names(group, names, keys, space, found)
        except BaseException as error:  # the border to the user's own code, of which all may run here
            alone = {id(space[name]) for name in names} | {id(found.defined[key]) for key in keys}
            if len(alone) == 1:
                self._leave_out(group, space, reduce.why_not(error))
                return
            names, keys = self._those_that_can(group, space, found)
            if not names and not keys:
                return
            try:
                saved = self._pickle_names(group, names, keys, space, found)
            except BaseException as again:  # as above
                group.names = names
                self._leave_out(group, space, reduce.why_not(again))
                return
        stream, buffers, size = saved
        needs = sorted({self._written[need] for need in group.needs})
        self._written[group] = len(self._groups)
        about = [{"name": _plain(name), "type": _plain(variables.type_name(space[name]))[:MAX_TEXT]} for name in names]
        self._groups.append(
            {"names": about, "keys": keys, "needs": needs, "stream": stream, "buffers": buffers, "size": size}
        )

    def _those_that_can(
        self, group: groups.Group, space: dict[str, Any], found: groups.Groups
    ) -> tuple[list[str], list[str]]:
        """The names and definitions of a group that can be saved each by itself: one that cannot costs no other."""
        reasons: dict[str, str] = {}

        def can(value: Any, name: str) -> bool:
            try:
                _pickled(lambda make: self._dump(make, chunks.Nowhere(), value, found, group, lambda buffer: False))
            except BaseException as error:  # as above
                reasons[name] = reduce.why_not(error)
                return False
            return True

        keys = [key for key in group.keys if can(found.defined[key], key)]
        self._lost.update(key for key in group.keys if key not in keys)
        names = [name for name in group.names if can(space[name], name)]
        for name in group.names:
            if name not in names:
                self._skip(name, space[name], reasons[name])
        return names, keys

    def _pickle_names(
        self, group: groups.Group, names: list[str], keys: list[str], space: dict[str, Any], found: groups.Groups
    ) -> tuple[Any, Any, int]:
        content = ({name: space[name] for name in names}, {key: found.defined[key] for key in keys})
        made: tuple[Any, Any, int] = _pickled(lambda make: self._pickle(make, content, found, group))
        return made

    def _pickle(self, make: Any, content: Any, found: groups.Groups, group: groups.Group) -> tuple[Any, Any, int]:
        stream = chunks.Stream(self._offers)
        buffers: list[list[tuple[str, int]]] = []

        def on_buffer(buffer: Any) -> bool:
            try:
                view = buffer.raw()
            except BufferError:
                return True  # not in one piece: pickle makes it so
            if view.nbytes < reduce.OUT_OF_BAND:
                return True
            names: list[tuple[str, int]] = []
            chunks.cut_whole(self._offers, view, names, held=False)
            buffers.append(names)
            return False

        sources = self._dump(make, stream, content, found, group, on_buffer)
        stream.cut()
        for file in sources:
            self._keep_source(file)
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
        """Pickle this into a file; the sources of the code in it."""
        pickler = make(file, on_buffer, found.keys, frozenset(group.keys), group.views)
        pickler.dump(value)
        lost = pickler.needed & self._lost
        if lost:
            raise reduce_builtin.Unsavable(f"it needs {', '.join(sorted(lost)[:3])}")
        sources: set[str] = pickler.sources
        return sources

    def _keep_source(self, file: str) -> None:
        import linecache

        if file not in self._sources:
            self._keep_text(file, "".join(linecache.cache[file][2]))  # type: ignore[misc]

    def _keep_text(self, file: str, text: str) -> None:
        if file not in self._sources:
            stream = chunks.Stream(self._offers)
            stream.write(text.encode("utf-8", "surrogatepass"))
            stream.cut()
            self._sources[file] = stream.names

    def _find_makers(self) -> list[str]:
        """The cells that made what cannot be saved, in their order; their code is saved."""
        found = provenance.find([each["name"] for each in self._skipped], self._flags)
        for each in self._skipped:
            if each["name"] in found:
                file, text = found[each["name"]]
                each["made_by"] = _plain(file)
                self._keep_text(file, text)
        return [_plain(each) for each in provenance.order({file for file, _ in found.values()})]

    def _leave_out(self, group: groups.Group, space: dict[str, Any], reason: str) -> None:
        self._failed[group] = ", ".join([*dict.fromkeys([*group.names, *group.keys])][:3]) or "something"
        for name in group.names:
            self._skip(name, space[name], reason)

    def _skip(self, name: str, value: Any, reason: str) -> None:
        kind = _plain(variables.type_name(value))[:MAX_TEXT]
        self._skipped.append({"name": _plain(name), "type": kind, "reason": _plain(reason)[:MAX_TEXT]})


def _plain(text: str) -> str:
    """Text that can be written as JSON: lone surrogates as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"random": random.getstate()}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        states["numpy.random"] = numpy.get_state()
    return states


def _packages() -> dict[str, str]:
    """What is imported besides the standard library, with its version."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        if "." in name or name.startswith("_") or name in sys.stdlib_module_names:
            continue
        if type(module) is types.ModuleType:
            version = vars(module).get("__version__")
            if type(version) is str:
                found[_plain(name)[:100]] = _plain(version)[:100]
    return dict(sorted(found.items()))

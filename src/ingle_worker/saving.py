"""Saving a session: what its names stand for, group by group, as chunks of bytes.

Runs in a copy of the worker, which ends afterwards, so nothing it does is seen by the session. A name that cannot be
saved is left out and told of with the reason, as is what cannot be without it. Code of the user's runs here (his
classes' `__reduce__` and the like), at worst to the end of the copy.
"""

import gc
import os
import random
import sys
import types
from collections.abc import Callable
from typing import Any

from ingle_worker import chunks, definitions, grouping, reducing, variables
from ingle_worker.rebuilding import MAKERS, MODULE

DEEP = 50_000
"""Levels of nesting that can be saved, where the interpreter lets us decide; it takes a stack that is large enough."""

STACK = 256 * 1024 * 1024

FIRST = frozenset({"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "__file__"})
"""What every session has, and has again after loading."""

MAX_TEXT = 300


class Surroundings:
    """What a session has besides its names: noted when it starts, compared when it is saved."""

    def __init__(self) -> None:
        self.environ = dict(os.environ)
        self.path = list(sys.path)
        self.cwd = os.getcwd()

    def changes(self) -> dict[str, Any]:
        now = dict(os.environ)
        changed: dict[str, Any] = {name: value for name, value in now.items() if self.environ.get(name) != value}
        changed.update({name: None for name in self.environ if name not in now})
        changed.pop("TMPDIR", None)
        path = [each for each in sys.path if type(each) is str]
        try:
            cwd: str | None = os.getcwd()
        except OSError:
            cwd = None
        return {
            "environ": {_plain(name): value if value is None else _plain(value) for name, value in changed.items()},
            "path": [_plain(each) for each in path] if path != self.path else None,
            "cwd": _plain(cwd) if cwd is not None and cwd != self.cwd else None,
        }


def save(fd: int, main: types.ModuleType, around: Surroundings, flags: int) -> None:
    """Send the whole session over the channel."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            _Save(fd, main, around, flags).run()
        except BaseException as error:  # told below, in the thread that the caller waits for
            failed.append(error)

    _with_deep_stack(run)
    if failed:
        raise failed[0]


def _with_deep_stack(run: Callable[[], None]) -> None:
    """In a thread with a large stack, so that what is nested deeply can be saved too."""
    import threading

    before = sys.getrecursionlimit()
    try:
        threading.stack_size(STACK)
        thread = threading.Thread(target=run)
        sys.setrecursionlimit(max(before, DEEP))
        thread.start()
    except (RuntimeError, ValueError, MemoryError):
        sys.setrecursionlimit(before)
        run()
        return
    thread.join()


class _Save:
    def __init__(self, fd: int, main: types.ModuleType, around: Surroundings, flags: int) -> None:
        self._main = main
        self._around = around
        self._flags = flags
        self._offers = chunks.Offers(fd)
        self._sources: dict[str, list[tuple[str, int]]] = {}
        self._skipped: list[dict[str, str]] = []
        self._written: dict[grouping.Group, int] = {}
        self._groups: list[dict[str, Any]] = []
        self._failed: dict[grouping.Group, str] = {}

    def run(self) -> None:
        gc.disable()
        states = _random_states()
        sys.modules["__main__"] = self._main
        made = types.ModuleType(MODULE)
        vars(made).update(MAKERS)
        sys.modules[MODULE] = made
        definitions.forget()
        space = {
            name: value
            for name, value in vars(self._main).copy().items()
            if type(name) is str and name not in FIRST and not (name == "__annotations__" and not value)
        }
        found = grouping.find(space, (vars(self._main), sys.modules, vars(sys.modules["builtins"])))
        for group in found.ordered:
            self._save_group(group, space, found)
        names, buffers, _ = self._pickle(states, found, grouping.Group())
        self._offers.finish(
            {
                "groups": self._groups,
                "skipped": self._skipped,
                "sources": [{"file": file, "chunks": names} for file, names in sorted(self._sources.items())],
                "random": {"stream": names, "buffers": buffers},
                "flags": self._flags,
                "packages": _packages(),
                **self._around.changes(),
            }
        )

    def _save_group(self, group: grouping.Group, space: dict[str, Any], found: grouping.Groups) -> None:
        for need in group.needs:
            if need in self._failed:
                self._leave_out(group, space, f"it needs {self._failed[need]}")
                return
        names = list(group.names)
        try:
            saved = self._pickle_names(group, names, space, found)
        except BaseException as error:  # the border to the user's own code, of which all may run here
            reason = reducing.why_not(error)
            good = self._names_that_can(group, space, found) if len(names) > 1 else []
            if not good and group.keys:
                self._leave_out(group, space, reason)
                return
            for name in names:
                if name not in good:
                    self._skip(name, space[name], self._reasons.pop(name, reason) if len(names) > 1 else reason)
            if not good:
                return
            try:
                saved = self._pickle_names(group, good, space, found)
            except BaseException as again:  # as above
                group.names = good
                self._leave_out(group, space, reducing.why_not(again))
                return
            names = good
        stream, buffers, size = saved
        needs = sorted({self._written[need] for need in group.needs})
        self._written[group] = len(self._groups)
        about = [{"name": _plain(name), "type": _plain(variables.type_name(space[name]))[:MAX_TEXT]} for name in names]
        self._groups.append(
            {"names": about, "keys": group.keys, "needs": needs, "stream": stream, "buffers": buffers, "size": size}
        )

    def _names_that_can(self, group: grouping.Group, space: dict[str, Any], found: grouping.Groups) -> list[str]:
        """The names of a group that can be saved each by itself: one that cannot must not cost the others."""
        good = []
        self._reasons: dict[str, str] = {}
        for name in group.names:
            try:
                pickler = reducing.Pickler(
                    chunks.Nowhere(), found.keys, frozenset(group.keys), group.views, lambda buffer: False
                )
                pickler.dump(space[name])
                good.append(name)
            except BaseException as error:  # as above
                self._reasons[name] = reducing.why_not(error)
        return good

    def _pickle_names(
        self, group: grouping.Group, names: list[str], space: dict[str, Any], found: grouping.Groups
    ) -> tuple[Any, Any, int]:
        content = ({name: space[name] for name in names}, {key: found.defined[key] for key in group.keys})
        return self._pickle(content, found, group)

    def _pickle(self, content: Any, found: grouping.Groups, group: grouping.Group) -> tuple[Any, Any, int]:
        stream = chunks.Stream(self._offers)
        buffers: list[list[tuple[str, int]]] = []

        def on_buffer(buffer: Any) -> bool:
            try:
                view = buffer.raw()
            except BufferError:
                return True  # not in one piece: pickle makes it so
            if view.nbytes < reducing.OUT_OF_BAND:
                return True
            names: list[tuple[str, int]] = []
            chunks.cut_whole(self._offers, view, names, held=False)
            buffers.append(names)
            return False

        pickler = reducing.Pickler(stream, found.keys, frozenset(group.keys), group.views, on_buffer)
        pickler.dump(content)
        stream.cut()
        for file in pickler.sources:
            self._keep_source(file)
        size = sum(size for _, size in stream.names) + sum(size for names in buffers for _, size in names)
        return stream.names, buffers, size

    def _keep_source(self, file: str) -> None:
        if file not in self._sources:
            import linecache

            text = "".join(linecache.cache[file][2])  # type: ignore[misc]
            stream = chunks.Stream(self._offers)
            stream.write(text.encode("utf-8", "surrogatepass"))
            stream.cut()
            self._sources[file] = stream.names

    def _leave_out(self, group: grouping.Group, space: dict[str, Any], reason: str) -> None:
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

"""Loading of a snapshot into this session, which has run no cell yet.

Bytes come over a channel in the order of the summary, and the host checks each chunk first. A group that cannot be
loaded, because of a missing package or another Python version, is reported by its names. All others are loaded.
"""

import _pickle
import gc
import os
import random
import sys
import types
from typing import Any

from ingle_worker.magics import packages
from ingle_worker.session.variables import unlisted
from ingle_worker.snapshot import chunks, own_folder, reduce, reduce_torch
from ingle_worker.snapshot.rebuild.registry import CURRENT, FUTURE_MASK, MAKERS, MODULE, CannotRebuild, LoadState, Lost

CELL_PREFIX = "<cell "


class Unpickler(_pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == MODULE:
            return MAKERS[name]
        try:
            return super().find_class(module, name)
        except AttributeError:
            if module != "dataclasses":
                raise
            # It exists in newer versions only. `rebuild` creates the class's methods again.
            lost = Lost(f"{module}.{name} is not in this Python")
            CURRENT.get().lost.append(lost)
            return lost


class Loaded:
    """Result of a load."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failed: list[dict[str, str]] = []
        self.notices: list[str] = []
        self.flags = 0
        self.sources: dict[str, tuple[str, str]] = {}
        """For each cell, by its name in the snapshot: its new name and its text."""


def load(fd: int, summary: dict[str, Any], main: types.ModuleType, *, random: bool = True) -> Loaded:
    """Load a snapshot's names into the session's namespace, and with `random` the state of random numbers."""
    return _Load(fd, summary, main, random).run()


class _Load:
    def __init__(self, fd: int, summary: dict[str, Any], main: types.ModuleType, random: bool) -> None:
        self._random = random
        self._incoming = chunks.Incoming(fd)
        self._summary = summary
        self._space = vars(main)
        self._loaded = Loaded()
        self._failed_groups: set[int] = set()
        self._state = LoadState(self._space)

    def run(self) -> Loaded:
        summary = self._summary
        token = CURRENT.set(self._state)
        # All objects made here stay. Collections would take a fifth of the time of importing scikit-learn.
        collects = gc.isenabled()
        gc.disable()
        try:
            self._restore_environment()
            self._read_sources()
            numpy = self._numpy()
            for number, group in enumerate(summary["groups"]):
                self._load_group(number, group, numpy)
            self._mark_library()
            self._restore_random(summary["random"], numpy)
            self._note_moves()
            self._state.remember_sources()
            self._loaded.sources = {
                file: (self._state.renamed[file], text) for file, text in self._state.sources.items()
            }
        finally:
            CURRENT.reset(token)
            self._incoming.close()
            if collects:
                gc.enable()
        self._loaded.flags = summary["flags"] & FUTURE_MASK
        return self._loaded

    def _restore_environment(self) -> None:
        summary, notices = self._summary, self._loaded.notices
        for name, value in summary["environ"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if summary["path"] is not None:
            sys.path[:] = summary["path"]
        packages.put_on_path()
        if summary["cwd"] is not None:
            try:
                os.chdir(own_folder.absolute(summary["cwd"]))
            except OSError as error:
                notices.append(f"the session's folder {summary['cwd']} cannot be entered now ({error.strerror})")

    def _read_sources(self) -> None:
        import linecache

        for source in self._summary["sources"]:
            size = sum(size for _, size in source["chunks"])
            self._incoming.begin(size)
            text = self._incoming.read().decode("utf-8", "surrogatepass")
            file = source["file"]
            self._state.sources[file] = text
            # Cells of this session will have the same numbers, so those of the snapshot are renamed.
            name, count = file, 1
            if file.startswith(CELL_PREFIX) and " before" not in file:
                name = f"{file[:-1]} before loading>"
            while name in linecache.cache or name in self._state.renamed.values():
                count += 1
                name = f"{file[:-1].removesuffix(' before loading')} before loading, {count}>"
            self._state.renamed[file] = name

    def _numpy(self) -> Any:
        if "numpy" not in self._summary["packages"]:
            return None
        try:
            import numpy
        except Exception:  # library code: groups that need numpy fail by themselves
            return None
        return numpy

    def _load_group(self, number: int, group: dict[str, Any], numpy: Any) -> None:
        missing = [need for need in group["needs"] if need in self._failed_groups]
        try:
            names, defined = self._read(group, numpy)
            self._state.defined.update(defined)
        except EOFError:
            raise
        except BaseException as error:  # user code and library code
            self._failed_groups.add(number)
            reason = reduce.why_not(error) if not isinstance(error, CannotRebuild) else str(error)
            if missing:
                first = self._summary["groups"][missing[0]]
                needed = [each["name"] for each in first["names"]] or first["keys"]
                reason = f"it needs {', '.join(needed[:3])}, which could not be loaded"
            for each in group["names"]:
                self._loaded.failed.append({"name": each["name"], "type": each["type"], "reason": reason})
            return
        self._space.update(names)
        self._loaded.names += names

    def _note_moves(self) -> None:
        """Tell which devices of the snapshot this session does not have."""
        for device, found in sorted(self._state.moved.items()):
            self._loaded.notices.append(f"what was on {device} is on {found} now: this session has no {device}")

    def _mark_library(self) -> None:
        """Mark definitions of the user's library again, which are no variables of the session."""
        loaded = set(self._loaded.names)
        library = {name: self._space[name] for name in self._summary.get("library", []) if name in loaded}
        unlisted.update(library)
        self._loaded.names = [name for name in self._loaded.names if name not in library]

    def _read(self, group: dict[str, Any], numpy: Any) -> Any:
        buffers = [self._incoming.buffer(sum(size for _, size in each), numpy) for each in group["buffers"]]
        self._incoming.begin(sum(size for _, size in group["stream"]))
        try:
            loaded = Unpickler(self._incoming, buffers=buffers).load()
            if self._state.lost:
                raise CannotRebuild(self._state.lost[0].why)
            return loaded
        finally:
            self._state.lost.clear()
            self._state.marks.clear()
            self._incoming.drain()

    def _restore_random(self, group: dict[str, Any], numpy: Any) -> None:
        try:
            states = self._read(group, numpy)
            if not self._random:
                return
            random.setstate(states["random"])
            if "numpy.random" in states and numpy is not None:
                numpy.random.set_state(states["numpy.random"])
            if "torch" in states:
                reduce_torch.restore_random(states["torch"])
        except EOFError:
            raise
        except Exception as error:  # another version may have another state
            self._loaded.notices.append(f"the state of random numbers could not be restored: {reduce.why_not(error)}")

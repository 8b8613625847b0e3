"""Callbacks for imports of libraries, without importing any.

A library is configured at the moment the user's code imports it, or before any fork if it is preloaded. A library that
is never imported costs a dictionary lookup. `MODULES` is the interpreter's own table, because code may replace
`sys.modules`.
"""

import sys
from collections.abc import Callable
from typing import Any

MODULES: dict[str, Any] = sys.modules


def loaded(name: str, attribute: str) -> Any:
    """Return an attribute of a loaded module, or None."""
    module = MODULES.get(name)
    if module is None:
        return None
    try:
        return getattr(module, attribute, None)
    except Exception:  # user code: anything may be in the table
        return None


class ImportWatcher:
    """A finder that comes first and finds nothing: it only notices imports."""

    def __init__(self) -> None:
        self._after: dict[str, Callable[[Any], None]] = {}

    def call_after(self, name: str, act: Callable[[Any], None]) -> None:
        """Call `act` with the module once it is loaded, or now if it already is."""
        if name in MODULES:
            _act(act, MODULES[name])
        else:
            self._after[name] = act

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        act = self._after.get(name)
        if act is None:
            return None
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _extend(spec.loader, act)
                return spec
        return None


def _extend(loader: Any, act: Callable[[Any], None]) -> None:
    run = loader.exec_module

    def exec_module(module: Any) -> None:
        run(module)
        _act(act, module)

    try:
        # Only on this loader, which belongs to this module. Its class stays unchanged.
        loader.exec_module = exec_module
    except AttributeError:
        return


def _act(act: Callable[[Any], None], module: Any) -> None:
    try:
        act(module)
    except Exception:  # library code: another version, or a user's module of that name
        return

"""Being there when a library is imported, without importing any.

What has to be set in a library (where its figures go, how it shows itself) is set in the moment the user's code has
imported it, or before any fork where it was loaded beforehand. A library that nobody imports costs a look into
a dictionary. `MODULES` is the interpreter's own table: code may put anything in place of `sys.modules`.
"""

import sys
from collections.abc import Callable
from typing import Any

MODULES: dict[str, Any] = sys.modules


def loaded(name: str, attribute: str) -> Any:
    """An attribute of a module that is loaded already, or None; also where something else has taken its place."""
    module = MODULES.get(name)
    if module is None:
        return None
    try:
        return getattr(module, attribute, None)
    except Exception:  # the border to what code has put there
        return None


class Watch:
    """A finder that comes first and finds nothing itself: it only learns what is being imported."""

    def __init__(self) -> None:
        self._after: dict[str, Callable[[Any], None]] = {}

    def call_after(self, name: str, act: Callable[[Any], None]) -> None:
        """Call `act` with the module once it is loaded, at once if it is."""
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
        # On this one object, which is made for this one module: its class stays what everybody takes it for.
        loader.exec_module = exec_module
    except AttributeError:
        return


def _act(act: Callable[[Any], None], module: Any) -> None:
    try:
        act(module)
    except Exception:  # the border to libraries: another version, or a user's own module of that name
        return

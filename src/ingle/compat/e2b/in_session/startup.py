"""Display of values as E2B's clients expect it: data of tables, charts of figures, images that are shown and saved.

A library is extended at the moment it is imported. Nothing is imported here that the session's code does not use.
"""

import builtins
import os
import sys
from collections.abc import Callable
from typing import Any


class Json:
    """A list or a dictionary that is shown as JSON too."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        return repr(self._value)

    def _repr_mimebundle_(self, **options: Any) -> "dict[str, Any]":
        return {"text/plain": repr(self._value), "application/json": with_text_keys(self._value)}


def with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): with_text_keys(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_text_keys(each) for each in value]
    return value


def show_json(show: Callable[[Any], None]) -> Callable[[Any], None]:
    def displayhook(value: Any) -> None:
        if type(value) in (list, dict):
            show(Json(value))
            builtins._ = value  # type: ignore[attr-defined]
        else:
            show(value)

    return displayhook


def table_forms(frame: Any, **options: Any) -> "dict[str, str]":
    data = {str(name): [plain(each) for each in column] for name, column in frame.to_dict("list").items()}
    return {"text/html": frame._repr_html_(), "e2b/data": as_json(data)}


def plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


def as_json(value: Any) -> str:
    import json

    return json.dumps(value, default=str)


def extend_pandas(module: Any) -> None:
    module.DataFrame._repr_mimebundle_ = table_forms


def extend_figures(charts: str) -> Callable[[Any], None]:
    """Return the extension of matplotlib. `charts` is the source of that module, compiled with the first figure."""
    compiled: dict[str, Any] = {}

    def chart(figure: Any, **options: Any) -> "dict[str, str]":
        if not compiled:
            exec(compile(charts, "<ingle e2b charts>", "exec"), compiled)
        found = compiled["chart_of"](figure)
        return {} if found is None else {"e2b/chart": as_json(found)}

    def extend(module: Any) -> None:
        module.Figure._repr_mimebundle_ = chart

    return extend


def extend_images(module: Any) -> None:
    save = module.Image.save

    def show(image: Any, *args: Any, **options: Any) -> None:
        builtins.display(image)  # type: ignore[attr-defined]

    def save_and_show(image: Any, target: Any, *args: Any, **options: Any) -> None:
        save(image, target, *args, **options)
        if isinstance(target, (str, os.PathLike)):
            builtins.display(image)  # type: ignore[attr-defined]

    module.Image.show = show
    module.Image.save = save_and_show


class Finder:
    """Finder that comes first and finds nothing: it extends libraries once they are loaded."""

    def __init__(self, extensions: "dict[str, Callable[[Any], None]]") -> None:
        self._extensions = extensions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        # Another finder of this kind may ask this one, so that each name counts once.
        extend = self._extensions.pop(name, None)
        if extend is None:
            return None
        for finder in list(sys.meta_path):
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                follow(spec.loader, extend)
                return spec
        return None


def follow(loader: Any, extend: Callable[[Any], None]) -> None:
    """Have the loader extend its module once it is loaded."""
    run = loader.exec_module

    def load(module: Any) -> None:
        run(module)
        extend(module)

    loader.exec_module = load


def install(charts: str, cwd: "str | None") -> None:
    """Extend this session, and go to the folder `cwd` if it exists."""
    sys.displayhook = show_json(sys.displayhook)
    extensions = {
        "pandas.core.frame": extend_pandas,
        "matplotlib.figure": extend_figures(charts),
        "PIL.Image": extend_images,
    }
    for name, extend in list(extensions.items()):
        if name in sys.modules:
            extend(sys.modules[name])
    sys.meta_path.insert(0, Finder(extensions))
    if cwd is not None and os.path.isdir(cwd):
        os.chdir(cwd)

"""Values of variables as bytes, for the session and its clients: never as a pickle.

JSON kinds are JSON, bytes are themselves, arrays of numpy are npy, tables are Arrow streams. The libraries are imported
when a value needs them, so a side without them can still exchange the rest.
"""

import importlib
import json
from typing import IO, Any

JSON, BYTES, ARRAY, SCALAR = "json", "bytes", "array", "scalar"
ARROW, FRAME, SERIES, POLARS = "arrow", "frame", "series", "polars"

_ARROW_STREAM = "application/vnd.apache.arrow.stream"

MEDIA_TYPES = {
    JSON: "application/json",
    BYTES: "application/octet-stream",
    ARRAY: "application/x-npy",
    SCALAR: "application/x-npy; as=scalar",
    ARROW: _ARROW_STREAM,
    FRAME: f"{_ARROW_STREAM}; as=frame",
    SERIES: f"{_ARROW_STREAM}; as=series",
    POLARS: f"{_ARROW_STREAM}; as=polars",
}
"""Content types of values over HTTP, by kind."""

MAX_DEPTH = 200
MIN_PYARROW = (14, 0, 1)
"""Older versions unpickle what a stream says."""


class Unsuitable(Exception):
    """A value that cannot be exchanged. The message says why, and what to do."""


def kind_of_media(media_type: str) -> "str | None":
    """Return the kind with this content type, without regard to spaces and case."""
    wanted = media_type.replace(" ", "").lower()
    return next((kind for kind, each in MEDIA_TYPES.items() if each.replace(" ", "") == wanted), None)


# --- from a value ---


def write(value: Any, file: "IO[bytes]") -> str:
    """Write a value to a file, and return its kind. Raise Unsuitable."""
    if isinstance(value, (bytes, bytearray)):
        file.write(value)
        return BYTES
    library = type(value).__module__.partition(".")[0]
    if library == "numpy":
        return _write_numpy(value, file)
    if library in ("pandas", "polars", "pyarrow"):
        return _write_table(library, value, file)
    _check_json(value, 0)
    file.write(json.dumps(value).encode("ascii"))
    return JSON


def _check_json(value: Any, depth: int) -> None:
    """Raise Unsuitable for what JSON would change, except that tuples become lists."""
    kind = type(value)
    if depth > MAX_DEPTH:
        raise Unsuitable(f"it is nested deeper than {MAX_DEPTH}, or contains itself")
    if kind in (list, tuple):
        for each in value:
            _check_json(each, depth + 1)
    elif kind is dict:
        for key, each in value.items():
            if type(key) is not str:
                raise Unsuitable(f"it has a dict with a key of type {type(key).__name__}; use keys of type str")
            _check_json(each, depth + 1)
    elif kind not in (str, int, float, bool, type(None)):
        raise Unsuitable(
            f"values of type {kind.__module__}.{kind.__qualname__} are not exchanged; use None, bool, int, float, str, "
            "list, dict, bytes, an array of numpy or a table of pandas, polars or pyarrow"
        )


def _write_numpy(value: Any, file: "IO[bytes]") -> str:
    numpy = importlib.import_module("numpy")
    array = numpy.asarray(value)
    if array.dtype.hasobject:
        raise Unsuitable("it is an array of objects; convert it to an array of numbers or text, or to a list")
    if not isinstance(value, (numpy.ndarray, numpy.generic)):
        raise Unsuitable(f"values of type {type(value).__name__} of numpy are not exchanged")
    numpy.lib.format.write_array(file, array, allow_pickle=False)
    return ARRAY if isinstance(value, numpy.ndarray) else SCALAR


def _write_table(library: str, value: Any, file: "IO[bytes]") -> str:
    name = type(value).__name__
    pyarrow = _pyarrow()
    if library == "pandas" and name in ("DataFrame", "Series"):
        kind = FRAME if name == "DataFrame" else SERIES
        frame = value if kind == FRAME else value.to_frame()
        try:
            table = pyarrow.Table.from_pandas(frame)
        except pyarrow.ArrowException as error:
            raise Unsuitable(f"Arrow has no type for one of its columns: {error}") from None
    elif library == "polars" and name == "DataFrame":
        kind, table = POLARS, value.to_arrow()
    elif library == "pyarrow" and name == "Table":
        kind, table = ARROW, value
    else:
        raise Unsuitable(f"values of type {name} of {library} are not exchanged; make a table of it")
    with pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return kind


# --- to a value ---


def read(kind: str, file: "IO[bytes]") -> Any:
    """Return the value in a file. Nothing in it is executed. Raise Unsuitable or ValueError."""
    if kind == JSON:
        try:
            return json.loads(file.read())
        except RecursionError:
            raise Unsuitable("it is nested too deeply") from None
    if kind == BYTES:
        return file.read()
    if kind in (ARRAY, SCALAR):
        array = _imported("numpy").lib.format.read_array(file, allow_pickle=False)
        return array if kind == ARRAY else array[()]
    if kind not in MEDIA_TYPES:
        raise Unsuitable(f"the kind {kind[:80]!r} is not known")
    pyarrow = _pyarrow()
    try:
        table = pyarrow.ipc.open_stream(file).read_all()
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from None
    if kind == POLARS:
        return _imported("polars").from_arrow(table)
    if kind == ARROW:
        return table
    _imported("pandas")
    frame = table.to_pandas()
    if kind == FRAME:
        return frame
    # A series without a name has the name 0 in a table.
    series = frame.iloc[:, 0]
    return series.rename(None) if series.name in (0, "0") else series


def _pyarrow() -> Any:
    pyarrow = _imported("pyarrow")
    importlib.import_module("pyarrow.ipc")
    version = tuple(int(each) for each in pyarrow.__version__.split(".")[:3] if each.isdigit())
    if version < MIN_PYARROW:
        raise Unsuitable("tables need pyarrow 14.0.1 or later; install it with `pip install -U pyarrow`")
    return pyarrow


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Unsuitable(f"it needs {name}, which is not installed; install it with `pip install {name}`") from None

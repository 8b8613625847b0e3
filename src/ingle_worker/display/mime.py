"""The mime bundle of a value: the forms in which a reader, a page or a program can show it.

A bundle always has text/plain. Other types come from methods of the value's class such as `_repr_html_`. A method that
fails costs only its own mime type, with a notice. Only the class is asked for methods, because mocks answer to every
name. Everything is bounded, and data that is too large is left out with a notice.

Text is sent as it is, JSON as text, all else in base64. An image that is too large for a reader is included small, and
in full in `files`.
"""

import binascii
import json
import math
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ingle_worker.display import charts, images, tables

MAX_TEXT_CHARS = 1_000_000
"""Maximum characters of plain text. A longer text keeps its head and tail."""

MAX_RICH_CHARS = 4_000_000
"""Maximum characters of other text. A longer one is left out, because half a page is useless."""

MAX_INLINE_BYTES = 4_000_000
"""Maximum bytes of an image or other binary data in the bundle."""

MAX_TOTAL_CHARS = 16_000_000
"""Maximum characters of all mime types together."""

MAX_TYPES = 32
MAX_METADATA_CHARS = 65_536
MAX_DEPTH = 20
SAFE_INTEGER = 2**53
"""Above this, many JSON readers do not keep integers exact."""

METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
    ("_repr_pdf_", "application/pdf"),
)
ALL_METHODS = ("_repr_mimebundle_", "_ipython_display_", *(name for name, _ in METHODS))

_PLAIN_TYPES = (
    *(int, float, str, bool, bytes, complex, type(None), list, tuple, dict, set, frozenset, range, bytearray),
    *(type, FunctionType, BuiltinFunctionType, ModuleType),
)
PLAIN = frozenset(map(id, _PLAIN_TYPES))
"""Types whose instances have only a repr, by id. They are not asked for methods. A metaclass may make a class
unhashable or unequal to itself."""

TEXTUAL = frozenset(("image/svg+xml", "application/javascript", "application/xml", "application/x-latex"))

_mro = type.__dict__["__mro__"].__get__
_attributes = type.__dict__["__dict__"].__get__


class Bundle:
    """The mime bundle of one value, with notices and files."""

    __slots__ = ("data", "files", "metadata", "notices")

    def __init__(self, data: dict[str, str]) -> None:
        self.data = data
        self.metadata: dict[str, Any] = {}
        self.files: list[bytes] = []
        self.notices: list[str] = []

    def add(self, mime: str, content: Any, metadata: Any = None) -> None:
        """Add the result of one method, or a notice."""
        content = _exact(content)
        kind = type(content)
        if mime == "text/plain":
            if kind is str:
                self.data[mime] = shorten(content)
            return
        if mime.startswith("image/") and mime not in TEXTUAL:
            self._add_image(mime, content, metadata)
            return
        if mime == "application/json" or (mime.startswith("application/") and kind in (dict, list)):
            text = _dump(content)
        elif kind is str:
            text = content
        elif kind is bytes and (mime.startswith("text/") or mime in TEXTUAL):
            text = content.decode("utf-8", "replace")
        elif kind is bytes and len(content) <= MAX_INLINE_BYTES:
            text = binascii.b2a_base64(content, newline=False).decode("ascii")
        elif kind is bytes:
            self._leave_out(mime, f"{len(content)} bytes are more than {MAX_INLINE_BYTES}")
            return
        else:
            text = None
        if text is None:
            self._leave_out(mime, f"a {type(content).__name__} cannot be shown as that")
        elif len(text) > MAX_RICH_CHARS or len(text) + sum(map(len, self.data.values())) > MAX_TOTAL_CHARS:
            self._leave_out(mime, f"{len(text)} characters are more than {MAX_RICH_CHARS}")
        else:
            self.data[mime] = text
            self.describe(mime, metadata)

    def _add_image(self, mime: str, content: Any, metadata: Any) -> None:
        if type(content) is str and len(content) <= images.MAX_FILE_BYTES * 4 // 3 + 4:
            try:
                raw = binascii.a2b_base64(content)
            except ValueError:
                self._leave_out(mime, "its text is no base64")
                return
        elif type(content) is bytes:
            raw = content
        else:
            self._leave_out(mime, f"a {type(content).__name__} of that size or type is no image")
            return
        self.describe(mime, metadata)
        fitted = images.fit(raw)
        self.add_fitted(mime, fitted)

    def add_fitted(self, mime: str, fitted: images.Fitted) -> None:
        if fitted.notice:
            self.notices.append(f"{mime}: {fitted.notice}")
        about = dict(self.metadata.get(mime) or {})
        if fitted.size is not None:
            # Sizes set by the user say how large to show it. Otherwise its own size is used.
            about.setdefault("width", fitted.size[0])
            about.setdefault("height", fitted.size[1])
        if fitted.full is not None:
            about["full"] = {"file": images.name_of(fitted.full), "bytes": len(fitted.full)}
            if fitted.full_size is not None:
                about["full"].update(width=fitted.full_size[0], height=fitted.full_size[1])
            self.files.append(fitted.full)
        if fitted.inline is not None:
            if len(fitted.inline) > MAX_INLINE_BYTES:
                self._leave_out(mime, f"{len(fitted.inline)} bytes are more than {MAX_INLINE_BYTES}")
            else:
                self.data[mime] = binascii.b2a_base64(fitted.inline, newline=False).decode("ascii")
        if about:
            self.metadata[mime] = about

    def describe(self, mime: str, metadata: Any) -> None:
        if metadata:
            plain = plain_json(metadata)
            if type(plain) is dict:
                self.metadata[mime] = {**(self.metadata.get(mime) or {}), **plain}

    def _leave_out(self, mime: str, why: str) -> None:
        self.notices.append(f"{mime} was left out: {why}")


def plain(value: object) -> Bundle:
    return Bundle({"text/plain": shorten(repr(value))})


def make(value: object) -> Bundle:
    """Return the bundle of a value. Raises like `repr` if there is nothing else to show."""
    cls = type(value)
    if id(cls) in PLAIN or issubclass(cls, type):
        return plain(value)
    found = methods_of(cls)
    table = tables.preview(value, cls)
    if not found and table is None:
        return plain(value)
    bundle = Bundle({})
    if table is not None:
        bundle.data["text/plain"] = shorten(table.text)
        if table.html is not None:
            bundle.add("text/html", table.html)
        if not table.ask:
            found = frozenset()
    if "_repr_mimebundle_" in found:
        add_mimebundle(bundle, value)
    if not len(bundle.data) > ("text/plain" in bundle.data):
        for name, mime in METHODS:
            if name in found and not (mime == "image/jpeg" and "image/png" in bundle.data):
                _add_method(bundle, value, name, mime)
    if "text/plain" not in bundle.data:
        bundle.data["text/plain"] = _text_beside(bundle, value)
    return bundle


def methods_of(cls: type) -> frozenset[str]:
    """Return which display methods a class or its bases define."""
    return frozenset(name for base in _mro(cls)[:-1] for name in ALL_METHODS if name in _attributes(base))


def _text_beside(bundle: Bundle, value: object) -> str:
    try:
        return shorten(repr(value))
    except Exception as error:  # user code: methods of the value
        if len(bundle.data) == 0:
            raise
        bundle.notices.append(f"its repr raised {_say(error)}")
        return f"<{type(value).__name__} object>"


def add_mimebundle(bundle: Bundle, value: Any) -> None:
    """Add what the value's own `_repr_mimebundle_` returns."""
    try:
        got = value._repr_mimebundle_(include=None, exclude=None)
        metadata: Any = {}
        if isinstance(got, tuple) and len(got) == 2:
            got, metadata = got
        if got is None:
            return
        add_raw(bundle, got, metadata)
        chart = charts.described(got)
        if chart is not None:
            bundle.data["text/plain"] = chart
    except Exception as error:  # user code: methods of the value
        bundle.notices.append(f"_repr_mimebundle_ of {type(value).__name__} raised {_say(error)}")


def add_raw(bundle: Bundle, data: Any, metadata: Any = None) -> None:
    """Add a library's bundle: contents and metadata by mime type."""
    if not isinstance(data, dict):
        raise TypeError(f"a mime bundle is a dictionary, not a {type(data).__name__}")
    about = metadata if isinstance(metadata, dict) else {}
    for mime, content in list(data.items())[:MAX_TYPES]:
        if type(mime) is str and "/" in mime and len(mime) < 200 and content is not None:
            bundle.add(mime, content, about.get(mime))


def _add_method(bundle: Bundle, value: Any, name: str, mime: str) -> None:
    try:
        got = getattr(value, name)()
        metadata: Any = None
        if isinstance(got, tuple) and len(got) == 2:
            got, metadata = got
        if got is not None:
            bundle.add(mime, got, metadata)
    except Exception as error:  # user code: methods of the value
        bundle.notices.append(f"{name} of {type(value).__name__} raised {_say(error)}")


def _exact(content: Any) -> Any:
    """Convert subclasses of str and bytes to the plain type."""
    kind = type(content)
    if issubclass(kind, str):
        return str.__str__(content)
    if issubclass(kind, (bytes, bytearray, memoryview)):
        return memoryview(content).tobytes()
    return content


def _say(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except Exception:  # user code: methods of the value
        return type(error).__name__


def shorten(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    head, tail = MAX_TEXT_CHARS * 35 // 100, MAX_TEXT_CHARS * 65 // 100
    return f"{text[:head]}\n… {len(text) - head - tail} characters left out …\n{text[-tail:]}"


def _dump(content: Any) -> str | None:
    """Return the JSON of a value, or None. NaN and infinity become null, as in a browser."""
    try:
        try:
            return json.dumps(content, allow_nan=False, ensure_ascii=False, default=_as_plain)
        except ValueError:
            return json.dumps(_without_nan(content), allow_nan=False, ensure_ascii=False, default=_as_plain)
    except (TypeError, ValueError, RecursionError):
        return None


def _as_plain(value: Any) -> Any:
    """Convert numpy arrays and numbers, which plotting libraries produce."""
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return _without_nan(tolist())
    return str(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return value


def plain_json(value: Any) -> Any:
    """Return a copy that every JSON reader accepts, bounded in depth and size. Other values become None."""
    copy = _copy_plain(value, MAX_DEPTH)
    text = _dump(copy)
    return copy if text is not None and len(text) <= MAX_METADATA_CHARS else None


def _copy_plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return value if -SAFE_INTEGER <= value <= SAFE_INTEGER else None
    if kind is float:
        return value if math.isfinite(value) else None
    if depth and isinstance(value, dict):
        return {str(key): _copy_plain(each, depth - 1) for key, each in list(value.items())[:1000]}
    if depth and isinstance(value, (list, tuple)):
        return [_copy_plain(each, depth - 1) for each in value[:1000]]
    return None

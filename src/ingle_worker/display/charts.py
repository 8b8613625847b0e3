"""Text for charts: a plotly or Vega-Lite chart in one short line, made from its JSON.

A reader of text cannot see the chart, and its `repr` is either a bare name or all data. Nothing here imports or calls a
library. An unknown chart keeps its text.
"""

from typing import Any

PLOTLY = "application/vnd.plotly.v1+json"
VEGALITE = "application/vnd.vegalite.v"

MAX_PARTS = 5
"""Maximum number of named traces, marks or channels. The rest is counted."""

MAX_NAME_CHARS = 60
DATA_KEYS = ("y", "x", "values", "z", "r", "lat", "locations", "labels")
"""Keys of a trace's points. The first one present is counted."""

VIEW_KEYS = ("layer", "hconcat", "vconcat", "concat")


def described(bundle: dict[Any, Any]) -> str | None:
    """Return the text for a library's bundle, or None if it has no chart."""
    for mime, content in bundle.items():
        if isinstance(mime, str) and isinstance(content, dict):
            try:
                if mime == PLOTLY:
                    return _plotly(content)
                if mime.startswith(VEGALITE):
                    return _vegalite(content)
            except Exception:  # library code, or classes derived from it
                return None
    return None


def _plotly(spec: dict[str, Any]) -> str:
    traces = [
        f"{trace.get('type', 'scatter')}{_named(trace.get('name'))}{_counted(trace)}" for trace in spec.get("data", ())
    ]
    layout = spec.get("layout") or {}
    title = layout.get("title")
    return _chart("plotly", title.get("text") if isinstance(title, dict) else title, traces)


def _counted(trace: dict[str, Any]) -> str:
    for key in DATA_KEYS:
        data = trace.get(key)
        if data is None:
            continue
        if isinstance(data, dict):
            # An array in base64.
            shape = data.get("shape")
            if shape is not None:
                return f" ({str(shape).replace(', ', ' x ')} points)"
            text = data["bdata"]
            number = (len(text) * 3 // 4 - text[-2:].count("=")) // int(data["dtype"][1:])
        else:
            number = len(data)
        return f" ({number} point{'s' * (number != 1)})"
    return ""


def _vegalite(spec: dict[str, Any]) -> str:
    title = spec.get("title")
    return _chart("altair", title.get("text") if isinstance(title, dict) else title, _marks(spec))


def _marks(spec: dict[str, Any]) -> list[str]:
    mark = spec.get("mark")
    if mark is not None:
        kind = mark.get("type") if isinstance(mark, dict) else mark
        channels = [
            f"{channel}={shown}" for channel, each in (spec.get("encoding") or {}).items() if (shown := _field(each))
        ]
        return [" ".join([str(kind), *_few(channels, "channel")])]
    inner = [each for part in VIEW_KEYS for each in spec.get(part, ())]
    inner += [spec["spec"]] if "spec" in spec else []
    return [mark for each in inner for mark in _marks(each)]


def _field(channel: Any) -> str | None:
    if not isinstance(channel, dict):
        return None
    field, aggregate = channel.get("field"), channel.get("aggregate")
    if field is None:
        return None if aggregate is None else f"{aggregate}()"
    return _short(field) if aggregate is None else f"{aggregate}({_short(field)})"


def _chart(library: str, title: Any, parts: list[str]) -> str:
    head = f"{library} chart{_named(title)}"
    return f"{head}: {', '.join(_few(parts, 'trace' if library == 'plotly' else 'mark'))}" if parts else head


def _few(parts: list[str], noun: str) -> list[str]:
    more = len(parts) - MAX_PARTS
    return parts if more <= 0 else [*parts[:MAX_PARTS], f"and {more} more {noun}{'s' * (more != 1)}"]


def _named(name: Any) -> str:
    return f" {_short(name)!r}" if name else ""


def _short(name: Any) -> str:
    text = name if isinstance(name, str) else str(name)
    return text if len(text) <= MAX_NAME_CHARS else text[: MAX_NAME_CHARS - 1] + "…"

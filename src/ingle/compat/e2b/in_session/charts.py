"""Charts of matplotlib as data: what each axis shows, in the shapes that E2B's clients read.

An axis is read by its containers and artists. Any other axis has the type `unknown`.
"""

import math
import re
from typing import Any

UNIT = re.compile(r"\((.*?)\)")

SCALES = ("linear", "log", "symlog", "logit", "function", "functionlog", "asinh")


def chart_of(figure: Any) -> Any:
    """Return the chart of a figure: of its one axis, or of all of them together. None without any."""
    found = [chart_of_axes(each) for each in figure.get_axes() if each.axison]
    found = [each for each in found if each is not None]
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
    return {"type": "superchart", "title": title or None, "elements": found}


def chart_of_axes(axes: Any) -> Any:
    from matplotlib import collections, patches

    wedges = [each for each in axes.patches if isinstance(each, patches.Wedge)]
    bars = [each for each in axes.containers if type(each).__name__ == "BarContainer"]
    boxes = box_elements(axes)
    points = [each for each in axes.collections if isinstance(each, collections.PathCollection)]
    title = axes.get_title() or None
    if wedges:
        return {"type": "pie", "title": title, "elements": pie_elements(axes, wedges)}
    if boxes:
        return {"type": "box_and_whisker", "title": title, **labels(axes), "elements": boxes}
    if bars:
        return {"type": "bar", "title": title, **labels(axes), "elements": bar_elements(axes, bars)}
    if points:
        elements = [{"label": label_of(each), "points": pairs(axes, each.get_offsets())} for each in points]
        return {"type": "scatter", "title": title, **labels(axes), **ticks(axes), "elements": elements}
    if axes.lines:
        elements = [
            {
                "label": label_of(each),
                "points": pairs(axes, zip(each.get_xdata(orig=False), each.get_ydata(orig=False), strict=False)),
            }
            for each in axes.lines
        ]
        return {"type": "line", "title": title, **labels(axes), **ticks(axes), "elements": elements}
    return {"type": "unknown", "title": title, "elements": []}


def labels(axes: Any) -> "dict[str, Any]":
    x, y = axes.get_xlabel(), axes.get_ylabel()
    return {"x_label": x or None, "y_label": y or None, "x_unit": unit(x), "y_unit": unit(y)}


def unit(label: str) -> Any:
    found = UNIT.search(label)
    return found[1] if found else None


def label_of(artist: Any) -> str:
    return str(artist.get_label())


def number(value: Any) -> Any:
    value = float(value)
    return value if math.isfinite(value) else None


# --- axes of points ---


def scale(axis: Any) -> str:
    from matplotlib import category, dates

    converter = axis.get_converter() if hasattr(axis, "get_converter") else getattr(axis, "converter", None)
    if isinstance(converter, (dates.DateConverter, dates._SwitchableDateConverter)):
        return "datetime"
    if isinstance(converter, category.StrCategoryConverter):
        return "categorical"
    named = axis.get_scale()
    return named if named in SCALES else "unknown"


def value_on(axis: Any, kind: str, value: Any) -> Any:
    """Return a position on an axis as the reader of the chart means it."""
    from matplotlib import dates

    if kind == "datetime":
        return dates.num2date(float(value)).replace(tzinfo=None).isoformat()  # type: ignore[no-untyped-call]
    if kind == "categorical":
        names = {place: name for name, place in axis.units._mapping.items()} if axis.units is not None else {}
        return names.get(round(float(value)), str(value))
    return number(value)


def pairs(axes: Any, points: Any) -> Any:
    x_kind, y_kind = scale(axes.xaxis), scale(axes.yaxis)
    return [[value_on(axes.xaxis, x_kind, x), value_on(axes.yaxis, y_kind, y)] for x, y in points]


def ticks(axes: Any) -> "dict[str, Any]":
    found: dict[str, Any] = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        kind = scale(axis)
        found[f"{name}_scale"] = kind
        places = axis.get_majorticklocs()
        found[f"{name}_ticks"] = [value_on(axis, kind, place) for place in places]
        found[f"{name}_tick_labels"] = [each.get_text() for each in axis.get_ticklabels()]
    return found


# --- bars, pies and boxes ---


def bar_elements(axes: Any, containers: Any) -> Any:
    found = []
    for container in containers:
        upright = getattr(container, "orientation", "vertical") != "horizontal"
        axis = axes.xaxis if upright else axes.yaxis
        places = [round(float(place), 6) for place in axis.get_majorticklocs()]
        names = dict(zip(places, axis.get_ticklabels(), strict=False))
        kind = scale(axis)
        for bar in container:
            at = bar.get_x() + bar.get_width() / 2 if upright else bar.get_y() + bar.get_height() / 2
            tick = names.get(round(float(at), 6))
            name = value_on(axis, kind, at) if kind == "categorical" else tick.get_text() if tick else number(at)
            size = bar.get_height() if upright else bar.get_width()
            found.append({"label": str(name), "group": str(container.get_label()), "value": number(size)})
    return found


def pie_elements(axes: Any, wedges: Any) -> Any:
    texts = [each.get_text() for each in axes.texts]
    # With percentages each wedge has two texts, its label first.
    step = max(1, len(texts) // len(wedges))
    return [
        {
            "label": each.get_label() or (texts[place * step] if place * step < len(texts) else ""),
            "angle": number(abs(each.theta2 - each.theta1)),
            "radius": number(each.r),
        }
        for place, each in enumerate(wedges)
    ]


def box_elements(axes: Any) -> Any:
    """Return the boxes of an axis. matplotlib draws each as a closed line or patch, with two whiskers and a median."""
    boxes = list(box_outlines(axes))
    if not boxes:
        return []
    names = [each.get_text() for each in axes.get_xticklabels()]
    found = []
    for place, (left, right, low, high) in enumerate(boxes):
        middle = (left + right) / 2
        median, ends, outliers = (low + high) / 2, [low, high], []
        for line in axes.lines:
            x, y = [float(each) for each in line.get_xdata()], [float(each) for each in line.get_ydata()]
            if line.get_marker() not in ("None", None, "") and x and all(abs(each - middle) < 1e-6 for each in x):
                outliers += y
            elif len(x) == 2 and abs(x[0] - x[1]) < 1e-9 and abs(x[0] - middle) < 1e-6:
                ends += y
            elif len(x) == 2 and y[0] == y[1] and abs(x[0] - left) < 1e-6 and abs(x[1] - right) < 1e-6:
                median = y[0]
        found.append(
            {
                "label": names[place] if place < len(names) else str(place + 1),
                "min": number(min(ends)),
                "first_quartile": number(low),
                "median": number(median),
                "third_quartile": number(high),
                "max": number(max(ends)),
                "outliers": [number(each) for each in outliers],
            }
        )
    return found


def box_outlines(axes: Any) -> Any:
    """Yield left, right, bottom and top of each closed rectangle that is drawn as one line or path."""
    from matplotlib import patches

    paths = [line.get_xydata() for line in axes.lines if len(line.get_xdata()) == 5]
    paths += [patch.get_path().vertices for patch in axes.patches if type(patch) is patches.PathPatch]
    for path in paths:
        x, y = [float(each[0]) for each in path], [float(each[1]) for each in path]
        if len(set(x)) == 2 and len(set(y)) <= 2:
            yield min(x), max(x), min(y), max(y)

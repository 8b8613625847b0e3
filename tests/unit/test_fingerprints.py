"""Hashes of variables that any process may tell: equal for equal values, and without code of the user."""

import collections
import copyreg
import datetime
import decimal
import itertools
import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ingle_worker.snapshot import fingerprints

PLAIN: list[Any] = [
    None,
    True,
    1,
    1 << 5000,
    1.5,
    "text",
    "\udc80",
    b"bytes",
    bytearray(b"bytes"),
    (1, (2,)),
    [1, "a", [None]],
    {"a": [1]},
    {1, 2},
    frozenset({3}),
    range(3),
    collections.OrderedDict(a=1),
    datetime.date(2024, 5, 6),
    ValueError("text"),
    np.arange(3),
    np.float64(1.5),
    pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}),
    pd.Series([1.5], name="s"),
    json,
    json.dumps,
    len,
    Path,
    int,
]


def digests(*values: Any, seconds: float = 5.0) -> list[str]:
    listed: list[dict[str, Any]] = [{} for _ in values]
    fingerprints.add_to(listed, [("name", value) for value in values], seconds)
    assert [each["identity"] for each in listed] == [id(value) for value in values]
    return [each["digest"] for each in listed]


def test_plain_values_have_hashes_that_tell_them_apart() -> None:
    found = digests(*PLAIN)
    assert "" not in found
    assert len(set(found)) == len(PLAIN)
    assert digests(*PLAIN) == found
    rows = [1]
    (before,) = digests(rows)
    rows.append(2)
    assert digests(rows) != [before]


calls: list[str] = []


class Loud(type):
    def __eq__(cls, other: object) -> bool:
        calls.append("__eq__")
        return True

    def __hash__(cls) -> int:
        calls.append("__hash__")
        return 0

    def __getattribute__(cls, name: str) -> Any:
        calls.append(name)
        return super().__getattribute__(name)


class Object(metaclass=Loud):
    def __reduce_ex__(self, protocol: Any) -> Any:
        calls.append("__reduce_ex__")
        return "Object"

    def __getattribute__(self, name: str) -> Any:
        calls.append(name)
        return super().__getattribute__(name)

    def __hash__(self) -> int:
        calls.append("__hash__ of an object")
        return 0


class SubFrame(pd.DataFrame):  # type: ignore[misc]
    def __reduce_ex__(self, protocol: Any) -> Any:
        calls.append("__reduce_ex__ of a frame")
        return super().__reduce_ex__(protocol)


class Text(str):
    def __reduce_ex__(self, protocol: Any) -> Any:
        calls.append("__reduce_ex__ of a text")
        return "Text"


def a_function() -> None: ...


def made_elsewhere() -> types.FunctionType:
    """Return a function of a module that does not hold it, and has code for such names."""
    made = types.FunctionType(a_function.__code__, {}, "missing")
    made.__module__, made.__qualname__ = "lazy_module", "missing"
    return made


def test_no_code_of_the_user_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("lazy_module")
    vars(lazy)["__getattr__"] = calls.append
    monkeypatch.setitem(fingerprints.sys.modules, "lazy_module", lazy)
    values = [Object(), [Object()], {Object(): 1}, Text("a"), ["a", Text("b")], made_elsewhere(), lazy]
    values += [np.array([Object()]), pd.DataFrame({"a": [Object()]}), SubFrame({"a": [1]})]
    values += [(each for each in "a"), lambda: None]
    calls.clear()
    assert (digests(*values), calls) == ([""] * len(values), [])
    # A class that a module holds is saved by its name.
    assert (bool(*digests(Object)), calls) == (True, [])


def test_functions_that_a_session_registers_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    (before,) = digests(decimal.Decimal(1))
    monkeypatch.setitem(copyreg.dispatch_table, decimal.Decimal, calls.append)
    calls.clear()
    assert (digests(decimal.Decimal(1)), calls) == ([before], [])


def test_the_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at before each block, and counts for all values together."""
    monkeypatch.setattr(fingerprints, "BLOCK_BYTES", 10)
    clock = itertools.count()
    monkeypatch.setattr(fingerprints, "monotonic", lambda: next(clock))
    first, large, last = digests(b"1", b"2" * 1000, b"3", seconds=20.0)
    assert (bool(first), large, last) == (True, "", "")
    assert next(clock) < 30

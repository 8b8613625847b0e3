"""Values between a program and a session: `session.get` and `session.set`, without a pickle."""

from __future__ import annotations

import asyncio
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingle import AsyncClient, Client, errors
from ingle.client import Session
from ingle_worker.wire import values
from support.server import Server, problem

pytestmark = pytest.mark.both_levels


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    with Client(server.url, server.token) as client, client.session("main") as made:
        yield made


PLAIN: list[Any] = [
    None,
    True,
    0,
    10**30,
    -1.5,
    math.inf,
    "",
    "é\udcff\n",
    [],
    [1, [2.0, None]],
    {"a": {"b": [1]}, "": 0},
    b"\x00\xff",
]


def test_plain_values_come_and_go_as_they_are(session: Session) -> None:
    for number, value in enumerate(PLAIN):
        session.set("x", value)
        assert (number, session.get("x"), type(session.get("x"))) == (number, value, type(value))
        assert session.run("repr(x)").result == {"text/plain": repr(repr(value))}
    session.run("t = (1, 'two'); n = float('nan'); b = bytearray(b'x')")
    assert (session.get("t"), session.get("b")) == ([1, "two"], b"x")
    assert math.isnan(session.get("n"))


def test_values_are_no_cells_and_count_as_variables(session: Session) -> None:
    session.run("1")
    session.set("new", [1])
    session.get("new")
    info = session.info()
    assert (info.execution_count, "new" in info.variables) == (1, True)
    result = session.run("new.append(2); new")
    assert (result.cell, result.result, result.files.created) == (2, {"text/plain": "[1, 2]"}, [])
    left = "import glob, tempfile; glob.glob(tempfile.gettempdir() + '/value-*')"
    assert session.run(left).result == {"text/plain": "[]"}


def test_arrays_of_numpy(session: Session) -> None:
    numpy = pytest.importorskip("numpy")
    for array in (
        numpy.arange(12.0).reshape(3, 4),
        numpy.array(["a", "é"]),
        numpy.array([], dtype="int8"),
        numpy.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        numpy.array(5),
        numpy.asfortranarray(numpy.ones((2, 3))),
    ):
        session.set("a", array)
        back = session.get("a")
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert (back == array).all()
    session.run("import numpy; s = numpy.float32(1.5)")
    assert (session.get("s"), type(session.get("s"))) == (1.5, numpy.float32)


def test_tables_of_pandas_polars_and_arrow(session: Session) -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(
        {"n": [1, 2, None], "t": ["a", None, "é"], "d": pandas.date_range("2026-01-01", periods=3, tz="UTC")},
        index=pandas.Index([3, 5, 7], name="key"),
    )
    session.set("df", frame)
    assert session.run("df.shape, df.index.name").result == {"text/plain": "((3, 3), 'key')"}
    pandas.testing.assert_frame_equal(session.get("df"), frame)
    for series in (pandas.Series([1, 2], name="s"), pandas.Series([1.5])):
        session.set("s", series)
        pandas.testing.assert_series_equal(session.get("s"), series)
    session.set("p", polars.DataFrame({"a": [1, 2], "b": ["x", None]}))
    assert session.get("p").equals(polars.DataFrame({"a": [1, 2], "b": ["x", None]}))
    table = pyarrow.table({"a": [[1], [2, 3]]})
    session.set("t", table)
    assert session.get("t").equals(table)


REFUSED = {
    "a set": ("{1}", "values of type builtins.set are not exchanged"),
    "a dict with numbers as keys": ("{1: 2}", "a key of type int; use keys of type str"),
    "an object": ("object()", "values of type builtins.object"),
    "an object within a list": ("[1, object()]", "values of type builtins.object"),
    "an array of objects": ("__import__('numpy').array([object()])", "an array of objects"),
    "a list that contains itself": ("(lambda l: l.append(l) or l)([])", "contains itself"),
    "a subclass of dict": ("__import__('collections').OrderedDict()", "collections.OrderedDict"),
    "a table of objects": ("__import__('pandas').DataFrame({'a': [object(), 1]})", "Arrow has no type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_values_are_refused_with_the_reason(session: Session, case: str) -> None:
    code, said = REFUSED[case]
    if "table" in case:
        pytest.importorskip("pyarrow")
    assert session.run(f"v = {code}").ok
    with pytest.raises(errors.InvalidRequest, match="the session cannot exchange v: ") as refused:
        session.get("v")
    assert said in refused.value.message
    with pytest.raises(errors.InvalidRequest, match="this program cannot send the value: ") as refused:
        session.set("w", eval(code))
    assert said in refused.value.message
    assert "w" not in session.info().variables


def test_names_that_are_none_and_variables_that_are_missing(session: Session) -> None:
    session.run("data = 1")
    with pytest.raises(errors.VariableNotFound, match="data"):
        session.get("dat")
    for name in ("a b", "a.b", "for", "x" * 2000):
        with pytest.raises(errors.InvalidRequest):
            session.set(name, 1)
    session.run("import time; time.sleep(60)", wait=0.1)
    with pytest.raises(errors.Busy):
        session.get("data")
    session.interrupt()


def test_nothing_is_unpickled_on_either_side(server: Server, tmp_path: Path) -> None:
    import pickle

    server.make_session()
    numpy = pytest.importorskip("numpy")
    file = io.BytesIO()
    numpy.save(file, numpy.array([{"a": 1}], dtype=object), allow_pickle=True)
    path = "/v1/sessions/main/variables/x/value"
    headers = {"content-type": values.MEDIA_TYPES[values.ARRAY]}
    answer = server.client.put(path, content=file.getvalue(), headers=headers)
    assert "allow_pickle" in problem(answer, 422, "invalid_request")["detail"]
    with pytest.raises(ValueError, match="allow_pickle"):
        values.read(values.ARRAY, io.BytesIO(file.getvalue()))
    for kind in values.MEDIA_TYPES:
        if kind != values.BYTES:
            with pytest.raises((ValueError, values.Unsuitable, EOFError)):
                values.read(kind, io.BytesIO(pickle.dumps(1)))
    for bad in ("text/plain", "application/x-pickle", ""):
        problem(server.client.put(path, content=b"x", headers={"content-type": bad}), 422, "invalid_request")


def test_values_over_http_have_the_content_type_of_their_kind(server: Server) -> None:
    server.make_session()
    path = "/v1/sessions/main/variables/x/value"
    put = server.client.put(path, content=b'{"a": [1]}', headers={"content-type": "application/json"})
    assert (put.status_code, put.content) == (204, b"")
    got = server.client.get(path)
    assert (got.status_code, got.headers["content-type"], got.json()) == (200, "application/json", {"a": [1]})
    problem(server.client.put(path, content=b"{", headers={"content-type": "application/json"}), 422, "invalid_request")
    assert server.execute("x")["result"] == {"text/plain": "{'a': [1]}"}


def test_the_async_client_exchanges_values_too(server: Server) -> None:
    async def exchange() -> object:
        async with AsyncClient(server.url, server.token) as client, client.session("main") as session:
            await session.set("x", {"a": 1})
            return await session.get("x")

    assert asyncio.run(exchange()) == {"a": 1}

"""Objects of many kinds, and what becomes of each when a session is saved and loaded, forked, and rolled back.

    python tests/support/kinds.py > docs/reference/kinds.md

Each kind is made in a session as `v`, with `w = [v]` beside it. Afterwards it is asked whether it still is what it was
(by value), and whether `w[0] is v` (by identity; of numbers and short texts nobody asks that). `docs/reference/kinds.md` is the
table of answers; a test keeps it so.
"""

import asyncio
import importlib.util
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ingle.service import Service
from ingle.settings import Settings


@dataclass(frozen=True)
class Kind:
    name: str
    make: str
    """Code that makes `v`."""
    same: str
    """An expression about `v` that is true if it is what it was."""
    needs: str = ""
    """A module without which there is no such object."""
    group: str = "Plain values"


def kinds(group: str, *rows: "tuple[str, str, str] | tuple[str, str, str, str]") -> list[Kind]:
    return [Kind(row[0], row[1], row[2], row[3] if len(row) > 3 else "", group) for row in rows]


KINDS: list[Kind] = [
    *kinds(
        "Plain values",
        ("int", "v = 2 ** 200", "v == 2 ** 200"),
        ("float", "v = float('inf')", "v == float('inf')"),
        ("complex", "v = 1 + 2j", "v == 1 + 2j"),
        ("str", "v = 'naïve \\ud83d\\udd25 ' + chr(0xd800)", "v.endswith(chr(0xd800))"),
        ("bytes", "v = bytes(range(256))", "v == bytes(range(256))"),
        ("bytearray", "v = bytearray(b'abc')", "v == b'abc'"),
        ("None, Ellipsis, NotImplemented", "v = (None, ..., NotImplemented)", "v == (None, ..., NotImplemented)"),
        ("range, slice", "v = (range(3), slice(1, 2))", "v == (range(3), slice(1, 2))"),
        ("memoryview", "v = memoryview(bytearray(b'abcdef'))[1:4]", "bytes(v) == b'bcd'"),
    ),
    *kinds(
        "Containers",
        ("list", "v = [1, [2]]", "v == [1, [2]]"),
        ("tuple", "v = (1, [2])", "v == (1, [2])"),
        ("dict", "v = {'a': 1, (1, 2): [3]}", "v == {'a': 1, (1, 2): [3]} and list(v)[0] == 'a'"),
        ("set, frozenset", "v = [{1, 2}, frozenset({3})]", "v == [{1, 2}, frozenset({3})]"),
        ("list that holds itself", "v = [1]; v.append(v)", "v[1] is v"),
        ("objects that hold each other", "v = {}; v['other'] = {'back': v}", "v['other']['back'] is v"),
        ("5,000 levels of lists", "v = []\nfor _ in range(5000): v = [v]", "type(v) is list and len(v) == 1"),
        ("deque", "import collections; v = collections.deque([1, 2], 5)", "v.maxlen == 5 and list(v) == [1, 2]"),
        ("defaultdict", "import collections; v = collections.defaultdict(lambda: 7)", "v['new'] == 7"),
        (
            "Counter, OrderedDict",
            "import collections; v = (collections.Counter('aab'), collections.OrderedDict(a=1))",
            "v[0]['a'] == 2 and v[1]['a'] == 1",
        ),
        ("ChainMap", "import collections; v = collections.ChainMap({'a': 1}, {'b': 2})", "v['b'] == 2"),
        ("array", "import array; v = array.array('d', [1, 2])", "v.tolist() == [1.0, 2.0]"),
        ("mapping proxy", "import types; v = types.MappingProxyType({'a': 1})", "v['a'] == 1"),
        ("views of a dict", "d = {'a': 1}; v = (d.keys(), d.values(), d.items())", "[*v[0], *v[1]] == ['a', 1]"),
        ("SimpleNamespace", "import types; v = types.SimpleNamespace(a=1)", "v.a == 1"),
        (
            "1,000 small objects",
            "class Small:\n    def __init__(self, n): self.n = n\nv = [Small(n) for n in range(1000)]",
            "v[999].n == 999",
        ),
    ),
    *kinds(
        "From the standard library",
        (
            "datetime, timezone",
            "import datetime as dt; v = dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)",
            "v.isoformat() == '2026-01-02T00:00:00+00:00'",
        ),
        (
            "Decimal, Fraction",
            "import decimal, fractions; v = (decimal.Decimal('1.10'), fractions.Fraction(1, 3))",
            "str(v[0]) == '1.10' and v[1] * 3 == 1",
        ),
        (
            "UUID, Path",
            "import uuid, pathlib; v = (uuid.UUID(int=5), pathlib.Path('a/b'))",
            "v[0].int == 5 and v[1].name == 'b'",
        ),
        ("regular expression", "import re; v = re.compile('a(.)', re.I)", "v.match('Ab')[1] == 'b'"),
        ("match of a regular expression", "import re; v = re.match('a(.)', 'ab')", "v[1] == 'b'"),
        ("StringIO, BytesIO", "import io; v = io.StringIO('one\\ntwo\\n'); v.readline()", "v.readline() == 'two\\n'"),
        (
            "open file, reading",
            "open('data.txt', 'w').write('one\\ntwo\\n')\nv = open('data.txt'); v.readline()",
            "v.readline() == 'two\\n'",
        ),
        (
            "open file, writing",
            "v = open('out.txt', 'w'); v.write('one\\n'); v.flush()",
            "(v.write('two\\n'), v.flush(), open(v.name).read())[2].startswith('one\\ntwo\\n')",
        ),
        (
            "closed file",
            "with open('shut.txt', 'w') as v: v.write('x')",
            "v.closed and v.name == 'shut.txt' and v.mode == 'w'",
        ),
        ("logger", "import logging; v = logging.getLogger('a.b')", "v is __import__('logging').getLogger('a.b')"),
        (
            "random generator",
            "import random; v = random.Random(3); v.random(); expected = random.Random(3); expected.random(); expected = expected.random()",
            "v.random() == expected",
        ),
        (
            "lock",
            "import threading; v = threading.Lock(); v.acquire()",
            "v.locked() and (v.release() or v.acquire(False))",
        ),
        (
            "RLock, Condition, Event",
            "import threading; v = (threading.RLock(), threading.Condition(), threading.Event()); v[2].set()",
            "v[0].acquire(False) and v[2].is_set()",
        ),
        ("Queue", "import queue; v = queue.Queue(); v.put(1); v.put(2)", "v.get(timeout=1) == 1"),
        (
            "weak reference",
            "class Target: pass\ntarget = Target()\nimport weakref; v = weakref.ref(target)",
            "v() is target",
        ),
        (
            "WeakValueDictionary, WeakSet",
            "class Held: pass\nheld = Held()\nimport weakref; v = (weakref.WeakValueDictionary(a=held), weakref.WeakSet([held]))",
            "v[0]['a'] is held and held in v[1]",
        ),
        ("context variable", "import contextvars; v = contextvars.ContextVar('v'); v.set(5)", "v.get() == 5"),
        (
            "sqlite connection, in memory",
            "import sqlite3; v = sqlite3.connect(':memory:'); v.execute('create table t (a)'); v.execute('insert into t values (5)'); v.commit()",
            "v.execute('select a from t').fetchall() == [(5,)]",
        ),
        (
            "sqlite connection, to a file",
            "import sqlite3; v = sqlite3.connect('base.db'); v.execute('create table if not exists t (a)'); v.execute('insert into t values (5)'); v.commit()",
            "v.execute('select a from t').fetchone() == (5,)",
        ),
        ("syntax tree", "import ast; v = ast.parse('x + 1')", "ast.unparse(v) == 'x + 1'"),
        ("module", "import os.path as v", "v.join('a', 'b') == 'a/b'"),
        (
            "module made by hand",
            "import types; v = types.ModuleType('made'); v.value = 5; exec('def f(): return value', vars(v))",
            "v.f() == 5",
        ),
        (
            "ArgumentParser",
            "import argparse; v = argparse.ArgumentParser(); v.add_argument('-a', type=int)",
            "v.parse_args(['-a', '1']).a == 1",
        ),
        (
            "executor with a thread",
            "import concurrent.futures as cf; v = cf.ThreadPoolExecutor(1); v.submit(int).result()",
            "v.submit(lambda: 1).result(timeout=1) == 1",
        ),
        (
            "executor of processes",
            "import concurrent.futures as cf; v = cf.ProcessPoolExecutor(1)",
            "v._max_workers == 1 and not v._shutdown_thread",  # a fork among the threads of other kinds may hang
        ),
        ("socket that is not connected", "import socket; v = socket.socket(); v.settimeout(3)", "v.gettimeout() == 3"),
        ("pair of sockets", "import socket; v, peer = socket.socketpair()", "(v.send(b'a'), peer.recv(1))[1] == b'a'"),
        (
            "thread that has not begun",
            "import threading; v = threading.Thread(target=int, name='mine')",
            "not v.is_alive() and v.ident is None and v.name == 'mine' and (v.start(), v.join()) == (None, None)",
        ),
        (
            "thread that has ended",
            "import threading; v = threading.Thread(target=int); v.start(); v.join(); ident = v.ident",
            "not v.is_alive() and v.ident == ident",
        ),
        (
            "running thread",
            "import threading, time; v = threading.Thread(target=time.sleep, args=(60,), daemon=True); v.start()",
            "v in threading.enumerate()",
        ),
        ("child process", "import subprocess; v = subprocess.Popen(['sleep', '60'])", "v.poll() is None"),
    ),
    *kinds(
        "Code",
        ("function", "def v(a, b=[], *c, d=1, **e):\n    'doc'\n    return a + d", "v(1) == 2 and v.__doc__ == 'doc'"),
        (
            "function that uses `global`",
            "count = 0\ndef v():\n    global count\n    count += 1\n    return count",
            "v() == 1 and v() == 2 and count == 2",
        ),
        ("recursive function", "def v(n): return 1 if n == 0 else n * v(n - 1)", "v(5) == 120"),
        ("lambda", "v = lambda n: n + 1", "v(1) == 2"),
        (
            "closures over one variable",
            "def make():\n    n = 0\n    def up():\n        nonlocal n; n += 1\n    return up, lambda: n\nv = make()",
            "(v[0](), v[1]())[1] == 1",
        ),
        (
            "decorated function",
            "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def inner(*a): return f(*a) + 100\n    return inner\n@deco\ndef v(n): return n",
            "v(1) == 101 and v.__wrapped__(1) == 1",
        ),
        (
            "lru_cache",
            "import functools\n@functools.lru_cache(maxsize=7)\ndef v(n): return n if n < 2 else v(n - 1) + v(n - 2)",
            "v(30) == 832040 and v.cache_info().maxsize == 7",
        ),
        (
            "singledispatch",
            "import functools\n@functools.singledispatch\ndef v(a): return 'object'\n@v.register\ndef _(a: int): return 'int'",
            "v(1) == 'int' and v('') == 'object'",
        ),
        ("partial", "import functools; v = functools.partial(int, base=2)", "v('101') == 5"),
        ("bound method", "class Bound:\n    n = 5\n    def get(self): return self.n\nv = Bound().get", "v() == 5"),
        ("method of a builtin", "v = [1].append", "(v(2), v.__self__)[1] == [1, 2]"),
        ("coroutine function", "async def v(): return 5", "__import__('asyncio').run(v()) == 5"),
        ("generator function", "def v():\n    yield 1", "list(v()) == [1]"),
        (
            "builtin function, C type",
            "import types; v = (len, types.FunctionType, type(None))",
            "v[0]([1]) == 1 and v[1] is types.FunctionType",
        ),
        ("code object", "v = compile('1 + 1', 'x', 'eval')", "eval(v) == 2"),
        (
            "iterators",
            "v = (iter([1, 2]), enumerate('ab'), zip('ab', 'cd'), map(str, [1, 2]))\nfor each in v: next(each)",
            "[next(each) for each in v] == [2, (1, 'b'), ('b', 'd'), '2']",
        ),
        ("itertools", "import itertools; v = itertools.count(5); next(v)", "next(v) == 6"),
        ("generator that has not begun", "v = (n for n in [1, 2])", "list(v) == [1, 2]"),
        ("generator that has begun", "v = (n for n in [1, 2]); next(v)", "next(v) == 2"),
        ("coroutine", "async def later(): return 5\nv = later()", "__import__('asyncio').run(v) == 5"),
        (
            "asynchronous generator",
            "async def items():\n    yield 5\nasync def first(items): return await items.__anext__()\nv = items()",
            "__import__('asyncio').run(first(v)) == 5",
        ),
    ),
    *kinds(
        "Classes and their objects",
        (
            "class",
            "class v:\n    a = [1]\n    @property\n    def p(self): return 5\n    @classmethod\n    def c(cls): return cls\n    @staticmethod\n    def s(): return 6",
            "v().p == 5 and v.c() is v and v.s() == 6",
        ),
        (
            "object of a class",
            "class Thing:\n    def __init__(self): self.a = [1]\nv = Thing()",
            "v.a == [1] and type(v) is Thing",
        ),
        (
            "subclass with super()",
            "class Upper:\n    def f(self): return 1\nclass Lower(Upper):\n    def f(self): return super().f() + 1\nv = Lower()",
            "v.f() == 2",
        ),
        (
            "class with __slots__",
            "class Slots:\n    __slots__ = ('a',)\nv = Slots(); v.a = 5",
            "v.a == 5 and not hasattr(v, '__dict__')",
        ),
        (
            "class with a metaclass",
            "class Meta(type):\n    def __call__(cls, *a):\n        return super().__call__(*a)\n    def hello(cls): return cls.__name__\nclass v(metaclass=Meta): pass",
            "v.hello() == 'v'",
        ),
        (
            "abstract class",
            "import abc\nclass v(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\nv.register(int)",
            "isinstance(1, v) and v.__abstractmethods__ == {'f'}",
        ),
        (
            "descriptor",
            "class Desc:\n    def __set_name__(self, owner, name): self.name = name\n    def __get__(self, obj, cls): return self.name\nclass v: field = Desc()",
            "v.field == 'field'",
        ),
        (
            "dataclass",
            "import dataclasses\n@dataclasses.dataclass(order=True)\nclass Data:\n    a: int\n    b: list = dataclasses.field(default_factory=list)\nv = Data(1)",
            "v == Data(1) and v < Data(2) and dataclasses.asdict(v) == {'a': 1, 'b': []}",
        ),
        (
            "dataclass, frozen and with slots",
            "import dataclasses\n@dataclasses.dataclass(frozen=True, slots=True)\nclass Frozen:\n    a: int\nv = Frozen(1)",
            "v == Frozen(1) and hash(v) == hash(Frozen(1))",
        ),
        (
            "namedtuple",
            "import collections; Pair = collections.namedtuple('Pair', 'a b'); v = Pair(1, 2)",
            "v._replace(a=3).a == 3 and type(v) is Pair",
        ),
        (
            "typing.NamedTuple",
            "import typing\nclass Typed(typing.NamedTuple):\n    a: int\n    b: str = 'x'\nv = Typed(1)",
            "v.b == 'x' and Typed(2).a == 2",
        ),
        (
            "Enum",
            "import enum\nclass Color(enum.Enum):\n    RED = 1\n    def hi(self): return self.name\nv = Color.RED",
            "v is Color.RED and Color(1) is v and v.hi() == 'RED'",
        ),
        (
            "Flag, IntEnum",
            "import enum\nclass Flag(enum.IntFlag):\n    A = 1; B = 2\nclass Number(enum.IntEnum):\n    ONE = 1\nv = (Flag.A | Flag.B, Number.ONE)",
            "v[0] == 3 and Flag.A in v[0] and v[1] is Number.ONE",
        ),
        (
            "generic class",
            "import typing\nT = typing.TypeVar('T')\nclass Box(typing.Generic[T]):\n    pass\nv = (Box[int], Box[int]())",
            "isinstance(v[1], Box) and v[0] == Box[int] and Box.__parameters__ == (T,)",
        ),
        (
            "Protocol, NewType",
            "import typing\nclass Proto(typing.Protocol):\n    def f(self): ...\nUser = typing.NewType('User', int)\nv = (Proto, User)",
            "v[1](5) == 5 and v[0] is Proto",
        ),
        (
            "class that registers its subclasses",
            "class Registry:\n    known = []\n    def __init_subclass__(cls): Registry.known.append(cls)\nclass Known(Registry): pass\nv = Registry.known",
            "v == [Known] and Registry.known is v",
        ),
        (
            "subclass of a builtin",
            "class MyDict(dict):\n    extra = 1\nv = MyDict(a=1); v.more = 2",
            "v == {'a': 1} and v.more == 2 and v.extra == 1",
        ),
        (
            "object with __getattr__",
            "class Proxy:\n    def __init__(self): self.a = 1\n    def __getattr__(self, name): return name\nv = Proxy()",
            "v.a == 1 and v.b == 'b'",
        ),
        (
            "object with __reduce__",
            "class Own:\n    def __init__(self, a): self.a = a\n    def __reduce__(self): return (Own, (self.a,))\nv = Own(5)",
            "v.a == 5",
        ),
        (
            "exception",
            "try:\n    1 / 0\nexcept Exception as error:\n    v = error",
            "type(v) is ZeroDivisionError and v.args == ('division by zero',)",
        ),
        (
            "exception with a cause and notes",
            "try:\n    try: 1 / 0\n    except Exception as inner: raise KeyError('x') from inner\nexcept Exception as error:\n    v = error; v.__notes__ = ['note']",
            "type(v.__cause__) is ZeroDivisionError and v.__notes__ == ['note']",
        ),
        (
            "exception of one's own",
            "class Mine(Exception):\n    def __init__(self, a, b): super().__init__(f'{a}{b}'); self.a = a\nv = Mine(1, 2)",
            "v.a == 1 and str(v) == '12'",
        ),
        (
            "traceback of an exception",
            "try:\n    1 / 0\nexcept Exception as error:\n    v = error.__traceback__",
            "(v.tb_lineno, v.tb_frame.f_code.co_name) == (2, '<module>')",
        ),
    ),
    *kinds(
        "Arrays, tables, models, figures",
        (
            "numpy array",
            "import numpy as np; v = np.arange(10.0).reshape(2, 5)",
            "(v == np.arange(10.0).reshape(2, 5)).all() and v.flags.writeable",
            "numpy",
        ),
        (
            "numpy array of 1 MB",
            "import numpy as np; v = np.arange(131072.0)",
            "v.sum() == np.arange(131072.0).sum() and v.flags.writeable",
            "numpy",
        ),
        (
            "numpy view of another array",
            "import numpy as np; whole = np.zeros(100_000); v = whole[10:20]",
            "(whole.__setitem__(10, 5.0), v[0])[1] == 5.0",
            "numpy",
        ),
        (
            "numpy array of objects",
            "import numpy as np; inner = [1]; v = np.array([inner, None, 'a'], dtype=object)",
            "v[0] is inner and v[2] == 'a'",
            "numpy",
        ),
        (
            "numpy structured, masked, datetime",
            "import numpy as np; v = (np.zeros(2, [('a', 'i4')]), np.ma.array([1, 2], mask=[0, 1]), np.array(['2026-01-01'], 'M8[D]'))",
            "v[0].dtype.names == ('a',) and v[1].sum() == 1 and str(v[2][0]) == '2026-01-01'",
            "numpy",
        ),
        (
            "numpy random generator",
            "import numpy as np; v = np.random.default_rng(5); v.random(); expected_draw = np.random.default_rng(5).random(2)[1]",
            "v.random() == expected_draw",
            "numpy",
        ),
        (
            "pandas DataFrame",
            "import pandas as pd; v = pd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': pd.Categorical(['p', 'q'])})",
            "v['a'].sum() == 3 and str(v['c'].dtype) == 'category'",
            "pandas",
        ),
        (
            "pandas Series, Index, MultiIndex",
            "import pandas as pd; v = pd.Series([1.5, 2], index=pd.MultiIndex.from_tuples([('a', 1), ('b', 2)]))",
            "v[('b', 2)] == 2",
            "pandas",
        ),
        (
            "pandas GroupBy",
            "import pandas as pd; v = pd.DataFrame({'a': [1, 1, 2], 'b': [1, 2, 3]}).groupby('a')",
            "v.sum()['b'].tolist() == [3, 3]",
            "pandas",
        ),
        ("polars DataFrame", "import polars as pl; v = pl.DataFrame({'a': [1, 2]})", "v['a'].sum() == 3", "polars"),
        (
            "polars LazyFrame",
            "import polars as pl; v = pl.DataFrame({'a': [1, 2]}).lazy().select(pl.col('a') * 2)",
            "v.collect()['a'].to_list() == [2, 4]",
            "polars",
        ),
        ("Arrow table", "import pyarrow as pa; v = pa.table({'a': [1, 2]})", "v['a'].to_pylist() == [1, 2]", "pyarrow"),
        ("scipy sparse matrix", "import scipy.sparse as sp; v = sp.eye(5, format='csr')", "v.sum() == 5.0", "scipy"),
        (
            "scikit-learn model",
            "from sklearn.linear_model import LinearRegression\nv = LinearRegression().fit([[1], [2], [3]], [2, 4, 6])",
            "round(float(v.predict([[4]])[0]), 6) == 8.0",
            "sklearn",
        ),
        (
            "scikit-learn pipeline",
            "from sklearn.pipeline import make_pipeline\nfrom sklearn.preprocessing import StandardScaler, FunctionTransformer\nv = make_pipeline(FunctionTransformer(lambda x: x), StandardScaler()).fit([[1.0], [3.0]])",
            "v.transform([[2.0]])[0][0] == 0.0",
            "sklearn",
        ),
        (
            "torch tensor",
            "import torch; v = torch.arange(5.0, requires_grad=True)",
            "v.detach().sum().item() == 10.0 and v.requires_grad",
            "torch",
        ),
        (
            "torch tensors that share memory",
            "import torch; base = torch.arange(12.0).reshape(3, 4); v = (base, base[1], base.t())",
            "v[1].zero_() is not None and v[0][1].sum() == 0 and v[2][:, 1].sum() == 0 and base is v[0]",
            "torch",
        ),
        (
            "torch tensor with a gradient",
            "import torch; v = torch.ones(3, requires_grad=True); (v * 2).sum().backward()",
            "v.is_leaf and v.grad.tolist() == [2.0, 2.0, 2.0]",
            "torch",
        ),
        (
            "torch tensors of other kinds",
            "import torch; v = (torch.eye(3).to_sparse(), torch.ones(3, dtype=torch.bfloat16), torch.empty(0), torch.tensor(5))",
            "v[0].to_dense().sum() == 3 and v[1].dtype is torch.bfloat16 and v[2].shape == (0,) and v[3].item() == 5",
            "torch",
        ),
        (
            "torch module of one's own, and its optimizer",
            "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__(); self.layer = torch.nn.Linear(2, 2)\n"
            "    def forward(self, x): return self.layer(x).relu()\n"
            "net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)\n"
            "net(torch.ones(2)).sum().backward(); opt.step(); v = (net, opt, net.layer.weight)\nexpected_out = net(torch.ones(2)).tolist()",
            "v[0](torch.ones(2)).tolist() == expected_out and v[1].param_groups[0]['params'][0] is v[2] is v[0].layer.weight",
            "torch",
        ),
        (
            "torch module",
            "import torch; v = torch.nn.Linear(2, 1); total = sum(p.sum().item() for p in v.parameters())",
            "sum(p.sum().item() for p in v.parameters()) == total",
            "torch",
        ),
        (
            "matplotlib figure and axes",
            "import matplotlib; matplotlib.use('agg')\nimport matplotlib.pyplot as plt\nv, axes = plt.subplots(); line, = axes.plot([1, 2])",
            "v.axes[0] is axes and axes.lines[0] is line and list(line.get_ydata()) == [1, 2]",
            "matplotlib",
        ),
        (
            "plotly figure",
            "import plotly.graph_objects as go; v = go.Figure(go.Bar(y=[1, 2]))",
            "list(v.data[0].y) == [1, 2]",
            "plotly",
        ),
        (
            "altair chart",
            "import altair as alt, pandas as pd; v = alt.Chart(pd.DataFrame({'a': [1]})).mark_bar().encode(x='a')",
            "v.to_dict()['mark']['type'] == 'bar'",
            "altair",
        ),
        (
            "PIL image",
            "from PIL import Image; v = Image.new('RGB', (4, 4), 'red')",
            "v.getpixel((1, 1)) == (255, 0, 0)",
            "PIL",
        ),
        ("sympy expression", "import sympy; v = sympy.Symbol('x') ** 2", "str(v.diff()) == '2*x'", "sympy"),
        (
            "networkx graph",
            "import networkx as nx; v = nx.path_graph(4)",
            "nx.shortest_path_length(v, 0, 3) == 3",
            "networkx",
        ),
        (
            "pydantic model",
            "import pydantic\nclass Model(pydantic.BaseModel):\n    a: int = 5\nv = Model(a='7')",
            "v.a == 7 and Model(a='8').a == 8",
            "pydantic",
        ),
        (
            "attrs class",
            "import attrs\n@attrs.define\nclass Attrs:\n    a: int = 5\nv = Attrs(7)",
            "v == Attrs(7) and attrs.asdict(v) == {'a': 7}",
            "attrs",
        ),
    ),
]

WAYS = ("saved", "identical", "made again", "forked", "rolled back")
NOT_IN_TABLE = {"torch"}
"""Too large to be installed for the tests; told in words."""


def present() -> list[Kind]:
    return [kind for kind in KINDS if not kind.needs or importlib.util.find_spec(kind.needs) is not None]


@asynccontextmanager
async def a_service() -> AsyncIterator[Service]:
    with tempfile.TemporaryDirectory() as folder:
        async with Service.local(
            Settings(preload=["numpy", "pandas"], pool=1, isolation="none"), Path(folder) / "home"
        ) as service:
            yield service


async def run(service: Service, code: str, session: str) -> str:
    result = await service.execute(session, code, timeout=120)
    assert result.success, (code, result.error)
    return result.stdout


async def ask(service: Service, chosen: list[Kind], session: str) -> list[tuple[bool, bool]]:
    """Of each kind: whether it is what it was, and whether two names still have one object."""
    told = []
    for number, kind in enumerate(chosen):
        code = (
            f"try:\n    v = v_{number}; print(bool({kind.same}))\nexcept BaseException as problem:\n    print(repr(problem))\n"
            f"try:\n    print(w_{number}[0] is v_{number} or type(v_{number}) in (int, float, complex, str, bytes))\nexcept BaseException as problem:\n    print(problem)\n"
            "v = None"
        )
        lines = (await run(service, code, session)).splitlines()
        told.append((lines[0] == "True", lines[1] == "True"))
    return told


async def look(
    service: Service, chosen: list[Kind], python: str | None = None, folder: str | None = None
) -> list[tuple[bool, ...]]:
    """For each kind, whether it was kept in each of the ways; in a folder that all of the sessions can reach."""
    await service.create_session("main", python=python, cwd=folder)
    for number, kind in enumerate(chosen):
        await run(service, f"{kind.make}\nv_{number} = v; w_{number} = [v]; del v", "main")
    saved = await service.save_session("main", "kinds")
    await service.load_session("kinds", "loaded", python=python)
    await service.load_session("kinds", "again", python=python, rerun=True)
    await service.fork_session("main", "forked")
    await service.checkpoint("main", "before")
    await run(service, "\n".join(f"v_{number} = w_{number} = None" for number in range(len(chosen))), "main")
    await service.rollback("main", "before")
    told = [await ask(service, chosen, session) for session in ("loaded", "again", "forked", "main")]
    names = {each.name for each in saved.skipped}
    for number, kind in enumerate(chosen):
        # What is not kept is named, always.
        assert told[0][number][0] or f"v_{number}" in names, (kind.name, saved.skipped)
    return [
        (*loaded, again[0] and again[1], forked[0] and forked[1], back[0] and back[1])
        for loaded, again, forked, back in zip(*told, strict=True)
    ]


def table(chosen: list[Kind], answers: list[tuple[bool, ...]]) -> str:
    lines = [
        "# Which objects are kept",
        "",
        "Made by `python tests/support/kinds.py`; a test keeps it true. *Saved*: after saving and loading, it is what it was.",
        "*Identical*: two names that had one object have one again. *Forked*, *rolled back*: both, in a fork of the session and",
        "after going back to a checkpoint. What is not saved is always named in the answer, with the reason and the cell that",
        "made it. *By rerun*: loading with `rerun` runs that cell again, which makes it. Tensors, modules and optimizers of torch,",
        "which is too large to be installed for the tests, are kept in every way; a test shows it where torch is.",
    ]
    group = ""
    for kind, answer in zip(chosen, answers, strict=True):
        if kind.needs in NOT_IN_TABLE:
            continue
        if kind.group != group:
            group = kind.group
            lines += [
                "",
                f"## {group}",
                "",
                "| Kind | Saved | Identical | Forked | Rolled back |",
                "|---|---|---|---|---|",
            ]
        saved, identical, again, *copied = answer
        kept = [*(each or ("by rerun" if again else "no") for each in (saved, identical)), *copied]
        marks = " | ".join({True: "yes", False: "no"}.get(each, each) for each in kept)
        lines.append(f"| {kind.name} | {marks} |")
    return "\n".join([*lines, ""])


async def main() -> None:
    async with a_service() as service:
        chosen = present()
        print(table(chosen, await look(service, chosen)), end="")


if __name__ == "__main__":
    asyncio.run(main())

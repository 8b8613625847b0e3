"""Thirty cells of many kinds, as people have them in one notebook, and what each shows."""

from __future__ import annotations

CELLS: list[tuple[str, str]] = [
    ("x = 1", ""),
    ("x + 1", "2"),
    ("print('text')", "text\n"),
    ("import sys\nprint('err', file=sys.stderr)", "err\n"),
    ("def double(n):\n    return 2 * n", ""),
    ("double(x)", "2"),
    ("[double(n) for n in range(3)]", "[0, 2, 4]"),
    ("'é😀'", "'é😀'"),
    ("print('é😀')", "é😀\n"),
    (
        "class Point:\n    def __init__(self, x):\n        self.x = x\n"
        "    def __repr__(self):\n        return f'Point({self.x})'",
        "",
    ),
    ("Point(3)", "Point(3)"),
    ("p = Point(4);", ""),
    ("p", "Point(4)"),
    ("import asyncio\nawait asyncio.sleep(0, 'awaited')", "'awaited'"),
    ("%%bash\necho from bash", "from bash\n"),
    ("!echo one command", "one command\n"),
    ("names = !echo a b\nnames", "['a b']"),
    ("%time y = 5\ny", None),
    ("import json\nprint(json.dumps({'a': [1, None]}))", '{"a": [1, null]}\n'),
    ("from IPython.display import display, HTML\ndisplay(HTML('<b>bold</b>'))", "<IPython.core.display.HTML object>"),
    ("for n in range(3):\n    print(n)", "0\n1\n2\n"),
    ("print('a', end='')\nprint('b')", "ab\n"),
    ("import os\nos.system('echo child')", "child\n0"),
    ("with open('note.txt', 'w') as file:\n    file.write('kept')", ""),
    ("open('note.txt').read()", "'kept'"),
    ("lambda: 1", None),
    ("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    print('caught', error)", "caught division by zero\n"),
    ("None", ""),
    ("print('x' * 100_000)", "x" * 100_000 + "\n"),
    ("sum(range(1000))", "499500"),
]
"""Code, and the text it shows; None for a text that differs from run to run."""

assert len(CELLS) == 30


def shown(outputs: list[dict[str, object]]) -> str:
    """Return the text of a cell's outputs."""
    found = []
    for output in outputs:
        if output["output_type"] == "stream":
            text = output["text"]
        elif output["output_type"] == "error":
            text = f"{output['ename']}: {output['evalue']}"
        else:
            text = output["data"]["text/plain"]  # type: ignore[index]
        found.append(text if isinstance(text, str) else "".join(text))  # type: ignore[arg-type]
    return "".join(found)

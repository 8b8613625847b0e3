"""Contract, manifest and tests agree: a promise has an entry, a proven entry a test, a mark a promise.

Marks are read from the source by ``ast``; nothing is imported or run, so a test that the machine at hand must
skip still counts. One that is skipped or expected to fail everywhere proves nothing, and does not count.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pytest

from requirements import REQUIREMENTS, Requirement
from support.checkout import beside

TESTS = Path(__file__).resolve().parent
CONTRACT = "docs/contract.md"

HEADING = re.compile(r"## (?P<title>.+)")
PROMISE = re.compile(r"- `(?P<id>[a-z]+\.[a-z0-9-]+)`:")


# Reading


@dataclass
class Claims:
    """What the tests say they prove: id to the places that say so, and marks that cannot be read."""

    places: dict[str, list[str]] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def promises_of(text: str) -> list[tuple[str, str]]:
    """(id, heading) of each promise, in the order of the page."""
    found, title = [], ""
    for line in text.splitlines():
        if heading := HEADING.fullmatch(line):
            title = heading["title"]
        elif promise := PROMISE.match(line):
            found.append((promise["id"], title))
    return found


def claims_of(sources: Mapping[str, str]) -> Claims:
    """Claims in the given test files (name to source)."""
    claims = Claims()
    for name, source in sources.items():
        for mark in _req_marks(ast.parse(source, name).body, inherited=()):
            place = f"{name}:{mark.lineno}"
            literal = [a.value for a in mark.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if not literal or len(literal) < len(mark.args) or mark.keywords:
                claims.unreadable.append(place)
            for id in literal:
                claims.places.setdefault(id, []).append(place)
    return claims


def sources_under(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root.parent).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("test_*.py"))
    }


def _req_marks(body: Iterable[ast.stmt], inherited: tuple[ast.expr, ...]) -> Iterator[ast.Call]:
    """The req marks that reach at least one test, from a module's or a class's body down."""
    body = list(body)
    around = (*inherited, *_pytestmark(body))
    seen: set[ast.Call] = set()
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            marks = list(_req_marks(node.body, (*around, *node.decorator_list)))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            applied = (*around, *node.decorator_list)
            if any(_is_mark(decorator, "skip", "xfail") for decorator in applied):
                continue
            # Walking each expression also finds marks inside pytest.param(..., marks=...).
            marks = [n for e in applied for n in ast.walk(e) if isinstance(n, ast.Call) and _is_mark(n, "req")]
        else:
            continue
        for mark in marks:
            if mark not in seen:
                seen.add(mark)
                yield mark


def _pytestmark(body: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    for node in body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value:
            targets, value = [node.target], node.value
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in targets):
            yield from value.elts if isinstance(value, ast.List | ast.Tuple) else [value]


def _is_mark(node: ast.expr, *names: str) -> bool:
    """Whether this is ``pytest.mark.<name>`` or ``mark.<name>``, called or bare."""
    written = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    return written in {f"{prefix}mark.{name}" for name in names for prefix in ("", "pytest.")}


# Judging: each function returns one sentence a problem, which says what to do.


def contract_problems(promises: list[tuple[str, str]], manifest: Iterable[Requirement]) -> list[str]:
    manifest = list(manifest)
    headings = dict(promises)
    entries = {entry.id: entry for entry in manifest}
    return [
        *(f"{id} stands twice in docs/contract.md: keep one" for id in _twice(id for id, _ in promises)),
        *(f"{id} stands twice in tests/requirements.py: keep one" for id in _twice(e.id for e in manifest)),
        *(
            f"{id} is promised in docs/contract.md ({heading}) only: add it to tests/requirements.py"
            for id, heading in headings.items()
            if id not in entries
        ),
        *(
            f"{id} is in tests/requirements.py only: promise it in docs/contract.md, or drop the entry"
            for id in entries
            if id not in headings
        ),
        *(
            f"{id} stands under {headings[id]!r} in docs/contract.md: correct its source ({entry.source!r})"
            for id, entry in entries.items()
            if id in headings and entry.source != headings[id]
        ),
    ]


def state_problems(manifest: Iterable[Requirement]) -> list[str]:
    found = []
    for entry in manifest:
        if entry.state not in ("proven", "later"):
            found.append(f"{entry.id} has the state {entry.state!r}: make it 'proven' or 'later'")
        elif entry.state == "later" and not entry.reason.strip():
            found.append(f"{entry.id} is 'later' without a reason: say in tests/requirements.py what it waits for")
    return found


def claim_problems(claims: Claims, manifest: Iterable[Requirement]) -> list[str]:
    states = {entry.id: entry.state for entry in manifest}
    found = [f"{place}: pytest.mark.req takes ids as plain strings, at least one" for place in claims.unreadable]
    for id, state in states.items():
        if state == "proven" and id not in claims.places:
            found.append(
                f"{id} is 'proven', yet no test names it: mark one with @pytest.mark.req({id!r}),"
                " or make it 'later' with a reason in tests/requirements.py"
            )
    for id, places in claims.places.items():
        if id not in states:
            found.append(
                f"{', '.join(places)}: unknown id {id!r}: correct the spelling,"
                " or add it to docs/contract.md and tests/requirements.py"
            )
        elif states[id] == "later":
            found.append(f"{id} is 'later', yet {', '.join(places)} proves it: make it 'proven'")
    return found


def _twice(ids: Iterable[str]) -> list[str]:
    return [id for id, count in Counter(ids).items() if count > 1]


def _report(problems: list[str]) -> str:
    return "\n" + "\n".join(f"  {problem}" for problem in problems)


# The agreement itself


def test_contract_and_manifest_hold_the_same_ids() -> None:
    promises = promises_of(beside(CONTRACT).read_text(encoding="utf-8"))
    assert promises, f"no promise found in {CONTRACT}: a line begins with - `room.name`:"
    problems = contract_problems(promises, REQUIREMENTS)
    assert not problems, _report(problems)


def test_every_entry_has_a_state_and_what_waits_has_a_reason() -> None:
    problems = state_problems(REQUIREMENTS)
    assert not problems, _report(problems)


def test_every_proven_id_has_a_test_and_every_test_a_known_id() -> None:
    problems = claim_problems(claims_of(sources_under(TESTS)), REQUIREMENTS)
    assert not problems, _report(problems)


# The judges, tried on cases made for them

PROVEN = Requirement("a.proven", "2. Cells", "proven")
LATER = Requirement("a.later", "2. Cells", "later", "comes with the roof")


def claims_in(source: str) -> Claims:
    return claims_of({"tests/test_x.py": dedent(source)})


def test_marks_are_found_on_functions_classes_parameters_and_modules() -> None:
    claims = claims_in(
        """
        import pytest
        from pytest import mark
        pytestmark = [pytest.mark.req("on.module"), pytest.mark.timeout(5)]

        @pytest.mark.req("on.function", "on.function-too")
        def test_one(): ...

        @mark.req("on.coroutine")
        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.req("on.parameter"))])
        async def test_two(n): ...

        @pytest.mark.req("on.class")
        class TestThree:
            pytestmark = pytest.mark.req("on.class-body")

            @pytest.mark.req("on.method")
            def test_four(self): ...
        """
    )
    assert claims == Claims(
        places={
            "on.module": ["tests/test_x.py:4"],
            "on.function": ["tests/test_x.py:6"],
            "on.function-too": ["tests/test_x.py:6"],
            "on.coroutine": ["tests/test_x.py:9"],
            "on.parameter": ["tests/test_x.py:10"],
            "on.class": ["tests/test_x.py:13"],
            "on.class-body": ["tests/test_x.py:15"],
            "on.method": ["tests/test_x.py:17"],
        }
    )


@pytest.mark.parametrize(
    "source",
    [
        'pytestmark = pytest.mark.req("a.proven")',
        '@pytest.mark.req("a.proven")\ndef helper(): ...',
        '@pytest.mark.req("a.proven")\nclass TestEmpty: ...',
        '@pytest.mark.req("a.proven")\n@pytest.mark.skip(reason="some day")\ndef test_it(): ...',
        '@pytest.mark.req("a.proven")\n@pytest.mark.xfail\ndef test_it(): ...',
        'pytestmark = pytest.mark.skip\n@pytest.mark.req("a.proven")\ndef test_it(): ...',
        "# pytest.mark.req('a.proven')\ndef test_it(): 'pytest.mark.req(\"a.proven\")'",
    ],
)
def test_a_mark_that_no_test_runs_under_proves_nothing(source: str) -> None:
    assert claims_in(source) == Claims()
    assert [problem.split(":")[0] for problem in claim_problems(claims_in(source), [PROVEN])] == [
        "a.proven is 'proven', yet no test names it"
    ]


@pytest.mark.parametrize("arguments", ["", "ID", "'a.proven', ID", "id='a.proven'", "*IDS"])
def test_a_mark_that_cannot_be_read_is_a_problem(arguments: str) -> None:
    claims = claims_in(f"@pytest.mark.req({arguments})\ndef test_it(): ...")
    assert claim_problems(claims, [])[0] == (
        "tests/test_x.py:1: pytest.mark.req takes ids as plain strings, at least one"
    )


def test_an_unknown_id_and_a_later_id_with_a_test_are_problems() -> None:
    claims = claims_in('@pytest.mark.req("a.proven", "a.later", "a.typo")\ndef test_it(): ...')
    assert claim_problems(claims, [PROVEN, LATER]) == [
        "a.later is 'later', yet tests/test_x.py:1 proves it: make it 'proven'",
        "tests/test_x.py:1: unknown id 'a.typo': correct the spelling,"
        " or add it to docs/contract.md and tests/requirements.py",
    ]


def test_an_entry_without_a_reason_or_with_an_odd_state_is_a_problem() -> None:
    entries = [
        PROVEN,
        LATER,
        Requirement("a.bare", "2. Cells", "later", " "),
        Requirement("a.odd", "", "soon"),
    ]
    assert state_problems(entries) == [
        "a.bare is 'later' without a reason: say in tests/requirements.py what it waits for",
        "a.odd has the state 'soon': make it 'proven' or 'later'",
    ]


def test_contract_and_manifest_are_compared_both_ways() -> None:
    promises = promises_of(
        "## 2. Cells\n\n- `a.proven`: yes\n  and `more.of-it`: text\n- `a.new`: fresh\n"
        "\n## 3. Output\n\n### Streams\n- `a.later`: no\n"
    )
    assert promises == [("a.proven", "2. Cells"), ("a.new", "2. Cells"), ("a.later", "3. Output")]
    gone = Requirement("a.gone", "2. Cells", "proven")
    assert contract_problems([*promises, promises[0]], [PROVEN, LATER, gone, gone]) == [
        "a.proven stands twice in docs/contract.md: keep one",
        "a.gone stands twice in tests/requirements.py: keep one",
        "a.new is promised in docs/contract.md (2. Cells) only: add it to tests/requirements.py",
        "a.gone is in tests/requirements.py only: promise it in docs/contract.md, or drop the entry",
        "a.later stands under '3. Output' in docs/contract.md: correct its source ('2. Cells')",
    ]

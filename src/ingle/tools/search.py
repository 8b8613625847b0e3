"""Search for tools by words, and the lines that describe them to a model. Pure."""

import re
from dataclasses import dataclass

from ingle.tools.shapes import ToolSpec
from ingle_worker.wire import signatures

WORD = re.compile(r"[^\W_]+")
MAX_LINE_CHARS = 400


@dataclass(frozen=True)
class Place:
    """A tool and where code finds it."""

    server: str
    name: str
    """Path in Python: `github.search_issues`."""
    tool: ToolSpec


def places_of(server: str, module: str, tools: list[ToolSpec]) -> list[Place]:
    names = signatures.python_names([tool.name for tool in tools])
    return [Place(server, f"{module}.{name}", tool) for name, tool in zip(names, tools, strict=True)]


def find_places(query: str, among: list[Place], limit: int) -> list[Place]:
    """Return the tools that fit the words best. A word in the name counts more than one in the description."""
    wanted = _words(query)
    scored = []
    for place in among:
        name, text = _words(f"{place.server} {_split(place.tool.name)}"), _words(place.tool.description)
        arguments = _words(" ".join(map(str, _properties(place.tool))))
        score = sum(4 * _in(word, name) + 2 * _in(word, text) + _in(word, arguments) for word in wanted)
        if score or not wanted:
            scored.append((-score, place.name, place))
    scored.sort(key=lambda each: each[:2])
    return [place for _, _, place in scored[:limit]]


def line_of(place: Place) -> str:
    """Return a tool in one line: where it is, its signature, what it does."""
    signature = signatures.signature_text(place.name, place.tool.input_schema, place.tool.output_schema)
    about = " ".join(signatures.visible(place.tool.description, 2 * MAX_LINE_CHARS).split())
    text = f"{signature}  # {about}" if about else signature
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"


def _properties(tool: ToolSpec) -> list[str]:
    properties = tool.input_schema.get("properties")
    return list(properties) if isinstance(properties, dict) else []


def _split(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)


def _words(text: str) -> set[str]:
    return {_stem(word) for word in WORD.findall(text.lower())}


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _in(word: str, words: set[str]) -> bool:
    return word in words or (len(word) > 3 and any(each.startswith(word) for each in words))

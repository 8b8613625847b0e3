"""Names of the Python client, from their signatures and docstrings."""

import inspect
import re
import textwrap
from typing import Any

from ingle.client import CellFailed, Client, Item, ItemResult, Result, Session
from reference.markdown import summary


def names() -> str:
    """Return each public class with its public methods and properties."""
    return "\n".join(_class(each) for each in (Client, Session, Result, ItemResult, Item, CellFailed))


def _class(kind: type[Any]) -> str:
    members = {
        name: member
        for base in reversed(kind.__mro__)
        if base.__module__.startswith("ingle.client")
        for name, member in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }
    parts = [f"### {kind.__name__}\n\n{_text(summary(kind))}"]
    if inspect.isfunction(kind.__dict__.get("__init__")) and kind is Client:
        parts.append(_code(f"{kind.__name__}{_signature(kind.__init__)}"))
    for name, member in members.items():
        if isinstance(member, property):
            parts.append(f"#### {kind.__name__}.{name}\n\n{_text(summary(member))}")
        else:
            call = _code(f"{name}{_signature(member)}")
            parts.append(f"#### {kind.__name__}.{name}()\n\n{call}\n{_text(summary(member))}")
    return "\n".join(parts)


def _signature(function: Any) -> str:
    whole = inspect.signature(function)
    parameters = [each for name, each in whole.parameters.items() if name != "self"]
    line = _plain(str(whole.replace(parameters=parameters)))
    if len(line) <= 90:
        return line
    returned = _plain(line.rpartition(" -> ")[2])
    lines, keyword = [], False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not keyword:
            keyword = True
            lines.append("    *,")
        lines.append(f"    {_plain(str(each))},")
    return "(\n" + "\n".join(lines) + f"\n) -> {returned}"


def _plain(text: str) -> str:
    """Shorten `ingle.events.Saved` to `Saved`, and drop the quotes of forward references."""
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    return re.sub(r"'([A-Za-z][\w\[\], |.]*)'", r"\1", text) if "->" in text or ": '" in text else text


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _text(docstring: str) -> str:
    """Return the docstring as Markdown: an indented example becomes a block of code."""
    blocks = []
    for part in re.split(r"\n\n", docstring):
        if part.startswith("    "):
            blocks.append(f"```text\n{textwrap.dedent(part)}\n```")
        else:
            blocks.append(part)
    return "\n\n".join(blocks) + "\n" if docstring else ""

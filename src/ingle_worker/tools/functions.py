"""Functions of tools: real Python functions with signature, annotations and docstring, made from a description.

They are closures. No source text is made from a description, so nothing in it can run.
"""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from ingle_worker.tools import values
from ingle_worker.tools.calls import Calls
from ingle_worker.tools.schema import annotation, check, plain_types
from ingle_worker.wire import signatures
from ingle_worker.wire.cells import CALL

MAX_DOC_CHARS = 10_000
MAX_PARAMETER_CHARS = 500


class Omitted:
    """Default of a parameter that the tool chooses itself."""

    def __repr__(self) -> str:
        return "..."


OMITTED = Omitted()


def make_function(calls: Calls, server: str, module: str, name: str, tool: dict[str, Any]) -> Callable[..., Any]:
    """Return the function `name` of a tool. Its attribute `aio` is the same as a coroutine function."""
    schema = tool.get("input_schema")
    key: str = tool["name"]
    known = signatures.parameters(schema)
    signature = _signature(known, schema, tool.get("output_schema"))
    keys = {} if known is None else {each.name: each for each in known}
    aliases = {} if known is None else {each.key: each.name for each in known if each.key != each.name}
    required = {each.name for each in known or () if each.required}
    plain = {each.name: plain_types(each.schema, schema) for each in known or ()}
    shown = f"{module.rpartition('.')[2]}.{name}()"

    def bind(args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        if aliases:
            given = {aliases.get(each, each): value for each, value in given.items()}
        # Most calls give each parameter once. `Signature.bind` takes as long as the rest of this function.
        merged = dict(zip(keys, args))  # noqa: B905  the lengths are compared below
        merged.update(given)
        if len(merged) == len(args) + len(given) and required <= merged.keys() <= keys.keys():
            return merged
        try:
            return signature.bind(*args, **given).arguments
        except TypeError as error:
            raise TypeError(f"{shown} {error}; it is {name}{signature}") from None

    def arguments(args: tuple[Any, ...], given: dict[str, Any]) -> bytes:
        made = {}
        for each, value in bind(args, given).items():
            parameter = keys.get(each)
            if parameter is not None and type(value) in plain[each]:  # most arguments: nothing to convert or check
                made[parameter.key] = value
            elif parameter is None:
                made.update({other: values.plain(one) for other, one in value.items()})
            elif value is not OMITTED:
                made[parameter.key] = values.plain(value)
                check(made[parameter.key], parameter.schema, schema, f"{shown}: {each}")
        return values.encode(made)

    def function(*args: Any, **given: Any) -> Any:
        return values.result_of(calls.request(CALL, server, key, arguments(args, given)))

    async def aio(*args: Any, **given: Any) -> Any:
        return values.result_of(await calls.request_async(CALL, server, key, arguments(args, given)))

    doc = _doc(tool, known, schema)
    annotations = {each.name: each.annotation for each in signature.parameters.values()}
    both: tuple[tuple[Any, str], ...] = ((function, name), (aio, f"{name}.aio"))
    for made, its_name in both:
        made.__name__ = its_name.rpartition(".")[2]
        made.__qualname__ = its_name
        made.__module__ = module
        made.__doc__ = doc
        made.__annotations__ = {**annotations, "return": signature.return_annotation}
        made.__signature__ = signature
    function.aio = aio  # type: ignore[attr-defined]
    return function


def _signature(known: list[signatures.Parameter] | None, schema: Any, output: Any) -> Signature:
    returns = annotation(output, output) if isinstance(output, dict) else Any
    if known is None:
        return Signature([Parameter("arguments", Parameter.VAR_KEYWORD)], return_annotation=returns)
    made = []
    for each in known:
        default: Any = Parameter.empty if each.required else each.schema.get("default", OMITTED)
        # A mutable default would be shared, and the tool has its own anyway.
        if isinstance(default, (list, dict)):
            default = OMITTED
        kind = annotation(each.schema, schema)
        made.append(Parameter(each.name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind))
    if isinstance(schema, dict) and (schema.get("additionalProperties") or isinstance(schema.get("$ref"), str)):
        taken = [each.name for each in made]
        made.append(Parameter(signatures.python_names([*taken, "others"])[-1], Parameter.VAR_KEYWORD))
    return Signature(made, return_annotation=returns)


def _doc(tool: dict[str, Any], known: list[signatures.Parameter] | None, schema: Any) -> str:
    lines = [signatures.visible(tool.get("description"), MAX_DOC_CHARS).strip()]
    told = []
    for each in known or ():
        text = signatures.visible(each.schema.get("description"), MAX_PARAMETER_CHARS).replace("\n", " ").strip()
        told.append(f"    {each.name}: {signatures.short_type(each.schema, schema)}{'. ' + text if text else ''}")
    if told:
        lines += ["", "Args:", *told]
    output = tool.get("output_schema")
    if isinstance(output, dict):
        fields = signatures.parameters(output) or []
        kind = signatures.short_type(output, output)
        names = ", ".join(f"{each.key}: {signatures.short_type(each.schema, output)}" for each in fields)
        lines += ["", f"Returns: {kind}{' with ' + names if names else ''}"[:MAX_DOC_CHARS]]
    hints = [text for name, text in HINTS if tool.get(name)]
    if hints:
        lines += ["", "; ".join(hints) + "."]
    return "\n".join(lines).strip()


HINTS = (
    ("read_only", "The tool says that it only reads"),
    ("destructive", "The tool says that it may destroy"),
    ("asks", "a person is asked before it is called"),
)

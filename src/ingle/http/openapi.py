"""The OpenAPI document, made from the table of operations and the structs that parse and answer requests."""

import re
from typing import Any

import msgspec
from msgspec import Struct

from ingle import __version__
from ingle.http.auth.guard import OPEN_PATHS
from ingle.http.field_docs import describe_fields
from ingle.http.problems import MEDIA_TYPE, Problem
from ingle.http.routes.table import JSON, Media, Operation

PROBLEMS = {
    400: "not JSON, or not HTTP",
    401: "no valid token",
    403: "a foreign Origin, or a token without the scope",
    404: "no such session, cell, file or route",
    405: "the path does not take this method",
    408: "the request came too slowly",
    409: "the session is busy, exists, or does not wait for input",
    413: "the body is too large",
    414: "the URL is too long",
    416: "the file has nothing where a part of it was asked for",
    421: "a Host this server does not answer to",
    422: "a field is unknown, missing, of the wrong type, or out of range",
    429: "a limit on sessions, cells or bytes is reached; see Retry-After",
    431: "the headers are too large",
    503: "the server is stopping, or no worker can be started",
    504: "a variable's own code took too long",
}

PARAMETERS: dict[str, dict[str, Any]] = {
    "session_id": {"type": "string", "minLength": 1},
    "cell": {"type": "integer", "minimum": 1},
    "path": {"type": "string", "minLength": 1},
    "name": {"type": "string", "minLength": 1},
    "file": {"type": "string", "minLength": 1},
    "task_id": {"type": "string", "minLength": 1},
    "grant_id": {"type": "string", "minLength": 1},
    "share_id": {"type": "string", "minLength": 1},
    "version": {"type": "string", "minLength": 1},
    "view": {"type": "string", "minLength": 1},
    "server": {"type": "string", "minLength": 1},
    "approval_id": {"type": "string", "minLength": 1},
    "node": {"type": "string", "minLength": 1},
}

_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")


def make_document(operations: list[Operation]) -> dict[str, Any]:
    shapes: list[Any] = [Problem]
    for operation in operations:
        if isinstance(operation.body, type):
            shapes.append(operation.body)
        for answers in operation.answers.values():
            shapes += [shape for each in _listed(answers) if (shape := _shape(each)) is not None]
    schemas, components = msgspec.json.schema_components(shapes, ref_template="#/components/schemas/{name}")
    describe_fields(shapes, components)
    # In the order they were given; types that are equal have equal schemas.
    known = dict(zip(map(repr, shapes), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = _PLACE.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _describe(operation, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ingle", "version": __version__, "description": "Live Python sessions."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(operation: Operation, known: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _name(operation),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": PARAMETERS[name]}
                for name in _PLACE.findall(operation.path)
            ),
            *_query(operation.query),
            *({"name": name, "in": "header", "schema": {"type": "string"}} for name in operation.headers),
        ],
        "responses": {str(status): _answer(answers, known) for status, answers in operation.answers.items()},
    }
    for status, text in PROBLEMS.items():
        answer = described["responses"].setdefault(str(status), {"content": {}})
        answer["description"] = text
        answer["content"][MEDIA_TYPE] = {"schema": known[repr(Problem)]}
    if isinstance(operation.body, type):
        fields = msgspec.structs.fields(operation.body)
        described["requestBody"] = {
            "required": any(each.required for each in fields),
            "content": {JSON: {"schema": known[repr(operation.body)]}},
        }
    elif isinstance(operation.body, Media):
        described["requestBody"] = {"required": True, "content": {operation.body.type: {}}}
    if operation.path in OPEN_PATHS:
        described["security"] = []
    return described


def _query(kind: type[Struct]) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components((kind,))
    describe_fields([kind], components)
    shape = components[kind.__name__]
    return [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in shape["properties"].items()
    ]


def _answer(answers: Any, known: dict[str, Any]) -> dict[str, Any]:
    by_media: dict[str, list[Any]] = {}
    for each in _listed(answers):
        media = each.type if isinstance(each, Media) else JSON
        shapes = by_media.setdefault(media, [])
        if (shape := _shape(each)) is not None:
            shapes.append(known[repr(shape)])
    if not by_media:
        return {"description": "done, without a body"}
    return {"description": "done", "content": {media: _either(shapes) for media, shapes in by_media.items()}}


def _either(shapes: list[Any]) -> dict[str, Any]:
    if len(shapes) < 2:
        return {"schema": shapes[0]} if shapes else {}
    return {"schema": {"anyOf": shapes}}


def _listed(answers: Any) -> list[Any]:
    if answers is None:
        return []
    return answers if isinstance(answers, list) else [answers]


def _shape(answer: Any) -> Any:
    return answer.shape if isinstance(answer, Media) else answer


def _name(operation: Operation) -> str:
    words = [word for word in re.split(r"[^a-z]+", _PLACE.sub(r"\1", operation.path)) if word and word != "v"]
    return "_".join([operation.method.lower(), *words])

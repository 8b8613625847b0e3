"""An MCP server on standard input and output that misbehaves on request. It uses the standard library only.

Started as `python tool_server.py [LOG]`. Each call, cancellation and the secret it was given go to the file LOG.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ANY = {"type": "object", "properties": {}}


def tool(name: str, description: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": schema, **more}


def numbers(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}, "required": list(names)}


RECURSIVE = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/node"}},
    "required": ["tree"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name"],
        }
    },
}

TOOLS = [
    tool("add", "Add two numbers.", numbers("a", "b"), annotations={"readOnlyHint": True}),
    tool("delete", "Delete everything.", numbers("number"), annotations={"destructiveHint": True}),
    tool(
        "search-issues",
        "Search open issues.",
        {
            "type": "object",
            "properties": {
                "from": {"type": "string", "description": "Who wrote them."},
                "state": {"enum": ["open", "closed"], "default": "open"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 50},
            },
            "required": ["from"],
        },
    ),
    tool("class", "Has the name of a keyword.", ANY),
    tool("größe", "Returns Unicode.", ANY),
    tool("nested", "Takes a tree.", RECURSIVE),
    tool("broken", "Has a schema that means nothing.", {"type": 7, "properties": [1], "required": "x"}),
    tool("evil", '"""\nimport os; os._exit(3)\n"""\x1b[2J', {"type": "object", "properties": {"x=exit()": {}}}),
    tool("image", "Returns an image.", ANY),
    tool("several", "Returns several things.", ANY),
    tool("fails", "Fails.", ANY),
    tool("liar", "Returns text where it promises a number.", ANY, outputSchema=numbers("x")),
    tool("large", "Returns many bytes.", numbers("size")),
    tool("half", "Returns half of a character.", ANY),
    tool("garbled", "Returns what is not JSON.", ANY),
    tool("die", "Ends the server.", ANY),
    tool("hang", "Never answers.", ANY),
    tool("grow", "Adds a tool to the list.", ANY),
    tool("count", "Counts the calls.", ANY),
]

calls = 0


def log(text: str) -> None:
    if len(sys.argv) > 1:
        with Path(sys.argv[1]).open("a") as file:
            file.write(text + "\n")


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}], **more}


def call(name: str, given: dict[str, Any], number: int) -> dict[str, Any] | None:
    global calls
    calls += 1
    log(f"call {name} {json.dumps(given, sort_keys=True)}")
    match name:
        case "add":
            total = given["a"] + given["b"]
            return text(str(total), structuredContent={"sum": total})
        case "search-issues" | "nested" | "broken" | "class" | "delete" | "evil":
            return text(json.dumps(given, sort_keys=True))
        case "größe":
            return text("ü✓🎉")
        case "image":
            return {"content": [{"type": "image", "data": "AAECAw==", "mimeType": "image/png"}]}
        case "several":
            resource = {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "inner"}
            link = {"type": "resource_link", "uri": "file:///b.txt", "name": "b"}
            file = {"uri": "file:///c.bin", "mimeType": "application/zip", "blob": "AAE="}
            sound = {"type": "audio", "data": "AgM=", "mimeType": "audio/wav"}
            inner = [{"type": "resource", "resource": each} for each in (resource, file)]
            return {"content": [{"type": "text", "text": "one"}, *inner, link, sound]}
        case "fails":
            return text("the disk is full of cats", isError=True)
        case "liar":
            return text("x", structuredContent={"x": "not a number"})
        case "large":
            return text("x" * given["size"])
        case "half":
            return text("\ud800")
        case "garbled":
            sys.stdout.buffer.write(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [}}\n' % number)
            sys.stdout.buffer.flush()
            return None
        case "die":
            print("no more strength", file=sys.stderr, flush=True)
            os._exit(9)
        case "hang":
            return None
        case "grow":
            TOOLS.append(tool("grown", "Came later.", ANY))
            send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            return text("grown")
        case "grown":
            return text("here")
        case "count":
            return text(str(calls))
    raise KeyError(name)


def send(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    log(f"secret {os.environ.get('TOOL_SECRET', '')}")
    if os.environ.get("TOOL_COUNT"):
        TOOLS[:] = [tool(f"tool_{n}", f"Does thing {n}.", numbers("n")) for n in range(int(os.environ["TOOL_COUNT"]))]
    if os.environ.get("TOOL_ONLY"):
        TOOLS[:] = [each for each in TOOLS if each["name"] in os.environ["TOOL_ONLY"].split(",")]
    if os.environ.get("TOOL_DELAY"):
        time.sleep(float(os.environ["TOOL_DELAY"]))
    print("this line is no message", flush=True)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method, number = message["method"], message.get("id")
        result: dict[str, Any] | None = None
        if method == "notifications/cancelled":
            log("cancelled")
        elif method == "initialize":
            about = {"name": "misbehaving", "version": "1"}
            version = message["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {"listChanged": True}}, "serverInfo": about}
        elif method == "tools/list":
            result = {"tools": TOOLS}
        elif method == "tools/call":
            try:
                result = call(message["params"]["name"], message["params"].get("arguments") or {}, number)
            except KeyError as error:
                send({"jsonrpc": "2.0", "id": number, "error": {"code": -32602, "message": f"no tool {error}"}})
                continue
        elif number is not None:
            send({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "unknown"}})
            continue
        if result is not None and number is not None:
            send({"jsonrpc": "2.0", "id": number, "result": result})


main()

"""Servers of tools for tests."""

import json
import sys
from pathlib import Path
from typing import Any

TOOL_SERVER = str(Path(__file__).with_name("tool_server.py"))


def entry(log: Path | None = None, **more: Any) -> dict[str, Any]:
    """Return how to start the server that misbehaves on request."""
    return {"command": sys.executable, "args": [TOOL_SERVER, *([str(log)] if log else [])], **more}


def servers_file(file: Path, **servers: dict[str, Any]) -> str:
    """Write a file with `mcpServers`, as hosts have it."""
    file.write_text(json.dumps({"mcpServers": servers}))
    return str(file)

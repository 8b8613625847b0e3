"""`make dist`: the wheel, a bundle for desktop hosts, and the entry for the MCP registry, all of one version."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "dist"

REGISTRY_NAME = "io.github.ingle/ingle"
REGISTRY_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"

BUNDLE_PROJECT = """\
[project]
name = "ingle-bundle"
version = "{version}"
requires-python = ">=3.11"
dependencies = ["ingle"]

[tool.uv.sources]
ingle = {{ path = "{wheel}" }}
"""

BUNDLE_ENTRY = '''\
"""Started by the host through uv, which has installed the wheel beside this file."""

import sys

from ingle.cli import main

sys.argv = ["ingle", "mcp", *sys.argv[1:]]
main()
'''


def build_wheel() -> Path:
    for old in OUT.glob("ingle-*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(OUT), str(ROOT)], check=True)
    (wheel,) = OUT.glob("ingle-*.whl")
    return wheel


def manifest(version: str) -> dict[str, object]:
    from ingle.mcp.tools import TABLE

    return {
        "manifest_version": "0.4",
        "name": "ingle",
        "display_name": "ingle",
        "version": version,
        "description": "Live Python sessions for agents",
        "author": {"name": "the ingle authors"},
        "license": "MIT",
        "server": {
            "type": "uv",
            "entry_point": "server.py",
            "mcp_config": {"command": "uv", "args": ["run", "--directory", "${__dirname}", "server.py"]},
        },
        "tools": [{"name": tool.name, "description": tool.title} for tool in TABLE],
        "compatibility": {"platforms": ["linux"], "runtimes": {"python": ">=3.11"}},
    }


def registry_entry(version: str) -> dict[str, object]:
    package = {
        "registryType": "pypi",
        "identifier": "ingle",
        "version": version,
        "runtimeHint": "uvx",
        "transport": {"type": "stdio"},
        "packageArguments": [{"type": "positional", "value": "mcp"}],
    }
    return {
        "$schema": REGISTRY_SCHEMA,
        "name": REGISTRY_NAME,
        "title": "ingle",
        "description": "Live Python sessions for agents: state that stays, output that streams, nothing left behind",
        "version": version,
        "packages": [package],
    }


def main() -> None:
    from ingle import __version__ as version

    OUT.mkdir(exist_ok=True)
    wheel = build_wheel()
    bundle = OUT / f"ingle-{version}.mcpb"
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("manifest.json", json.dumps(manifest(version), indent=2) + "\n")
        file.writestr("pyproject.toml", BUNDLE_PROJECT.format(version=version, wheel=wheel.name))
        file.writestr("server.py", BUNDLE_ENTRY)
        file.write(wheel, wheel.name)
        file.write(ROOT / "LICENSE", "LICENSE")
    server = OUT / "server.json"
    server.write_text(json.dumps(registry_entry(version), indent=2) + "\n")
    for made in (wheel, bundle, server):
        print(made.relative_to(ROOT))


if __name__ == "__main__":
    main()

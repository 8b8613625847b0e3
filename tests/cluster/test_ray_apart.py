"""On one machine nothing of Ray is imported, and nothing of ours needs it there."""

import ast
import subprocess
import sys
from pathlib import Path

import ingle

SOURCE = Path(ingle.__file__).parent

OF_RAY = {SOURCE / "cluster/ray/raylink.py", SOURCE / "cluster/ray/actor.py"}
"""The modules that run in processes of Ray."""

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules["ray"] = None  # importing it fails
import ingle.cluster, ingle.http.server, ingle.mcp.http, ingle.service, ingle.cli
for module in pkgutil.walk_packages(ingle.cluster.__path__, "ingle.cluster."):
    importlib.import_module(module.name)
print(sorted(name for name in sys.modules if name.startswith("ray.")))
"""


def imports_of(path: Path) -> set[str]:
    """The top-level packages that a module imports, anywhere in it."""
    found = set()
    for each in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(each, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in each.names}
        elif isinstance(each, ast.ImportFrom) and not each.level:
            found.add((each.module or "").partition(".")[0])
    return found


def test_two_modules_import_ray() -> None:
    assert {path for path in SOURCE.rglob("*.py") if "ray" in imports_of(path)} == OF_RAY


def test_every_module_can_be_imported_without_ray() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[]\n", "")

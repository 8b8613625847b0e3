"""Kernelspecs: files that tell Jupyter how to start the kernel."""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager


@dataclass(frozen=True)
class Spec:
    name: str
    """Name by which Jupyter knows the kernel."""
    shown: str
    """Name that people see."""
    options: tuple[str, ...] = ()
    """Options of `ingle kernel run`."""


def default_spec() -> Spec:
    return Spec("ingle", "Python 3 (ingle)")


def of_environment(name: str) -> Spec:
    return Spec(f"ingle-{name.lower()}", f"{name} (ingle)", ("--environment", name))


def of_session(name: str) -> Spec:
    return Spec(f"ingle-session-{name.lower()}", f"session {name} (ingle)", ("--session", name))


def write(spec: Spec, prefix: str | None) -> str:
    """Write a kernelspec for the user, or below `prefix`. Return its folder."""
    content = {
        "argv": [sys.executable, "-m", "ingle", "kernel", "run", "-f", "{connection_file}", *spec.options],
        "display_name": spec.shown,
        "language": "python",
        # The kernel passes the interrupt on to the session.
        "interrupt_mode": "message",
        "metadata": {"debugger": False},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        (path / "kernel.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        return KernelSpecManager().install_kernel_spec(folder, spec.name, user=prefix is None, prefix=prefix)

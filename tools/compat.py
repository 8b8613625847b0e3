"""`python tools/compat.py [NAME...] [-- PYTEST OPTIONS]`: the tests with the real clients of other servers.

Each folder of tests/compat is about one client and names its packages in requirements.txt. It must not have the name
of a package that its tests import. The packages get a virtual environment of their own in build/compat, which is made
anew when that file changes. With NEWEST=1 the newest versions are tried instead.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "compat"
VENVS = ROOT / "build" / "compat"

COMMON = ("pytest>=9.0", "pytest-asyncio>=1.4", "pytest-timeout>=2.4")
"""What runs the tests, in each virtual environment."""

NO_TESTS = 5
"""Exit code of pytest when options left out every test."""


def main(arguments: list[str]) -> int:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:cut], arguments[cut + 1 :]
    clients = sorted(each.parent for each in TESTS.glob("*/requirements.txt"))
    failed = [client.name for client in clients if (not names or client.name in names) and not passes(client, options)]
    if failed:
        print(f"failed with the clients: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def passes(client: Path, options: list[str]) -> bool:
    python = prepare(client)
    print(f"--- {client.name}: {', '.join(requirements(client))}", flush=True)
    # An absolute path that is not resolved: links lead out of the virtual environment.
    environment = {**os.environ, "INGLE_COMPAT_PYTHON": sys.executable}
    command = [python, "-m", "pytest", "-c", TESTS / "pytest.ini", f"--rootdir={TESTS}", client, *options]
    return subprocess.run(command, env=environment, cwd=ROOT).returncode in (0, NO_TESTS)


def requirements(client: Path) -> list[str]:
    lines = (client / "requirements.txt").read_text().splitlines()
    named = [line for line in lines if line and not line.startswith("#")]
    if os.environ.get("NEWEST"):
        return [re.split(r"[=<>~!]=?", line)[0] for line in named]
    return named


def prepare(client: Path) -> Path:
    """Return the interpreter of the client's virtual environment, which is made if it is missing or out of date."""
    wanted = [*COMMON, *requirements(client)]
    venv = VENVS / (client.name + ("-newest" if os.environ.get("NEWEST") else ""))
    stamp, python = venv / "stamp", venv / "bin" / "python"
    digest = hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != digest or os.environ.get("NEWEST"):
        print(f"--- {client.name}: installing into {venv.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([python, ROOT / "tools" / "install.py", *wanted], check=True)
        stamp.write_text(digest)
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

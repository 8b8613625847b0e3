"""`python tools/compat.py [NAME...] [-- PYTEST OPTIONS]`: the tests with the real clients of other servers.

Each folder of tests/compat is about one client and names its packages in requirements.txt. It must not have the name
of a package that its tests import. The packages get a virtual environment of their own in build/compat, which is made
anew when that file changes. With NEWEST=1 the newest versions are tried instead, below bounds that a file gives a
reason for. A package.json names packages of Node.js beside them, which are installed where npm is; tests without them
are skipped by name.

Installing takes most of the time, and much of that is waiting, so that JOBS clients are prepared and tested at once.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "compat"
VENVS = ROOT / "build" / "compat"

COMMON = ("pytest>=9.0", "pytest-asyncio>=1.4", "pytest-timeout>=2.4")
"""What runs the tests, in each virtual environment."""

INSTALL = (ROOT / "tools" / "install.py", "--no-compile")
"""Most modules of these packages are never imported, so that compiling all of them ahead takes longer."""

PINNED = re.compile(r"(==|~=|>=)[^,]*,?")
"""What NEWEST leaves out of a requirement. A bound from above stays: packages do not work together past it."""

JOBS = 2

NPM_SECONDS = 300
"""Time for npm to install."""

NO_TESTS = 5
"""Exit code of pytest when options left out every test."""


def main(arguments: list[str]) -> int:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:cut], arguments[cut + 1 :]
    clients = [each.parent for each in TESTS.glob("*/requirements.txt")]
    if unknown := set(names) - {each.name for each in clients}:
        known = ", ".join(sorted(each.name for each in clients))
        print(f"no client {', '.join(sorted(unknown))} in tests/compat; there are {known}", file=sys.stderr)
        return 2
    # Those with the most tests first, so that no long one is left alone at the end.
    clients.sort(key=lambda each: sum(file.stat().st_size for file in each.glob("test_*.py")), reverse=True)
    with ThreadPoolExecutor(max(1, int(os.environ.get("JOBS") or JOBS))) as pool:
        wanted = [each for each in clients if not names or each.name in names]
        passed = list(pool.map(lambda client: passes(client, options), wanted))
    failed = [client.name for client, good in zip(wanted, passed, strict=True) if not good]
    if failed:
        print(f"failed with the clients: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def passes(client: Path, options: list[str]) -> bool:
    """Run the tests of a client, and print what they say at their end."""
    began = time.monotonic()
    try:
        python, node = prepare(client), prepare_node(client)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"--- {client.name}: not installed\n{error.stdout}{error.stderr}", flush=True)
        return False
    installed = time.monotonic()
    # An absolute path that is not resolved: links lead out of the virtual environment.
    environment = {**os.environ, "INGLE_COMPAT_PYTHON": sys.executable, "INGLE_COMPAT_NODE": str(node)}
    # Clients are tested at once: each remembers its own failures, for `--last-failed`.
    cache = f"cache_dir={python.parents[1] / 'pytest_cache'}"
    settings = ["-c", TESTS / "pytest.ini", f"--rootdir={TESTS}", "-o", cache]
    command = [python, "-m", "pytest", *settings, client, *options]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    times = f"installed in {installed - began:.0f} s, tested in {time.monotonic() - installed:.0f} s"
    print(f"--- {client.name}: {', '.join(requirements(client))}; {times}\n{done.stdout}", flush=True)
    return done.returncode in (0, NO_TESTS)


def requirements(client: Path) -> list[str]:
    lines = (client / "requirements.txt").read_text().splitlines()
    named = [line for line in lines if line and not line.startswith("#")]
    if os.environ.get("NEWEST"):
        return [PINNED.sub("", line) for line in named]
    return named


def prepare(client: Path) -> Path:
    """Return the interpreter of the client's virtual environment, which is made if it is missing or out of date."""
    wanted = [*COMMON, *requirements(client)]
    venv = VENVS / (client.name + ("-newest" if os.environ.get("NEWEST") else ""))
    stamp, python = venv / "stamp", venv / "bin" / "python"
    digest = hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != digest or os.environ.get("NEWEST"):
        for command in ([sys.executable, "-m", "venv", "--clear", venv], [python, *INSTALL, *wanted]):
            subprocess.run(command, check=True, capture_output=True, text=True)
        stamp.write_text(digest)
    return python


def prepare_node(client: Path) -> Path:
    """Return the folder with the client's programs of Node.js, which may be missing."""
    folder = VENVS / f"{client.name}-node"
    named = client / "package.json"
    if named.is_file() and shutil.which("npm") is not None:
        text = named.read_text()
        if os.environ.get("NEWEST"):
            text = re.sub(r'": "\d[^"]*"', '": "latest"', text)
        stamp = folder / "stamp"
        if not stamp.is_file() or stamp.read_text() != text or os.environ.get("NEWEST"):
            print(f"--- {client.name}: installing into {folder.relative_to(ROOT)}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "package.json").write_text(text)
            command = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--ignore-scripts"]
            subprocess.run(command, cwd=folder, check=True, timeout=NPM_SECONDS, capture_output=True, text=True)
            stamp.write_text(text)
    return folder / "node_modules" / ".bin"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

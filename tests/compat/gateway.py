"""Jupyter Server or JupyterLab that runs its kernels on ingle."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

from serving import Server

TOKEN = "lab"
PATIENCE = 90.0
"""Time for the program to start: JupyterLab imports much, and nothing of it is compiled yet."""

END_SECONDS = 3.0
"""Time to end. A Jupyter Server that has lost a kernel tries to reach it for half a minute, and does not end before."""


@contextlib.contextmanager
def gateway(server: Server, home: Path, program: str) -> Iterator[str]:
    """Run a program of Jupyter on the folder `home`. Give its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", program, f"--port={port}", f"--gateway-url={server.url}"]
    command += [f"--IdentityProvider.token={TOKEN}", "--allow-root", "--no-browser", f"--ServerApp.root_dir={home}"]
    env = {**os.environ, "HOME": str(home), "JUPYTER_GATEWAY_AUTH_TOKEN": server.token}
    url = f"http://127.0.0.1:{port}"
    said = home.with_name(f"{home.name}.log")
    with open(said, "wb") as log:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        end = monotonic() + PATIENCE
        while True:
            try:
                urllib.request.urlopen(f"{url}/api?token={TOKEN}").close()
                break
            except urllib.error.URLError:
                assert process.poll() is None, said.read_text()
                assert monotonic() < end, said.read_text()
                sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

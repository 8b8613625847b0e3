"""Actor of Ray that holds one agent. It runs in a worker of Ray, once on every node that offers the resource.

The agent is a child process with a watchdog above it, so that it has none of Ray's variables, threads and signal
masks. The actor writes the agent's address and a count to the head's store, again and again, and reports each
success to the watchdog. The actor ends when the agent has ended; Ray then starts both again, on any node.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from ingle.cluster.fence.watchdog import now
from ingle.cluster.ray import AGENT_KEY, NAMESPACE

RENEW_SECONDS = 0.5
"""Interval of renewals at the head: several fit into the watchdog's patience."""

START_SECONDS = 120.0
"""Time limit for the start of an agent."""

STOP_SECONDS = 15.0
"""Time limit for a graceful stop of an agent."""

COMMAND = "INGLE_AGENT_COMMAND"
"""Variable with another command line for the agent, as a JSON list. For tests."""


CHANGED_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")
"""Variables that Ray sets in a worker: one thread for numpy, and a debugger of Ray. The node's own values count."""


class AgentActor:
    """One agent, with its lease at the head."""

    def __init__(self, slot: str) -> None:
        try:
            self._start(slot)
        except Exception:
            # Ray gives an actor up whose constructor raises. One whose process ends is started again.
            traceback.print_exc()
            os._exit(1)

    def _start(self, slot: str) -> None:
        """Start the agent and wait until it is ready."""
        import ray

        self._slot = slot
        host = ray.util.get_node_ip_address()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._watchdog = subprocess.Popen(
            [sys.executable, "-m", "ingle.cluster.fence.watchdog", *agent_command(host)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment(),
            start_new_session=True,
        )
        self._info = self._first_line()
        threading.Thread(target=self._renew, daemon=True).start()
        threading.Thread(target=self._end_with_agent, daemon=True).start()

    def _first_line(self) -> dict[str, Any]:
        """Return what the agent says about itself once it is ready."""
        assert self._watchdog.stdout is not None
        timer = threading.Timer(START_SECONDS, self._watchdog.kill)
        timer.start()
        line = self._watchdog.stdout.readline()
        timer.cancel()
        if not line:
            raise RuntimeError("the agent ended before it was ready; its log has the reason")
        info: dict[str, Any] = json.loads(line)
        return info

    def _renew(self) -> None:
        from ray.experimental import internal_kv

        assert self._watchdog.stdin is not None
        count = 0
        while True:
            began = now()
            count += 1
            value = json.dumps({"info": self._info, "count": count}).encode()
            try:
                internal_kv._internal_kv_put(
                    (AGENT_KEY + self._slot).encode(), value, overwrite=True, namespace=NAMESPACE.encode()
                )
            except Exception as error:
                # The head is away. The lease at the store goes on.
                print(f"ingle: no renewal at the head: {error}", file=sys.stderr)
            else:
                try:
                    self._watchdog.stdin.write(b"%.3f\n" % began)
                    self._watchdog.stdin.flush()
                except OSError:
                    return
            time.sleep(RENEW_SECONDS)

    def _end_with_agent(self) -> None:
        status = self._watchdog.wait()
        print(f"ingle: the agent of {self._slot} ended with status {status}", file=sys.stderr)
        os._exit(1)

    def info(self) -> dict[str, Any]:
        return self._info

    def stop(self) -> None:
        """Stop the agent gracefully. The actor ends with it."""
        self._watchdog.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(STOP_SECONDS)


def clean_environment() -> dict[str, str]:
    """Return this node's environment without what Ray has put there, its token above all."""
    variables = {name: value for name, value in os.environ.items() if not name.upper().startswith("RAY_")}
    given = _environment_of(os.getppid())
    for name in CHANGED_BY_RAY:
        variables.pop(name, None)
        if name in given:
            variables[name] = given[name]
    return variables


def _environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with, as far as it can be read."""
    with contextlib.suppress(OSError):
        data = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes())
        return {name: value for name, _, value in (each.partition("=") for each in data.split("\0") if each)}
    return {}


def agent_command(host: str) -> list[str]:
    """Return the command line of an agent that listens on this address of the node."""
    if COMMAND in os.environ:
        command: list[str] = json.loads(os.environ[COMMAND])
        return [*command, host]
    home = Path(os.environ.get("INGLE_HOME") or Path.home() / ".local/share/ingle")
    node = os.environ.get("INGLE_NODE") or socket.gethostname()
    port = os.environ.get("INGLE_AGENT_PORT") or "0"
    arguments = {"--home": str(home), "--node": node, "--host": host, "--port": port}
    return [sys.executable, "-m", "ingle.cluster.agent", *(word for pair in arguments.items() for word in pair)]

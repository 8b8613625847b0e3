"""Checks of an installation: each finding is one sentence, with a remedy if something is broken.

The round trips are real: a session in a service of its own, and `ingle mcp` started as a host does.
"""

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from ingle import __version__
from ingle.capacity import Capacity
from ingle.errors import IngleError
from ingle.events import SessionInfo
from ingle.install.programs import HOSTS, Command, Place, configured, file_of
from ingle.isolation import capabilities, gpus
from ingle.service import Service
from ingle.sessions import capacity
from ingle.settings import Settings, load
from ingle.workers.launch.zygote import try_level

ROUND_TRIP_SECONDS = 60.0
"""Time for one round trip on a slow or busy machine."""

LOW_DISK_BYTES = 500_000_000

FULL_DISK_BYTES = 50_000_000
"""With less space, a session that saves or prints much fails."""

OTHERS_USE = 0o066
"""Permissions to read and to write of other users. Users of sessions may pass through: that is 711."""

FEW_SESSIONS = 100
"""Sessions at once that a machine of today should hold."""

KERNEL = "Kernel features"

PROTOCOL_VERSION = "2025-06-18"

State = Literal["fine", "warning", "broken"]


class Finding(Struct):
    about: str
    state: State
    text: str
    group: str = ""
    """Title under which a person reads the findings of one kind that are fine, in one line."""


def examine(home: Path, place: Place | None = None) -> list[Finding]:
    findings = [python()]
    folder = data_folder(home)
    findings.append(folder)
    if folder.state == "broken":
        return findings
    here = place or Place.here()
    try:
        settings = load()
    except IngleError as error:
        # No command starts with these settings, so no session is tried.
        return [*findings, Finding("Settings", "broken", error.message), *levels(Settings(), home), *hosts(here)]
    found, network = asyncio.run(session(settings, home))
    findings += [*found, sessions(capacity.measure(settings, network))]
    findings += levels(settings, home)
    findings.append(round_trip(home))
    findings += hosts(here)
    return findings


def python() -> Finding:
    version = platform.python_version()
    text = f"ingle {__version__} on {platform.python_implementation()} {version}, {sys.executable}"
    if sys.platform != "linux":
        return Finding("Python", "warning", f"{text}; ingle has been tested on Linux only so far")
    return Finding("Python", "fine", text)


def data_folder(home: Path) -> Finding:
    about = "Data folder"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = home / f".probe-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        return Finding(
            about, "broken", f"{home} cannot be written ({error.strerror}); set INGLE_HOME to another folder"
        )
    free = shutil.disk_usage(home).free
    shown = f"{home}, {free / 1e9:.1f} GB free"
    if free < FULL_DISK_BYTES:
        return Finding(about, "broken", f"{shown}: the disk is full; free some space, or set INGLE_HOME to another one")
    if free < LOW_DISK_BYTES:
        return Finding(about, "warning", f"{shown}: little space for output and figures; free some")
    if home.stat().st_mode & OTHERS_USE:
        return Finding(about, "warning", f"{shown}; others can read or write it; run `chmod 700 {home}`")
    return Finding(about, "fine", shown)


async def session(settings: Settings, home: Path) -> tuple[list[Finding], str]:
    """Try a session. Return the findings, and the network of sessions."""
    network = "full"
    began = time.monotonic()
    try:
        async with asyncio.timeout(ROUND_TRIP_SECONDS), Service.local(settings, home) as service:
            await service.warm()
            warm = time.monotonic() - began
            began = time.monotonic()
            info = await service.create_session()
            result = await service.execute(info.session_id, "1 + 1")
            took = time.monotonic() - began
            info = await service.get_session(info.session_id)
            card = await gpu(service, settings, info)
            network = info.network
    except IngleError as error:
        return [Finding("Session", "broken", error.message)], network
    except TimeoutError:
        why = f"no session within {ROUND_TRIP_SECONDS:g} s; preload fewer modules"
        return [Finding("Session", "broken", why)], network
    except OSError as error:
        return [Finding("Session", "broken", f"no session could be started: {error}")], network
    value = (result.result or {}).get("text/plain")
    if value != "2":
        return [Finding("Session", "broken", f"1 + 1 gave {value!r} ({result.status}) in a session")], network
    ready = f"Python {info.python} ({settings.python}) was ready after {warm:.1f} s; a new session with 1 + 1 took"
    findings = [Finding("Session", "fine", f"{ready} {took * 1000:.0f} ms")]
    findings.append(card)
    if info.isolation == "none":
        said = "none: code in sessions has your files and your network, so run only code you trust"
        findings.append(Finding("Isolation", "warning", said))
    else:
        findings.append(Finding("Isolation", "fine", f"{info.isolation}, network {info.network}"))
    return findings, network


TRY_GPU = """
import ctypes
library, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(library.cuInit(0), library.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""


async def gpu(service: Service, settings: Settings, info: SessionInfo) -> Finding:
    """Tell which GPUs sessions get, and have a session count them."""
    about, text = "GPU", gpus.Gpus(settings.gpu).sentence
    if not info.gpus or gpus.find().driver != gpus.NVIDIA:
        return Finding(about, "fine", text)
    result = await service.execute(info.session_id, TRY_GPU)
    if result.stdout == f"0 0 {len(info.gpus)}\n":
        return Finding(about, "fine", f"{text}; a session at {info.isolation} has used the driver")
    said = result.stdout.strip() or (result.error.value if result.error is not None else result.status)
    return Finding(about, "broken", f"{text}; a session at {info.isolation} cannot use the driver ({said})")


def sessions(held: Capacity) -> Finding:
    """Tell how many sessions this machine holds, and what bounds the number."""
    text = f"{held.sentence}; to have more, {held.remedy}"
    return Finding("Sessions", "warning" if held.sessions < FEW_SESSIONS else "fine", text)


def levels(settings: Settings, home: Path) -> list[Finding]:
    """Test each level and each kernel feature, and name the promise that a missing one costs."""
    findings = []
    for level in ("sandbox", "restricted", "limits"):
        why = asyncio.run(try_level(level, settings.python, str(home)))
        held = "can be used here: attacks from inside were tried, and failed"
        text = held if why is None else f"cannot be used here: {why}"
        findings.append(Finding(f"Level {level}", "fine" if why is None else "warning", text))
    return [
        *findings,
        *(
            Finding(each.name, "fine" if each.works else "warning", each.text, KERNEL)
            for each in capabilities.examine()
        ),
    ]


def round_trip(home: Path) -> Finding:
    """Start `ingle mcp` and run a cell over its standard streams."""
    about = "MCP round trip"
    command = Command.ours()
    began = time.monotonic()
    client = {"name": "ingle doctor", "version": __version__}
    messages: list[dict[str, Any]] = [
        {
            "id": 1,
            "method": "initialize",
            "params": {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client},
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list", "params": {}},
        {"id": 3, "method": "tools/call", "params": {"name": "python_session", "arguments": {"code": "6 * 7"}}},
    ]
    sent = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages)
    try:
        process = subprocess.Popen(
            [command.program, *command.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            # Without durable sessions, the user's own `main` is not touched and nothing is left behind.
            env={**os.environ, "INGLE_HOME": str(home), "INGLE_DURABLE_SIZE": "0"},
        )
    except OSError as error:
        return Finding(about, "broken", f"{command.program} cannot be started: {error.strerror}; install ingle again")
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        answers: dict[int, Any] = {}
        try:
            process.stdin.write(sent)
            process.stdin.flush()
            for line in process.stdout:
                message = json.loads(line)
                answers[message.get("id")] = message.get("result")
                if 3 in answers:
                    break
            took = time.monotonic() - began
            text = answers[3]["content"][0]["text"]
            tools = len(answers[2]["tools"])
        except (OSError, ValueError, LookupError, TypeError):
            process.kill()
            said = process.stderr.read().strip().splitlines()
            return Finding(about, "broken", f"`ingle mcp` does not answer: {said[-1] if said else 'no output'}")
        process.stdin.close()
    if "42" not in text:
        return Finding(about, "broken", f"6 * 7 gave {text!r}")
    return Finding(about, "fine", f"{command.program} lists {tools} tools and ran a cell, {took:.1f} s after its start")


def hosts(place: Place) -> list[Finding]:
    """Check which hosts have an entry for ingle, and whether its program exists."""
    findings: list[Finding] = []
    for host in HOSTS:
        files = [file_of(host, place, False)]
        if host.project_file is not None:
            files.append(file_of(host, place, True))
        for file in files:
            try:
                entry = configured(host, file)
            except (IngleError, OSError) as error:
                findings.append(Finding(host.title, "warning", str(error)))
                continue
            if entry is None:
                continue
            program = str(entry.get("command", ""))
            if os.path.isabs(program) and not os.access(program, os.X_OK):
                text = f"would start {program}, which does not exist; run `ingle install {host.name}` again ({file})"
                findings.append(Finding(host.title, "warning", text))
            else:
                findings.append(Finding(host.title, "fine", f"starts {program or 'ingle'} ({file})"))
    if not findings:
        text = "no assistant is connected yet; `ingle install claude-code` connects one"
        findings.append(Finding("Hosts", "warning", text))
    return findings

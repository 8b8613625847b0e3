"""What `ingle doctor` says of the machine: each primitive tried, and without one, what is lost and what to do."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingle.isolation import capabilities
from ingle.isolation.limits.cgroups import Groups


def test_each_primitive_is_told_of_once_and_in_one_line() -> None:
    found = capabilities.examine()
    assert [each.name for each in found] == list(capabilities.TITLES.values())
    for each in found:
        assert each.text.startswith("tried, and works") == each.works
        assert "\n" not in each.text


def test_a_missing_one_costs_a_promise_that_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("user", "spaces", "mounts", "landlock", "seccomp")
    said = {name: {"error": "Operation not permitted"} for name in names}

    def run(*given: Any, **more: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], 0, json.dumps(said), "")

    monkeypatch.setattr(capabilities.subprocess, "run", run)
    monkeypatch.setattr(Groups, "find", classmethod(lambda cls: cls()))
    found = capabilities.examine()
    assert [each.works for each in found] == [False] * len(capabilities.LOST)
    for each, (name, lost) in zip(found, capabilities.LOST.items(), strict=True):
        assert each.name == capabilities.TITLES[name]
        assert each.text.endswith(lost)
        assert ";" in lost


def test_the_trials_are_refused_where_the_machine_refuses(tmp_path: Path) -> None:
    """Inside of a lockdown, where nothing of it is allowed any more, nothing is said to work."""
    locked = tmp_path / "locked.py"
    # A filter that answers EPERM to unshare, mount and landlock_create_ruleset, laid before the trials run.
    locked.write_text(
        "import ctypes, struct\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.prctl(38, 1, 0, 0, 0)\n"
        "code = [(0x20, 0, 0, 0)]\n"
        "for number in (272, 97, 165, 40, 444):\n"
        "    code += [(0x15, 0, 1, number), (6, 0, 0, 0x00050001)]\n"
        "code.append((6, 0, 0, 0x7FFF0000))\n"
        "text = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *each) for each in code))\n"
        "program = struct.pack('HxxxxxxQ', len(code), ctypes.addressof(text))\n"
        "assert libc.prctl(22, 2, ctypes.create_string_buffer(program), 0, 0) == 0\n" + capabilities.TRIALS
    )
    done = subprocess.run([sys.executable, str(locked)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {name for name, said in found.items() if "error" in said} == {"user", "spaces", "mounts", "landlock"}


def test_another_system_is_told_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    [only] = capabilities.examine()
    assert (only.works, "virtual machine" in only.text) == (False, True)

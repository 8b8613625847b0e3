"""Termination of a process tree: what was chosen is gone when the sweep returns."""

import os
import subprocess
import sys

import pytest

SWEEP = """
import os, signal, sys
from ingle_worker.processes import kill_tree, linux

linux.become_subreaper()
children = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        memory = bytearray(b'x') * 50_000_000  # its end takes a moment
        os.write(1, b'.')
        signal.pause()
    children.append(pid)
kept = children.pop()
for _ in range(20):
    os.read(0, 1)
asked = set()

def chosen(pid):
    # As with the namespaces of a dying process: it is known only before it is killed.
    first = pid not in asked
    asked.add(pid)
    return pid != kept and first

ended = set()
kill_tree.sweep(lambda pid, status, usage: ended.add(pid), chosen=chosen)
left = linux.children(os.getpid())
for pid in left:
    os.kill(pid, signal.SIGKILL)
assert (ended, left) == (set(children), [kept])
"""


@pytest.mark.req("exit.tree")
def test_a_process_that_is_known_no_more_while_it_dies_is_waited_for() -> None:
    read, write = os.pipe()
    try:
        command = [sys.executable, "-c", SWEEP]
        done = subprocess.run(command, stdin=read, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(read)
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")

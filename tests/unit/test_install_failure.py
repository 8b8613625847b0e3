"""Reason of a failed installation, found in logs of pip and uv."""

import pytest

from ingle_worker.magics.install_failure import REFUSED, describe

LOOKING = "Looking in indexes: https://pypi.org/simple\n"
NOT_FOUND = (
    "ERROR: Could not find a version that satisfies the requirement ember (from versions: none)\n"
    "ERROR: No matching distribution found for ember\n"
)
RETRY = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken "
    "by '{}': /simple/ember/\n"
)
UNKNOWN_HOST = (
    "NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new "
    "connection: [Errno -2] Name or service not known')"
)
PROXY = "ProxyError('Cannot connect to proxy.', OSError('403 x is not on the list; `ingle grant --host x`'))"
BUILD = """  error: subprocess-exited-with-error

  \u00d7 Getting requirements to build wheel did not run successfully.
  \u2570\u2500> [2 lines of output]
      Traceback (most recent call last):
      fatal: foo.h: No such file or directory
      [end of output]

error: subprocess-exited-with-error
note: This error originates from a subprocess, and is likely not a problem with pip.
"""
IGNORED = "ERROR: Ignored the following versions that require a different python version: 1.2 Requires-Python <3\n"
CONFLICT = (
    "ERROR: Cannot install a==1 and b==2 because these package versions have conflicting dependencies.\n"
    "The conflict is caused by:\n    a 1 depends on c==1\n    b 2 depends on c==2\n"
    "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/\n"
)
UV = """  \u00d7 No solution found when resolving dependencies:
  \u2570\u2500\u25b6 Because ember was not found in the package registry and you require
      ember, we can conclude that your requirements are unsatisfiable.
"""
UV_OFFLINE = (
    "error: Failed to fetch: `https://x/simple/ember/`\n  Caused by: error sending request\n  Caused by: dns error\n"
)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (LOOKING + NOT_FOUND, "Could not find a version that satisfies the requirement ember (from versions: none)"),
        (
            LOOKING + RETRY.format(UNKNOWN_HOST) + NOT_FOUND,
            "no connection: Failed to establish a new connection: [Errno -2] Name or service not known",
        ),
        (LOOKING + RETRY.format(PROXY) + NOT_FOUND, REFUSED),
        (LOOKING + BUILD, "fatal: foo.h: No such file or directory"),
        (IGNORED + NOT_FOUND.replace("none", "0.5"), NOT_FOUND.replace("none", "0.5").splitlines()[0][7:]),
        (CONFLICT, CONFLICT.splitlines()[0][7:]),
        (
            UV,
            "Because ember was not found in the package registry and you require ember, we can conclude that your "
            "requirements are unsatisfiable.",
        ),
        (UV_OFFLINE, "Failed to fetch: `https://x/simple/ember/`: dns error"),
        ("it stopped\n", "it stopped"),
        ("", "the installer said nothing"),
    ],
    ids=["not found", "offline", "refused", "build", "ignored", "conflict", "uv", "uv offline", "other", "silent"],
)
def test_the_reason_comes_first_and_once(log: str, reason: str) -> None:
    first, *others = describe(log)
    assert first == reason
    assert not [line for line in others if reason in line]


def test_a_long_list_of_versions_is_shortened() -> None:
    versions = ", ".join(f"1.{number}" for number in range(500))
    (first,) = describe(
        f"ERROR: Could not find a version that satisfies the requirement a==9 (from versions: {versions})"
    )
    assert first == (
        "Could not find a version that satisfies the requirement a==9 (from versions: \u2026, 1.497, 1.498, 1.499)"
    )

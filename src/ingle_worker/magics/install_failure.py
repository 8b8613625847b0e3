"""Failure of an installer as a few lines of its log: the reason first, then the lines that help.

pip ends with its least telling line, uv begins with it. The reason is the first of these: a host that was refused, a
connection that failed, the last words of a package's own build, an error of the installer.
"""

import re

MAX_LINES = 20
"""Lines shown beside the reason. From a longer log, the essential ones are chosen."""

REFUSED = "a host was refused; the notice names it"

_REFUSED = "ingle grant --host"
"""Text in a refusal by the proxy of the session. The notices of the cell have it too, so the log need not."""

_ESSENTIAL = re.compile("error|no matching|not find|\u00d7|\u2570|hint|failed", re.IGNORECASE)
_RETRY = re.compile(r"WARNING: Retrying \(Retry\(.*?\)\) after connection broken by (.*): /\S*")
"""Line with which pip reports one of its five attempts."""

_CONNECTION = "no connection: "
_OBJECT = re.compile(r"^'?\w+\(['\"]?(?:[^:]*: )?|['\"]?\)'?$")
"""Names of the exception and of the connection around the words of the system."""

_BUILD = re.compile(r"\[\d+ lines? of output\]\n(.*?)\n\s*\[end of output\]", re.DOTALL)
_ERROR = re.compile(r"ERROR: (?!Ignored the following)(.*)")
_UV = re.compile(r"\u2570\u2500\u25b6 (.*(?:\n {6,}[^\s\[].*)*)|^error: (.*)", re.MULTILINE)
_CAUSE = re.compile(r"^\s*Caused by: (.*)", re.MULTILINE)
_VERSIONS = re.compile(r"(\(from versions: )[^)]{100,}((?:, [^,)]+){3}\))")
"""pip lists every version that there is."""


def describe(log: str) -> list[str]:
    """Return the reason of a failure, then the other essential lines."""
    log = _VERSIONS.sub("\\1\u2026\\2", log)
    attempts = [_RETRY.sub(_attempt, line) for line in log.splitlines() if line.strip()]
    lines = list(dict.fromkeys(line for line in attempts if _REFUSED not in line))
    essential = [line for line in lines if _ESSENTIAL.search(line)] if len(lines) > MAX_LINES else lines
    reason = _reason(log, lines)
    others = [line for line in essential or lines if line.strip().removeprefix("ERROR: ") != reason]
    return [reason, *others[-MAX_LINES:]]


def _attempt(found: "re.Match[str]") -> str:
    return _CONNECTION + _OBJECT.sub("", found[1])


def _reason(log: str, lines: "list[str]") -> str:
    if _REFUSED in log:
        return REFUSED
    attempt = next((line.strip() for line in lines if _CONNECTION in line), None)
    if attempt is not None:
        return attempt
    built = _BUILD.search(log)
    if built is not None and built[1].strip():
        return built[1].strip().splitlines()[-1].strip()
    failed = next((found[1] for found in map(_ERROR.match, lines) if found is not None), None)
    if failed is not None:
        return failed
    said = _UV.search(log)
    if said is not None:
        causes = _CAUSE.findall(log)
        words = " ".join((said[1] or said[2]).split())
        return f"{words}: {causes[-1]}" if causes else words
    return lines[-1].strip() if lines else "the installer said nothing"

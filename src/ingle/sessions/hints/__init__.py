"""Explanations of a cell's exception by what the host knows."""

from pathlib import Path

from ingle.isolation.policy import Policy
from ingle.sessions.cells.hints import Hints
from ingle.sessions.hints import gpu_hints, network_hints, package_hints, path_hints
from ingle.settings import Settings


def all_hints(settings: Settings, home: Path, policy: Policy) -> Hints:
    """Return the hints of this server."""
    packages = package_hints.by_name(policy.index, settings.allow_host)
    gpus = gpu_hints.GpuHints(policy.gpus)
    by_name = path_hints.by_name(home) | packages | gpu_hints.by_name(gpus) | network_hints.by_name()
    return Hints(by_name, gpus.of_code if policy.gpus.found else None)

"""Base class of the verbs: what each group of them uses."""

from pathlib import Path

from ingle.nodes import Node
from ingle.service.access import Access, Shared
from ingle.service.validation import check_seconds
from ingle.settings import Settings


class Verbs:
    """Part of a service. `Service` is made of these parts and sets their attributes."""

    settings: Settings
    access: Access
    workspace: Path | None
    """Folder of `interpret`, with one folder in it for each tenant. None: a folder for each session."""
    _node: Node
    _shared: Shared

    def _wait(self, wait: float | None) -> float:
        """Return the seconds to wait for an answer. Default: the setting `wait`."""
        if wait is None:
            return self.settings.wait
        check_seconds("wait", wait)
        return wait

"""APIs of other servers, for clients that people already have.

Each is a translation on the service: it holds a table of ids, and nothing below it knows of it.
"""

from collections.abc import Callable, Sequence

from ingle import errors
from ingle.compat.daytona.translation import Daytona
from ingle.compat.e2b.translation import E2b
from ingle.compat.fusion.translation import Fusion
from ingle.compat.jupyter.translation import Jupyter
from ingle.http.translations import Protocols, Translation
from ingle.service import Service

TABLE: dict[str, Callable[[Service], Translation]] = {
    "e2b": E2b,
    "daytona": Daytona,
    "jupyter": Jupyter,
    "sandboxfusion": Fusion,
}
"""Translations by the names that the setting `compat` takes."""

ALL, NONE = "all", "none"


def chosen(names: Sequence[str]) -> list[str]:
    """Return the names of the translations that a setting asks for."""
    for name in names:
        if name not in (*TABLE, ALL, NONE):
            raise errors.InvalidRequest(
                f"compat names {name[:80]!r}; it must be one of {', '.join((*TABLE, ALL, NONE))}"
            )
    if ALL in names:
        return list(TABLE)
    return [name for name in TABLE if name in names]


def protocols(service: Service) -> Protocols:
    """Return the translations that the service's settings ask for."""
    made = tuple(TABLE[name](service) for name in chosen(service.settings.compat))
    if service.settings.e2b_debug == "off":
        return Protocols(made)
    debug = E2b(service, debug=True)
    return Protocols(made, dict.fromkeys(E2b.DEBUG_PORTS, debug))

"""`ingle install HOST --remove`: the host's file without the entry for ingle."""

from pathlib import Path

from ingle.errors import InvalidRequest
from ingle.install import programs, wrap
from ingle.install.programs import NAME, Change, Host


def plan_removal(host: Host, file: Path, home: Path, project: Path | None = None) -> Change | None:
    """Return the change that takes ingle out of a host's file; None where the file has no entry for it.

    Servers that were moved behind ingle would be gone with the entry, so they have to be given back first.
    """
    before = programs.look(file, project)
    text = programs.text_of(file, before)
    if NAME not in wrap.servers_of(host, file, text):
        return None
    if wrap.servers_file(home, host, file).exists():
        raise InvalidRequest(
            f"{host.title} has servers behind ingle; give them back first with `ingle install {host.name} --unwrap`"
        )
    after = programs.edited(file, programs.REMOVERS[host.kind], text, host.path)
    return Change(file, before, after.encode(), project)

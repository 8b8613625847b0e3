"""`ingle doctor`: checks the installation, and explains what does not work."""

from typing import TYPE_CHECKING

import click

from ingle.cli.echo import echo, echo_json

if TYPE_CHECKING:
    from ingle.doctor import Finding

SIGNS = {"fine": "ok  ", "warning": "note", "broken": "FAIL"}


@click.command(epilog="Example: ingle doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON document.")
def doctor(as_json: bool) -> None:
    """Check this installation, with a real round trip through `ingle mcp`.

    Checks Python, the data folder, the start of a session, isolation, and the configured hosts. Exit code: 0 if
    everything needed works, 1 if something does not.
    """
    from ingle.doctor import examine
    from ingle.settings import data_folder

    findings = examine(data_folder())
    healthy = all(each.state != "broken" for each in findings)
    if as_json:
        echo_json({"healthy": healthy, "findings": findings})
    else:
        for line in _lines(findings):
            echo(line)
        echo("Everything needed works." if healthy else "Something needed does not work; see FAIL above.")
    raise SystemExit(0 if healthy else 1)


def _lines(findings: "list[Finding]") -> list[str]:
    """Return a line for each finding, and one for all of a group that are fine."""
    lines: list[str] = []
    working: dict[str, int] = {}
    for each in findings:
        if each.group and each.state == "fine":
            if each.group not in working:
                working[each.group] = len(lines)
                lines.append(f"{SIGNS[each.state]}  {each.group}: tried, and work: {each.about}")
            else:
                lines[working[each.group]] += f", {each.about}"
        else:
            lines.append(f"{SIGNS[each.state]}  {each.about}: {each.text}")
    return lines

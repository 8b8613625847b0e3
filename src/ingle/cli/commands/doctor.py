"""`ingle doctor`: checks the installation, and explains what does not work."""

import click

from ingle.cli.echo import echo
from ingle.cli.failure import plain_failures

SIGNS = {"fine": "ok  ", "warning": "note", "broken": "FAIL"}


@click.command(epilog="Example: ingle doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON document.")
def doctor(as_json: bool) -> None:
    """Check this installation, with a real round trip through `ingle mcp`.

    Checks Python, the data folder, the zygote, isolation, and the configured hosts. Exit code: 0 if everything
    needed works, 1 if something does not.
    """
    with plain_failures():
        import msgspec

        from ingle.doctor import examine
        from ingle.settings import data_folder, load

        findings = examine(load(), data_folder())
        healthy = all(each.state != "broken" for each in findings)
        if as_json:
            echo(msgspec.json.encode({"healthy": healthy, "findings": findings}).decode())
        else:
            for each in findings:
                echo(f"{SIGNS[each.state]}  {each.about}: {each.text}")
            echo("Everything needed works." if healthy else "Something needed does not work; see FAIL above.")
    raise SystemExit(0 if healthy else 1)

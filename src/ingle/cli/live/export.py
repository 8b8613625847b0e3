"""`ingle export`: the transcript of a session as a file."""

import os
import sys

import click

from ingle.cli.completion import session_argument
from ingle.cli.echo import tell
from ingle.cli.failure import Failure
from ingle.cli.services import Choice, find_session, service_options

FORMATS = ("ipynb", "py", "md", "html")

EXPORT_SECONDS = 600.0


@click.command(epilog="Example: ingle export main -o analysis.ipynb")
@session_argument
@service_options
@click.option("-o", "--output", metavar="FILE", help="Write this file; its ending tells the format. Default: stdout.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Format. Default: that of the file, or ipynb.")
@click.option("--json", "as_json", is_flag=True, help="With -o, print which file was written as one JSON document.")
def export(session: str, choice: Choice, output: str | None, form: str | None, as_json: bool) -> None:
    """Write the cells of a session and their outputs to a file.

    The formats are a notebook (.ipynb), a script (.py), Markdown (.md) and a page (.html) that runs no script.
    """
    if as_json and output is None:
        raise click.UsageError("--json tells which file was written; name the file with -o")
    if form is None:
        ending = "" if output is None else os.path.splitext(output)[1].removeprefix(".").lower()
        if output is not None and ending not in FORMATS:
            raise click.UsageError(f"the ending of {output} tells no format; name one with --format")
        form = ending or "ipynb"
    from ingle.client.address import session_path

    target = find_session(choice, session)
    path = f"{session_path(session)}/export?format={form}"
    with target.client.open("GET", path, timeout=EXPORT_SECONDS) as answer:
        data: bytes = answer.read()
    if output is None:
        sys.stdout.buffer.write(data)
        return
    draft = f"{output}.part"
    try:
        with open(draft, "wb") as file:
            file.write(data)
        os.replace(draft, output)
    except OSError as error:
        raise Failure(f"{output} cannot be written: {error.strerror or error}") from None
    tell({"file": output, "format": form, "bytes": len(data)}, f"{output}: {len(data)} bytes", as_json)

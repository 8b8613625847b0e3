"""`ingle kernel`: sessions as kernels of Jupyter."""

import click

from ingle.cli.echo import echo
from ingle.cli.failure import Failure
from ingle.cli.options import VerbGroup
from ingle.settings import data_folder

MISSING = "the kernel needs more packages; install them with `pip install 'ingle[jupyter]'`"


@click.group(cls=VerbGroup, epilog="Example: ingle kernel install")
def kernel() -> None:
    """Use sessions as kernels of Jupyter, for JupyterLab, VS Code, nbclient and papermill."""


@kernel.command(epilog="Example: ingle kernel install --session main")
@click.option("--session", metavar="NAME", help="Install a kernel that joins this live session, and no other.")
@click.option("--prefix", metavar="DIR", help="Install below this folder. Default: for the current user.")
def install(session: str | None, prefix: str | None) -> None:
    """Install a kernel for the default interpreter and one for each environment.

    A kernel finds the running service of this user, or starts one for itself. Its session ends with it.
    """
    try:
        from ingle.kernel import specs
    except ImportError:
        raise Failure(MISSING) from None
    from ingle.environments.store import Store
    from ingle.sessions.spec import check_name

    if session is not None:
        check_name(session)
        wanted = [specs.of_session(session)]
    else:
        names = Store(data_folder()).names()
        wanted = [specs.default_spec(), *(specs.of_environment(name) for name in sorted(names))]
    for spec in wanted:
        try:
            folder = specs.write(spec, prefix)
        except OSError as error:
            raise Failure(f"the kernel {spec.name} cannot be installed: {error}") from None
        echo(f"{spec.name}: {spec.shown}, in {folder}")


@kernel.command(hidden=True)
@click.option("-f", "connection_file", required=True, metavar="FILE", help="Connection file of Jupyter.")
@click.option("--environment", metavar="NAME", help="Environment of the session.")
@click.option("--session", metavar="NAME", help="Live session to join.")
def run(connection_file: str, environment: str | None, session: str | None) -> None:
    """Run a kernel. Jupyter calls this."""
    try:
        from ingle.kernel.kernel import run as run_kernel
    except ImportError:
        raise Failure(MISSING) from None
    run_kernel(connection_file, environment, session)

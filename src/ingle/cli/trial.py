"""`ingle trial`, `commit`, `discard`, `try`, `merge`, `adopt`: code in copies of a session, and what becomes of it."""

from typing import TYPE_CHECKING, Any

import click

from ingle.cli.completion import session_argument
from ingle.cli.echo import echo, echo_change, echo_json, tell
from ingle.cli.options import Quantity, json_option
from ingle.cli.services import Choice, Target, find_session, service_options
from ingle.errors import TrialNotFound
from ingle.quantities import SECONDS

if TYPE_CHECKING:
    from ingle.trials import Trial

network_option = click.option(
    "--network",
    type=click.Choice(["held", "allowed"]),
    default="held",
    show_default=True,
    help="Hold connections, or let them out.",
)


@click.command(epilog="Example: ingle trial main 'del df'; ingle discard main")
@session_argument
@click.argument("code", required=False)
@service_options
@network_option
@click.option(
    "--policy", help="Commit by itself if these rules hold, e.g. 'files=own,bytes=10MB'; '' for the defaults."
)
@json_option
def trial(session: str, code: str | None, choice: Choice, network: str, policy: str | None, as_json: bool) -> None:
    """Run code in a copy of a session, and show what it would change; without CODE, list the open trial.

    `ingle commit` then makes the copy the session, and `ingle discard` drops it. Until then the session is busy. If the
    code fails and has changed nothing, it is dropped at once. The exit code is that of `ingle run`.

    \b
    Rules of --policy:
      network=none|any            hosts that the code may have asked for
      files=none|own|any          files that may differ: none, of the own folder, all
      deletes=yes|no              whether files may be deleted
      bytes=SIZE                  most bytes that are written
      variables=none|created|any  variables that may differ
    """
    path = f"/v1/sessions/{session}"
    target = find_session(choice, session)
    if code is None:
        said = target.ask("GET", f"{path}/trials")
    else:
        asked: dict[str, Any] = {"code": code, "trial": True, "network": network}
        if policy is not None:
            asked["policy"] = _rules(policy)
        said = target.ask("POST", f"{path}/execute", asked)
    if code is not None:
        _tell_trial(target, session, said, as_json)
    elif as_json:
        echo_json(said)
    else:
        for each in said["trials"]:
            _show(each)
        if not said["trials"]:
            echo(f"session {session!r} has no open trial")


@click.command(epilog="Example: ingle commit main")
@session_argument
@click.argument("name", required=False)
@service_options
@json_option
def commit(session: str, name: str | None, choice: Choice, as_json: bool) -> None:
    """Make a trial the session, without running anything again. Default: the open one."""
    target = find_session(choice, session)
    said = target.ask("POST", f"/v1/sessions/{session}/trials/{_name(target, session, name)}/commit", {})
    if as_json:
        echo_json(said)
    else:
        echo_change(said)


@click.command(epilog="Example: ingle discard main")
@session_argument
@click.argument("name", required=False)
@service_options
@json_option
def discard(session: str, name: str | None, choice: Choice, as_json: bool) -> None:
    """Drop a trial. Default: the open one."""
    target = find_session(choice, session)
    name = _name(target, session, name)
    target.ask("POST", f"/v1/sessions/{session}/trials/{name}/discard", {})
    tell({"discarded": name}, f"{name} is discarded", as_json)


@click.command("try", epilog="Example: ingle try main 'm = fit(1)' 'm = fit(2)' --score 'm.score'")
@session_argument
@click.argument("codes", nargs=-1, required=True)
@service_options
@click.option("--score", metavar="EXPRESSION", help="Evaluate this in each copy; the highest number wins.")
@click.option(
    "--keep",
    type=click.Choice(["best", "first_ok", "none"]),
    default="best",
    show_default=True,
    help="Keep the copy with the highest score, the first that succeeds, or none. Without --score, best is first_ok.",
)
@click.option("--budget", type=Quantity(SECONDS), help="Stop all of them after this time.")
@network_option
@json_option
def try_cells(
    session: str,
    codes: tuple[str, ...],
    choice: Choice,
    score: str | None,
    keep: str,
    budget: float | None,
    network: str,
    as_json: bool,
) -> None:
    """Run each code in a copy of a session at the same time, and keep one copy as the session.

    The copy that is kept has a star. The other copies end, and their variables and files with them.

    Exit code: 0 one is kept, or --keep is none; 1 none could be kept, 2 ingle could not run them.
    """
    given = {"codes": list(codes), "score": score, "keep": keep, "budget": budget, "network": network}
    asked = {key: value for key, value in given.items() if value is not None}
    said = find_session(choice, session).ask("POST", f"/v1/sessions/{session}/try", asked)
    exit_code = 1 if said["chosen"] is None and keep != "none" else 0
    if as_json:
        echo_json(said)
        raise SystemExit(exit_code)
    for each in said["variants"]:
        chosen = "*" if each["index"] == said["chosen"] else " "
        scored = "" if each["score"] is None else f"  score {each['score']:g}"
        failed = "" if each["error"] is None else f"  {each['error']}"
        echo(f"{chosen} {each['index']}  {each['status']}{scored}  {each['execution_time']:.2f} s{failed}")
    kept_none = ["no variant was kept; the session is as it was"] if said["chosen"] is None else []
    for notice in [*kept_none, *said["notices"]]:
        echo(notice, err=True)
    raise SystemExit(exit_code)


@click.command(epilog="Example: ingle merge main try --only df,model --file plot.png")
@session_argument
@click.argument("fork")
@service_options
@click.option("--only", default="", help="Variables, with commas between them.")
@click.option("--file", "files", multiple=True, help="File of the fork's folder.")
@json_option
def merge(session: str, fork: str, choice: Choice, only: str, files: tuple[str, ...], as_json: bool) -> None:
    """Take single variables and files from a fork into a session."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    if not names and not files:
        raise click.UsageError("name what to take: --only NAMES, or --file PATH")
    said = find_session(choice, session).ask(
        "POST", f"/v1/sessions/{session}/merge", {"fork": fork, "variables": names, "files": list(files)}
    )
    if as_json:
        echo_json(said)
        return
    for name in said["variables"]:
        echo(f"{name}{' (replaced)' if name in said['replaced'] else ''}")
    for path in said["files"]:
        echo(path)
    for notice in said["notices"]:
        echo(notice, err=True)


@click.command(epilog="Example: ingle adopt main try")
@session_argument
@click.argument("fork")
@service_options
@json_option
def adopt(session: str, fork: str, choice: Choice, as_json: bool) -> None:
    """Make a fork the session that it was forked from, without running anything again.

    Variables and files of SESSION give way to those of FORK, and FORK ends. `ingle diff` shows what differs, and a
    checkpoint of SESSION keeps the state before.
    """
    said = find_session(choice, session).ask("POST", f"/v1/sessions/{session}/adopt", {"fork": fork})
    if as_json:
        echo_json(said)
    else:
        echo_change(said)


def _rules(text: str) -> dict[str, Any]:
    """Return the rules of a policy, as a request names them."""
    from ingle.quantities import parse_size

    found: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = (each.strip() for each in part.partition("="))
        if name == "bytes":
            try:
                found[name] = parse_size(value)
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint="--policy") from None
        elif name == "deletes" and value in ("yes", "no"):
            found[name] = value == "yes"
        else:
            found[name] = value
    return found


def _name(target: Any, session: str, name: str | None) -> str:
    """Return the name of a trial; without one, of the open trial."""
    from urllib.parse import quote

    if name is None:
        known = target.ask("GET", f"/v1/sessions/{session}/trials")["trials"]
        if not known:
            raise TrialNotFound(session, None, [])
        name = str(known[0]["name"])
    return quote(name, safe="")


def _tell_trial(target: Target, session: str, said: dict[str, Any], as_json: bool) -> None:
    """Show the result of a trial's cell, and its effect. Discard it if it failed and has no effect."""
    import msgspec

    from ingle.cli.show import exit_code
    from ingle.events import Result

    result = msgspec.convert(said, Result)
    trial = result.trial
    assert trial is not None
    failed = trial.effect is not None and not result.success
    if trial.effect is not None and failed and trial.effect.is_empty and not trial.discarded:
        target.ask("POST", f"/v1/sessions/{session}/trials/{trial.name}/discard", {})
        said["trial"]["discarded"] = True
    if as_json:
        echo_json(said)
    else:
        echo(result.stdout, nl=False)
        echo(result.stderr, nl=False, err=True)
        if result.error is not None:
            echo(result.error.traceback.rstrip("\n"), err=True)
        elif result.result is not None:
            echo(result.result.get("text/plain", ""))
        if not trial.discarded:
            _show(said["trial"])
        if line := _next_step(session, trial, failed=failed):
            echo(line, err=True)
    if failed:
        raise SystemExit(exit_code(result))


def _next_step(session: str, trial: "Trial", *, failed: bool) -> str:
    """Return what has become of a trial, or what to do with it."""
    drop, commit = f"`ingle discard {session}`", f"`ingle commit {session}`"
    if trial.discarded:
        return f"{trial.name} was discarded while its cell ran"
    if failed and trial.effect is not None and trial.effect.is_empty:
        return f"{trial.name} is discarded: its cell failed and changed nothing"
    if failed:
        return f"its cell failed: drop it with {drop}, or commit what it did with {commit}"
    if trial.decision is not None and trial.decision.committed:
        return ""
    return f"commit it with {commit}, or drop it with {drop}"


def _show(trial: dict[str, Any]) -> None:
    import msgspec

    from ingle.render.effect import decision_text, effect_text
    from ingle.trials import Decision, Effect

    decision = trial["decision"]
    told = "" if decision is None else f" {decision_text(msgspec.convert(decision, Decision))}"
    echo(f"{trial['name']}:{told}", err=True)
    if trial["effect"] is None:
        echo("its cell still runs")
    else:
        echo(effect_text(msgspec.convert(trial["effect"], Effect)))

"""What the operator grants: folders, interpreters, levels, networks; and that a request can only ask for less."""

import os
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from ingle import errors
from ingle.isolation.egress.allow_list import Entry
from ingle.isolation.policy import Mount, Policy
from ingle.requests import Bounds, NewSession, SessionLimits
from support.server import Server, problem
from support.service import make_settings

GIB = 1024**3


@pytest.fixture
def granted(tmp_path: Path) -> Path:
    folder = tmp_path / "granted"
    (folder / "below").mkdir(parents=True)
    return folder


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What pip is configured with on this machine is not what these tests are about."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def policy(tmp_path: Path, level: str = "sandbox", home: Path | None = None, **settings: object) -> Policy:
    """That grants what the test says, and nothing of what sessions of other tests are granted."""
    granted: dict[str, object] = {"mount": [], **settings}
    return Policy(make_settings(isolation=level, **granted), home or tmp_path / "home")  # type: ignore[arg-type]


def test_a_session_starts_in_granted_folders_only(tmp_path: Path, granted: Path) -> None:
    operator = policy(tmp_path, mount=[str(granted)])
    assert operator.settle(NewSession(cwd=str(granted))).cwd == str(granted)
    assert operator.settle(NewSession(cwd=f"{granted}/below")).cwd == f"{granted}/below"
    assert operator.settle(NewSession()).cwd is None
    (tmp_path / "granted-not").mkdir()
    (granted / "link").symlink_to("/etc")
    for elsewhere in ("/", "/etc", str(tmp_path), f"{granted}-not", f"{granted}/..", f"{granted}/link"):
        with pytest.raises(errors.NotGranted, match="ingle grant"):
            operator.settle(NewSession(cwd=elsewhere))
        with pytest.raises(errors.NotGranted, match="--mount"):
            operator.settle(NewSession(cwd=elsewhere, tenant="other"))
    for nowhere in (f"{granted}/not there", "granted", "", "\0"):
        with pytest.raises(errors.InvalidRequest, match="there is no folder"):
            operator.settle(NewSession(cwd=nowhere))


def test_a_refusal_tells_nothing_about_what_is_not_granted(tmp_path: Path, granted: Path) -> None:
    """A folder, a file, a link and nothing at all give the same answer, by whatever way they are named."""
    secret = tmp_path / "secret"
    (secret / "folder").mkdir(parents=True)
    (secret / "file").touch()
    (secret / "link").symlink_to("/")
    (secret / "back").symlink_to(granted)
    (secret / "circular").symlink_to(secret / "circular")
    operator = policy(tmp_path, mount=[str(granted)])
    names = ("folder", "file", "link", "circular", "nothing")
    for tenant in ("", "other"):
        answers = set()
        for name in names:
            with pytest.raises(errors.NotGranted) as refused:
                operator.settle(NewSession(cwd=f"{secret}/{name}", tenant=tenant))
            answers.add(str(refused.value).replace(f"{secret}/{name}", "PATH"))
        assert len(answers) == 1
    # A tenant's path may leave its folder and come back: what it passes on the way is not looked at.
    back = f"../../{granted.name}/below"
    for name in names:
        way = granted / f"by-{name}"
        way.symlink_to(f"{secret}/{name}/{back}")
        for cwd in (f"{secret}/{name}/{back}", str(way)):
            assert operator.settle(NewSession(cwd=cwd, tenant="other")).cwd == f"{granted}/below"
    with pytest.raises(errors.NotGranted):
        operator.settle(NewSession(cwd=f"{secret}/back", tenant="other"))
    for name in names:
        with pytest.raises(errors.NotGranted, match=f"{secret}/{name}/python"):
            operator.settle(NewSession(python=f"{secret}/{name}/python", tenant="other"))


def test_a_folder_that_the_operator_names_by_a_link_is_found_by_that_name(tmp_path: Path, granted: Path) -> None:
    (tmp_path / "short").symlink_to(granted.name)
    operator = policy(tmp_path, mount=[f"{tmp_path}/short:ro"])
    for tenant in ("", "other"):
        assert operator.settle(NewSession(cwd=f"{tmp_path}/short/below", tenant=tenant)).cwd == f"{granted}/below"


def test_a_link_that_the_server_may_not_read_is_refused_like_any_other_path(tmp_path: Path) -> None:
    """`os.path.realpath` raises for such a link: here, the folder of a process that may not be looked at."""
    unreadable = "/proc/1/cwd"
    try:
        os.readlink(unreadable)
    except PermissionError:
        pass
    else:
        pytest.skip("this user may read the links of every process")
    for tenant in ("", "other"):
        for wanted in (NewSession(cwd=unreadable, tenant=tenant), NewSession(python=f"{unreadable}/p", tenant=tenant)):
            with pytest.raises(errors.NotGranted):
                policy(tmp_path).settle(wanted)
    with pytest.raises(errors.InvalidRequest, match="there is no folder"):
        policy(tmp_path, "none").settle(NewSession(cwd=unreadable))


def test_a_link_that_leads_into_a_granted_folder_is_followed_once(tmp_path: Path, granted: Path) -> None:
    (tmp_path / "way").symlink_to(granted / "below")
    assert policy(tmp_path, mount=[str(granted)]).settle(NewSession(cwd=f"{tmp_path}/way")).cwd == f"{granted}/below"


def test_where_code_is_trusted_the_owner_starts_anywhere_and_tenants_do_not(tmp_path: Path) -> None:
    for level in ("none", "limits"):
        operator = policy(tmp_path, level)
        assert operator.settle(NewSession(cwd="/etc")).cwd == "/etc"
        assert operator.settle(NewSession(python="/opt/any/python")).python == "/opt/any/python"
        with pytest.raises(errors.NotGranted):
            operator.settle(NewSession(cwd="/etc", tenant="other"))
        with pytest.raises(errors.NotGranted):
            operator.settle(NewSession(python="/opt/any/python", tenant="other"))
        with pytest.raises(errors.NotGranted):
            operator.settle(NewSession(cwd="/etc", isolation="sandbox"))


def test_tenants_have_their_own_part_of_the_data_folder_and_no_other(tmp_path: Path) -> None:
    parts = {tenant: tmp_path / "home" / "workspace" / tenant for tenant in ("a", "b", ".owner")}
    for part in parts.values():
        part.mkdir(parents=True)
    operator = policy(tmp_path)
    assert operator.settle(NewSession(cwd=str(parts["a"]), tenant="a")).mounts == (Mount(str(parts["a"])),)
    assert operator.settle(NewSession(cwd=str(parts[".owner"]))).mounts == (Mount(str(parts[".owner"])),)
    for part, tenant in (("b", "a"), (".owner", "a"), ("a", "")):
        with pytest.raises(errors.NotGranted):
            operator.settle(NewSession(cwd=str(parts[part]), tenant=tenant))
    with pytest.raises(errors.NotGranted):
        operator.settle(NewSession(cwd=str(tmp_path / "home")))


def test_a_folder_granted_around_the_data_tells_nothing_of_the_data(tmp_path: Path) -> None:
    part = tmp_path / "home" / "tenants" / "a"
    part.mkdir(parents=True)
    operator = policy(tmp_path, mount=[f"{tmp_path}:ro"])
    assert operator.settle(NewSession(cwd=str(part), tenant="a")).cwd == str(part)
    for tenant in ("", "b"):
        assert operator.settle(NewSession(cwd=str(tmp_path), tenant=tenant)).cwd == str(tmp_path)
        for cwd in (part, part.with_name("nobody"), tmp_path / "home", tmp_path / "home" / "token"):
            with pytest.raises(errors.NotGranted):
                operator.settle(NewSession(cwd=str(cwd), tenant=tenant))


def test_mounts_are_read_as_the_operator_writes_them(tmp_path: Path, granted: Path) -> None:
    operator = policy(tmp_path, mount=[str(granted), f"{granted}/below:ro"])
    assert operator.mounts == (Mount(str(granted)), Mount(f"{granted}/below", read_only=True))
    with pytest.raises(errors.InvalidRequest, match="no folder"):
        policy(tmp_path, mount=["/not/there"])
    with pytest.raises(errors.InvalidRequest, match="whole file system"):
        policy(tmp_path, mount=["/"])


def test_the_servers_own_data_is_never_granted(tmp_path: Path) -> None:
    (tmp_path / "home" / "sessions").mkdir(parents=True)
    for mount in (str(tmp_path), str(tmp_path / "home"), f"{tmp_path}/home/sessions", f"{tmp_path}/home:ro"):
        with pytest.raises(errors.InvalidRequest, match="own data"):
            policy(tmp_path, mount=[mount])


@pytest.fixture
def environment(granted: Path) -> str:
    """The interpreter of a virtual environment in the granted folder."""
    venv.create(granted / "env", with_pip=False, symlinks=True)
    return str(granted / "env" / "bin" / "python")


def test_interpreters_come_from_the_operators_list(tmp_path: Path, granted: Path, environment: str) -> None:
    own = policy(tmp_path)
    (granted / "planted").touch()
    assert own.settle(NewSession()).python == sys.executable
    assert own.settle(NewSession(python=sys.executable)).python == sys.executable
    for other in (environment, "/bin/sh", str(granted / "planted")):
        with pytest.raises(errors.NotGranted, match="--pythons"):
            own.settle(NewSession(python=other))
    with pytest.raises(errors.InterpreterRefused, match="there is no interpreter at /nope"):
        own.settle(NewSession(python="/nope"))
    with pytest.raises(errors.NotGranted, match="--pythons"):
        own.settle(NewSession(python="/nope", tenant="other"))
    listed = policy(tmp_path, pythons=[environment])
    assert listed.settle(NewSession(python=environment)).python == environment
    # What the link points to is another interpreter: it is the environment that was granted.
    if os.path.realpath(environment) != sys.executable:
        with pytest.raises(errors.NotGranted):
            listed.settle(NewSession(python=os.path.realpath(environment)))


def test_an_interpreter_that_sessions_can_write_is_not_started(tmp_path: Path, granted: Path, environment: str) -> None:
    for level in ("restricted", "sandbox"):
        with pytest.raises(errors.InterpreterRefused, match=f"--mount {granted}:ro"):
            policy(tmp_path, level, mount=[str(granted)]).settle(NewSession(python=environment))
        read_only = policy(tmp_path, level, mount=[f"{granted}:ro"]).settle(NewSession(python=environment))
        assert read_only.python == environment
    # A program of that name is not an environment's interpreter.
    planted = granted / "below" / "python"
    planted.touch(0o755)
    with pytest.raises(errors.NotGranted):
        policy(tmp_path, mount=[str(granted)]).settle(NewSession(python=str(planted)))


@pytest.mark.parametrize("level", ["restricted", "sandbox"])
def test_of_mounts_that_lie_in_each_other_the_innermost_counts(
    tmp_path: Path, granted: Path, environment: str, level: str
) -> None:
    """A session could have planted an interpreter in the one that it may write."""
    inner = str(granted / "env")
    for mounts in ([f"{granted}:ro", inner], [inner, f"{granted}:ro"], [f"{inner}:ro", inner]):
        with pytest.raises(errors.InterpreterRefused, match=f"--mount {inner}:ro"):
            policy(tmp_path, level, mount=mounts).settle(NewSession(python=environment))
    kept = policy(tmp_path, level, mount=[str(granted), f"{inner}:ro"])
    if level == "sandbox":
        assert kept.settle(NewSession(python=environment)).python == environment
    else:
        with pytest.raises(errors.InterpreterRefused):
            kept.settle(NewSession(python=environment))


def test_the_operators_interpreter_in_a_granted_folder_is_kept_from_writing(
    tmp_path: Path, granted: Path, environment: str
) -> None:
    grant = policy(tmp_path, mount=[str(granted)], python=environment).settle(NewSession())
    assert grant.mounts == (Mount(str(granted)), Mount(str(granted / "env"), read_only=True))


def test_the_interpreter_that_the_server_runs_on_is_kept_from_writing_too(
    tmp_path: Path, granted: Path, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", environment)
    grant = policy(tmp_path, mount=[str(granted)], python="/usr/bin/python3").settle(NewSession())
    assert grant.mounts == (Mount(str(granted)), Mount(str(granted / "env"), read_only=True))


@pytest.mark.parametrize("link", [True, False])
def test_what_an_operators_environment_is_one_of_is_kept_from_writing_too(
    tmp_path: Path, granted: Path, link: bool
) -> None:
    base = granted / "python" / "bin" / "python"
    base.parent.mkdir(parents=True)
    base.write_text("#!/bin/sh\n")
    base.chmod(0o755)
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    if link:
        python.symlink_to(base)
    else:
        python.write_bytes(base.read_bytes())
        python.chmod(0o755)
        (tmp_path / "env" / "pyvenv.cfg").write_text(f"version = 3.12\nhome = {base.parent}\n")
    grant = policy(tmp_path, mount=[str(granted)], python=str(python)).settle(NewSession())
    assert grant.mounts == (Mount(str(granted)), Mount(str(granted / "python"), read_only=True))


def test_folders_with_modules_of_the_servers_own_are_kept_from_writing(
    tmp_path: Path, granted: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An editable install, for one: the server would run what a session put there when it is next started."""
    (granted / "src").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(granted / "src"), str(granted / "not there")])
    grant = policy(tmp_path, mount=[str(granted)]).settle(NewSession())
    assert grant.mounts == (Mount(str(granted)), Mount(str(granted / "src"), read_only=True))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert policy(tmp_path, mount=[str(granted)]).settle(NewSession()).mounts == grant.mounts
    assert caplog.messages == []
    monkeypatch.setattr(sys, "path", [*sys.path, str(granted)])
    assert Mount(str(granted)) in policy(tmp_path, mount=[str(granted)]).settle(NewSession()).mounts
    assert caplog.messages == [f"this server loads modules from {granted}, where sessions write; start it elsewhere"]


def test_an_interpreter_is_not_started_over_a_link_that_sessions_could_turn(
    tmp_path: Path, granted: Path, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (granted / "current").symlink_to("env")
    (granted / "round").symlink_to("round")
    outside = tmp_path / "outside"
    outside.symlink_to(granted / "current")
    for way in (granted / "current", outside):
        python = f"{way}/bin/python"
        with pytest.raises(errors.InvalidRequest, match=f"name it as {environment}"):
            policy(tmp_path, mount=[str(granted)], python=python)
        with pytest.raises(errors.InvalidRequest, match=f"name it as {environment}"):
            policy(tmp_path, mount=[str(granted)], pythons=[python])
        assert policy(tmp_path, mount=[f"{granted}:ro"], python=python).settle(NewSession()).python == python
        assert policy(tmp_path, "none", mount=[str(granted)], python=python).settle(NewSession()).python == environment
        with monkeypatch.context() as patch:
            # The server itself was started by it: then it is known where it is, and stays so.
            patch.setattr(sys, "executable", python)
            assert policy(tmp_path, mount=[str(granted)], python=python).settle(NewSession()).python == environment
    with pytest.raises(errors.InvalidRequest, match="circular"):
        policy(tmp_path, mount=[str(granted)], python=f"{granted}/round/bin/python")
    # Nobody can turn this one.
    outside.unlink()
    outside.symlink_to(granted / "env")
    grant = policy(tmp_path, mount=[str(granted)], python=f"{outside}/bin/python").settle(NewSession())
    assert (grant.python, grant.mounts[-1]) == (f"{outside}/bin/python", Mount(str(granted / "env"), read_only=True))


@pytest.mark.parametrize(
    ("wanted", "gets"),
    [
        (NewSession(), ("restricted", "full")),
        (NewSession(isolation="restricted"), ("restricted", "full")),
        (NewSession(isolation="sandbox"), ("sandbox", "allowlist")),
        (NewSession(isolation="sandbox", network="none"), ("sandbox", "none")),
        (NewSession(bounds=Bounds(isolation="none")), ("restricted", "full")),
        (NewSession(bounds=Bounds(isolation="sandbox")), ("sandbox", "allowlist")),
        (NewSession(bounds=Bounds(isolation="sandbox", network="none")), ("sandbox", "none")),
        (NewSession(isolation="limits"), "restricted"),
        (NewSession(isolation="restricted", bounds=Bounds(isolation="sandbox")), "this token"),
        (NewSession(isolation="sandbox", network="full"), "--network full"),
        (NewSession(isolation="sandbox", network="allowlist", bounds=Bounds(network="none")), "this token"),
        (NewSession(network="none"), "only a sandbox"),
        (NewSession(bounds=Bounds(network="none")), "only a sandbox"),
    ],
)
def test_a_request_or_token_asks_for_less_and_never_for_more(
    tmp_path: Path, wanted: NewSession, gets: str | tuple[str, str]
) -> None:
    operator = policy(tmp_path, "restricted")
    if isinstance(gets, str):
        with pytest.raises(errors.NotGranted, match=gets):
            operator.settle(wanted)
    else:
        grant = operator.settle(wanted)
        assert (grant.isolation, grant.network) == gets


def test_the_smallest_limit_counts(tmp_path: Path) -> None:
    operator = policy(tmp_path, "limits", limit_memory=4 * GIB)
    token = Bounds(limits=SessionLimits(memory=2 * GIB, files=4096))
    assert operator.settle(NewSession(bounds=token)).limits.memory == 2 * GIB
    assert operator.settle(NewSession(bounds=token)).limits.files == 1024
    assert operator.settle(NewSession(bounds=token, limits=SessionLimits(memory=GIB))).limits.memory == GIB
    with pytest.raises(errors.NotGranted, match="this token"):
        operator.settle(NewSession(bounds=token, limits=SessionLimits(memory=3 * GIB)))
    assert operator.settle(NewSession(limits=SessionLimits(memory=3 * GIB))).limits.memory == 3 * GIB


def test_the_package_index_is_granted_as_pip_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@10.0.0.9:3141/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    operator = policy(tmp_path)
    grant = operator.settle(NewSession())
    assert grant.mounts == (Mount(str(tmp_path / "wheels"), read_only=True),)
    assert grant.environment["PIP_INDEX_URL"] == "http://10.0.0.9:3141/simple"
    assert operator.hosts().entries == (Entry("10.0.0.9", 3141, near=True),)
    assert policy(tmp_path, allow_host=[]).hosts().entries == ()
    both = (Entry("10.0.0.9", 3141, near=True), Entry("a.example", 99))
    assert policy(tmp_path, allow_host=["a.example:99"]).hosts().entries == both
    assert policy(tmp_path, allow_host=["a.example:99", "index"]).hosts().entries == both
    assert policy(tmp_path, allow_host=["none"]).hosts().entries == ()
    assert policy(tmp_path, allow_host=["none", "a.example:99"]).hosts().entries == (Entry("a.example", 99),)
    assert policy(tmp_path, "none").settle(NewSession()).environment == {}
    for wrong, said in (
        ("*", "it is not a host name; give HOST or HOST:PORT"),
        ("a.example:x", "'x' is not a port; give HOST or HOST:PORT"),
        ("http://a.example/b", "it is a URL; give its host, a.example"),
    ):
        with pytest.raises(errors.InvalidRequest) as refused:
            policy(tmp_path, allow_host=[wrong]).hosts()
        assert refused.value.message == f"{wrong!r} cannot be an allowed host: {said}"


@pytest.mark.parametrize("link", [False, True])
def test_a_configuration_of_pip_that_sessions_can_write_grants_nothing(
    tmp_path: Path, granted: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    """Else one would add a host or a folder to what the server grants when it is next started."""
    (tmp_path / "private").mkdir()
    config = tmp_path / "pip.conf"
    written = granted / "pip.conf"
    written.write_text(f"[global]\nextra-index-url = http://10.0.0.9/simple\nfind-links = {tmp_path}/private\n")
    config.symlink_to(written)
    monkeypatch.delenv("PIP_CONFIG_FILE")
    without = policy(tmp_path, mount=[str(granted)])
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config if link else written))
    operator = policy(tmp_path, mount=[str(granted)])
    assert operator.settle(NewSession()) == without.settle(NewSession())
    assert operator.hosts().entries == without.hosts().entries
    for mounts in ([f"{granted}:ro"], [str(tmp_path), f"{granted}:ro"]) if not link else ([f"{granted}:ro"],):
        read = policy(tmp_path, home=tmp_path.with_name("home"), mount=mounts)
        assert Entry("10.0.0.9", 80, near=True) in read.hosts().entries
        assert Mount(f"{tmp_path}/private", read_only=True) in read.settle(NewSession()).mounts


def test_the_configuration_in_an_environment_that_is_kept_from_writing_counts(
    tmp_path: Path, granted: Path, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (granted / "env" / "pip.conf").write_text("[global]\nindex-url = http://10.0.0.9/simple\n")
    monkeypatch.delenv("PIP_CONFIG_FILE")
    for level, counts in (("sandbox", True), ("restricted", False)):
        operator = policy(tmp_path, level, mount=[str(granted)], python=environment)
        assert (Entry("10.0.0.9", 80, near=True) in operator.hosts().entries) == counts


def test_an_index_on_the_disk_is_granted_with_the_files_beside_it_unless_sessions_can_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("index/simple/hearth", "index/packages", "index/private"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "index/simple/hearth/index.html").write_text(
        '<a href="../../packages/a/hearth.whl#sha256=0">hearth</a>'
    )
    monkeypatch.setenv("PIP_INDEX_URL", f"file://{tmp_path}/index/simple")
    granted = [Mount(f"{tmp_path}/index/{name}", read_only=True) for name in ("simple", "packages")]
    assert policy(tmp_path).settle(NewSession()).mounts == tuple(granted)
    written = Mount(f"{tmp_path}/index/simple")
    assert policy(tmp_path, mount=[written.folder]).settle(NewSession()).mounts == (granted[0], written)


def test_over_http_what_is_not_granted_is_refused_in_plain_words(start: Callable[..., Server]) -> None:
    server = start("--isolation", "none")
    made = server.make_session("lower", limits={"files": 200})
    assert made["limits"]["files"] == 200
    body = problem(server.client.post("/v1/sessions", json={"network": "none"}), 403, "not_granted")
    assert "only a sandbox" in body["detail"]
    problem(server.client.post("/v1/sessions", json={"isolation": "some"}), 422, "invalid_request")
    problem(server.client.post("/v1/sessions", json={"limits": {"memory": "much"}}), 422, "invalid_request")
    problem(server.client.post("/v1/sessions", json={"limits": {"wishes": 3}}), 422, "invalid_request")


def test_a_token_brings_its_bounds(start: Callable[..., Server]) -> None:
    from ingle.callers import Limits
    from ingle.http.auth import tokens_file

    server = start("--isolation", "none")
    bounds = Bounds(limits=SessionLimits(files=300))
    token, _ = tokens_file.add(server.home, "few", "few", "execute", Limits(), bounds)
    headers = {"Authorization": f"Bearer {token}"}
    while (answer := server.client.post("/v1/sessions", json={}, headers=headers)).status_code == 401:
        pass
    assert answer.json()["limits"] == {"files": 300}
    refused = server.client.post("/v1/sessions", json={"limits": {"files": 400}}, headers=headers)
    assert "this token" in problem(refused, 403, "not_granted")["detail"]

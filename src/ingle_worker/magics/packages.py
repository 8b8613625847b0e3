"""`%pip install`: packages for one session, in its own folder on `sys.path`.

`pip` in a shell of the session runs this module in a process of its own.
The interpreter's folders are never written: they may be read-only, and other sessions use them. The installer is first
asked which packages are missing, then only those go into the folder. uv is used if it is on the PATH, else pip, or the
pip bundled with the standard library.
"""

import importlib
import json
import os
import re
import sys

from ingle_worker.magics import install_failure, subshell
from ingle_worker.magics.subshell import say, warn
from ingle_worker.wire import child_variables

_BASE = re.compile(r"(?:(?:\S*/)?python[\d.]*\s+-m\s+|uv\s+)?(?:\S*/)?pip[\d.]*(?:\s+(?P<rest>.*))?", re.DOTALL)
_OUTPUT_FILTERS = re.compile(
    r"\s*(?:(?:2>\s*&\s*1|[12]?>\s*/dev/null|&>\s*/dev/null)\s*)*"
    r"(?:\|\s*(?:tail|head|grep)\b[^|;&<>]*)?(?:2>\s*&\s*1|[12]?>\s*/dev/null)?\s*"
)
"""Suffixes with which people make `pip install` print less. They are dropped, because it prints little here."""

_MENTIONED = re.compile(r"\bpip[\d.]*\s+install\b")
_SPECIAL = set(";&|<>`$()\n")
_QUIET = re.compile("-q+|--quiet")
_NORMAL = re.compile(r"[-_.]+")

OPTIONS_WITH_VALUE = frozenset(
    """-i --index-url --extra-index-url -f --find-links --proxy --cert --client-cert --trusted-host --timeout
    --retries --cache-dir --no-binary --only-binary --config-settings -C --log --exists-action --global-option
    --keyring-provider --use-feature --use-deprecated --progress-bar -c --constraint --root-user-action
    --index-strategy --exclude-newer --resolution --prerelease --index --default-index""".split()  # noqa: SIM905
)
"""Options that take the next word as their value."""

OWN_TARGET_OPTIONS = (
    "-e",
    "--editable",
    "-t",
    "--target",
    "--prefix",
    "--root",
    "--user",
    "--dry-run",
    "--report",
    "-h",
    "--help",
)
"""Options with which the user chooses the target."""

SHELL_VARIABLES = ("PIP_TARGET", "PIP_UPGRADE", "PIP_DISABLE_PIP_VERSION_CHECK")
"""Variables with which any pip in a longer `!command` installs into the session's folder."""

SETTINGS_FOR_UV = {
    "PIP_INDEX_URL": ("--index-url", "-i", "UV_INDEX_URL", "UV_DEFAULT_INDEX"),
    "PIP_EXTRA_INDEX_URL": ("--extra-index-url", "UV_EXTRA_INDEX_URL", "UV_INDEX"),
    "PIP_FIND_LINKS": ("--find-links", "-f"),
    "PIP_CONSTRAINT": ("--constraint", "-c", "UV_CONSTRAINT"),
    "PIP_TRUSTED_HOST": ("--allow-insecure-host", "UV_INSECURE_HOST"),
}
"""Settings of pip, which uv does not read: the option of uv, then options and variables that come before it."""

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")

UPGRADING = ("-U", "--upgrade", "--force-reinstall", "-I", "--ignore-installed", "--upgrade-strategy")

_folder = ""


_known: list[str] = []
"""The folder of this session, then those of the sessions that it is a fork of."""


def start(folder: str) -> None:
    """Set the folder for packages, which exists."""
    global _folder
    _folder = folder
    if folder:
        if folder not in _known:
            _known.insert(0, folder)
        put_on_path()


def put_on_path() -> None:
    """Put the folder between the standard library and site-packages, and into the variables for child processes.

    A fork's folder comes before the one of its original.
    """
    if not _folder:
        return
    if _folder not in sys.path:
        ends = ("site-packages", "dist-packages")
        places = (n for n, each in enumerate(sys.path) if each in _known or str(each).endswith(ends))
        sys.path.insert(next(places, len(sys.path)), _folder)
    os.environ.update(child_variables.of_packages(_folder, os.environ))


def without_own(path: list[str]) -> list[str]:
    """Return a search path of modules or programs without the folders of the session's packages."""
    return [each for each in path if each not in _known and each.removesuffix("/bin") not in _known]


def main(argv: list[str]) -> None:
    """Run `pip ...` of a shell in a session."""
    start(os.environ[child_variables.PACKAGES])
    for name in SHELL_VARIABLES:
        os.environ.pop(name, None)
    try:
        code = pip(argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code if code >= 0 else 128 - code)


# --- arguments ---------------------------------------------------------------------------------------------


def split(line: str) -> list[str]:
    """Return the words of a line, as a shell splits them."""
    import shlex

    return shlex.split(line)


def arguments_of(command: str) -> list[str] | None:
    """Return the arguments of a plain pip command, else None. It is meant for this session's interpreter."""
    match = _BASE.fullmatch(command)
    if match is None:
        return None
    rest = match["rest"] or ""
    at = _unquoted_special(rest)
    if _OUTPUT_FILTERS.fullmatch(rest, at) is None:
        return None
    try:
        return split(rest[:at])
    except ValueError:
        return None


def _unquoted_special(text: str) -> int:
    """Return where shell syntax begins. The `>` of `six>=1.0` does not count as a redirection."""
    quote = ""
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _SPECIAL:
            word = text[:place].rpartition(" ")[2]
            if char not in "<>" or not word:
                return place
            if word in ("1", "2"):  # a descriptor number
                return place - 1
    return len(text)


def mentioned(command: str) -> bool:
    """Return whether `pip install` appears somewhere in the command."""
    return _MENTIONED.search(command) is not None


def shell(command: str) -> int:
    """Run a longer command with `pip install` in it by the shell, with pip's target set by the environment."""
    _make_folder()
    env = {**os.environ, **dict(zip(SHELL_VARIABLES, (_folder, "1", "1"), strict=True))}
    code = subshell.run([subshell.shell_path(), "-c", command], env=env)
    importlib.invalidate_caches()
    return code


def pip(arguments: list[str]) -> int:
    """Run `%pip ...` and return its exit code."""
    verb = next((each for each in arguments if not each.startswith("-")), "")
    if verb == "install" and not any(each.partition("=")[0] in OWN_TARGET_OPTIONS for each in arguments):
        at = arguments.index("install")
        return install(arguments[:at] + arguments[at + 1 :])
    if verb == "uninstall":
        return _uninstall(arguments)
    code = subshell.run([*_pip(), *arguments], env=_environment())
    importlib.invalidate_caches()
    return code


# --- installing --------------------------------------------------------------------------------------------


def install(arguments: list[str]) -> int:
    _make_folder()
    uv = _which("uv")
    tell = (lambda text: None) if any(_QUIET.fullmatch(each) for each in arguments) else say
    log: list[str] = []
    code, wanted = _plan_with_uv(uv, arguments, log) if uv else _plan_with_pip(arguments, log)
    if code == 0 and wanted:
        options = _options(arguments)
        tell("installing " + ", ".join(f"{name} {version}" for name, version, _ in wanted))
        where = ["--no-deps", "--target", _folder, *options, *(source for _, _, source in wanted)]
        if uv:
            command = [*_uv_install(uv, arguments), *where]
        else:
            command = [*_pip(), "install", "--upgrade", "--disable-pip-version-check", "--no-input", *where]
        code = _logged(command, log)
    importlib.invalidate_caches()
    _write_log(log)
    if code:
        _show_failure(log)
        return code
    if not wanted:
        tell("already there: " + (", ".join(_requirements(arguments)) or "everything that was asked for"))
        return 0
    tell("installed " + ", ".join(f"{name} {version}" for name, version, _ in wanted))
    ends_with = os.environ.get(child_variables.ENDS_WITH)
    if ends_with:
        names = " ".join(name for name, _, _ in wanted)
        tell(f"packages end with {ends_with}; keep them in a session by name, or by `ingle env create NAME {names}`")
    stale = sorted({module for name, version, _ in wanted for module in _modules(name) if module in sys.modules})
    if stale:
        say(f"{', '.join(stale)} was imported before: restart the session to use the new version")
    return 0


def _plan_with_pip(arguments: list[str], log: list[str]) -> tuple[int, list[tuple[str, str, str]]]:
    """Return name, version and requirement of each missing package."""
    report = os.path.join(_folder, f".report-{os.getpid()}.json")
    flags = ["--dry-run", "--report", report, "--disable-pip-version-check", "--no-input"]
    code = _logged([*_pip(), "install", *flags, *arguments], log)
    if code:
        return code, []
    try:
        with open(report, encoding="utf-8") as file:
            items = json.load(file)["install"]
        os.unlink(report)
    except (OSError, ValueError, KeyError) as error:
        log.append(f"pip's report could not be read: {error}\n")
        return 1, []
    wanted = []
    for item in items:
        name, version = str(item["metadata"]["name"]), str(item["metadata"]["version"])
        source = f"{name}=={version}"
        if item.get("is_direct"):
            source = _direct(name, item["download_info"])
        wanted.append((name, version, source))
    return 0, wanted


def _direct(name: str, info: dict[str, object]) -> str:
    url, vcs = str(info["url"]), info.get("vcs_info")
    if isinstance(vcs, dict):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    sub = info.get("subdirectory")
    return f"{name} @ {url}" + (f"#subdirectory={sub}" if sub else "")


def _plan_with_uv(uv: str, arguments: list[str], log: list[str]) -> tuple[int, list[tuple[str, str, str]]]:
    before = len(log)
    # Told to be quiet, uv would not print its plan.
    wanted_by_user = [each for each in arguments if not _QUIET.fullmatch(each)]
    code = _logged([*_uv_install(uv, arguments), "--dry-run", "--color", "never", *wanted_by_user], log)
    wanted = []
    for name, exact in re.findall(r"^ \+ (\S+?)((?:==| @ | \(from ).*)$", "".join(log[before:]), re.MULTILINE):
        if exact.startswith("=="):
            version = exact[2:].split()[0]
            source = f"{name}=={version}"
            direct = re.search(r"\(from (.+)\)", exact)
            if direct:
                source = f"{name} @ {direct[1]}"
        else:
            version, source = "", f"{name} {exact.strip()}"
        if _version_of(name) != version or any(each in UPGRADING[2:] for each in arguments):
            wanted.append((name, version, source))
    return code, wanted if code == 0 else []


def _uv_install(uv: str, arguments: list[str]) -> list[str]:
    """Return the command of uv with the settings of pip that the environment has."""
    given = {each.partition("=")[0] for each in arguments} | {name for name in os.environ if os.environ[name]}
    command = [uv, "pip", "install", "--python", sys.executable]
    if "--no-index" not in given and os.environ.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on"):
        command.append("--no-index")
    for name, (option, *others) in SETTINGS_FOR_UV.items():
        values = os.environ.get(name, "").split() if given.isdisjoint((option, *others)) else []
        if values and option == "--find-links":
            values += filter(None, os.environ.get("UV_FIND_LINKS", "").split(","))
        for value in dict.fromkeys(values):
            command += [option, value]
    return command


def _options(arguments: list[str]) -> list[str]:
    """Return the options with their values. They apply to the plan and to the installation."""
    options: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in ("-r", "--requirement", "--upgrade-strategy"):
            next(words, None)
        elif word in OPTIONS_WITH_VALUE:
            options += [word, next(words, "")]
        elif word.startswith("-") and not word.startswith(("-r", "--requirement=", *UPGRADING, "--no-deps")):
            options.append(word)
    return options


def _requirements(arguments: list[str]) -> list[str]:
    options = set(_options(arguments))
    return [each for each in arguments if not each.startswith("-") and each not in options]


def _uninstall(arguments: list[str]) -> int:
    """Remove packages from the session's folder here, because pip does not look there. Pass others to pip."""
    rest = [each for each in arguments if each.startswith("-") or each == "uninstall" or not _remove(each)]
    importlib.invalidate_caches()
    if all(each.startswith("-") or each == "uninstall" for each in rest):
        return 0
    rest.insert(rest.index("uninstall") + 1, "-y")
    return subshell.run([*_pip(), *rest], env=_environment())


def _remove(name: str) -> bool:
    info = _info_folder(name)
    if info is None:
        return False
    folders = set()
    for path in _recorded(info):
        full = os.path.normpath(os.path.join(_folder, path))
        if full.startswith(_folder + os.sep):
            try:
                os.unlink(full)
            except OSError:
                continue
            folders.add(os.path.dirname(full))
    for folder in sorted(folders, key=len, reverse=True):
        _remove_emptied(folder)
    say(f"removed {name} from the session's packages")
    return True


def _remove_emptied(folder: str) -> None:
    while folder.startswith(_folder + os.sep):
        try:
            cache = os.path.join(folder, "__pycache__")
            if os.path.isdir(cache) and os.listdir(folder) == ["__pycache__"]:
                for each in os.listdir(cache):
                    os.unlink(os.path.join(cache, each))
                os.rmdir(cache)
            os.rmdir(folder)
        except OSError:
            return
        folder = os.path.dirname(folder)


# --- contents of the folder --------------------------------------------------------------------------------


def _info_folder(name: str) -> str | None:
    wanted = _NORMAL.sub("-", name).lower()
    try:
        entries = os.listdir(_folder)
    except OSError:
        return None
    for each in entries:
        if each.endswith(".dist-info") and _NORMAL.sub("-", each[:-10].rpartition("-")[0]).lower() == wanted:
            return os.path.join(_folder, each)
    return None


def _version_of(name: str) -> str | None:
    info = _info_folder(name)
    return None if info is None else os.path.basename(info)[:-10].rpartition("-")[2]


def _recorded(info: str) -> list[str]:
    import csv

    try:
        with open(os.path.join(info, "RECORD"), encoding="utf-8", newline="") as file:
            return [row[0] for row in csv.reader(file) if row]
    except OSError:
        return []


def _modules(name: str) -> set[str]:
    """Return the module names of an installed package."""
    info = _info_folder(name)
    tops = {path.replace("\\", "/").partition("/")[0] for path in _recorded(info)} if info else set()
    return {
        each.partition(".")[0] for each in tops if not each.endswith((".dist-info", ".data", "..")) and each != "bin"
    }


# --- running the installer ---------------------------------------------------------------------------------


def _make_folder() -> None:
    global _folder
    if not _folder:
        _folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), "packages")
    os.makedirs(_folder, mode=0o700, exist_ok=True)
    put_on_path()


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip"]


def _environment() -> dict[str, str]:
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    # uv reads these instead of pip's.
    if env.get("PIP_CERT"):
        env.setdefault("SSL_CERT_FILE", env["PIP_CERT"])
    if env.get("PIP_PROXY"):
        env.update(dict.fromkeys(PROXIES, env["PIP_PROXY"]), NO_PROXY="", no_proxy="")
    paths = [each for each in (_bundled_pip(), _folder, os.environ.get("PYTHONPATH")) if each]
    if paths:
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.pathsep.join(paths).split(os.pathsep)))
    return env


def _bundled_pip() -> str | None:
    """Return the pip wheel of the standard library, if the interpreter has no pip."""
    from importlib.util import find_spec

    if find_spec("pip") is not None:
        return None
    library = os.path.join(os.path.dirname(os.__file__), "ensurepip", "_bundled")
    try:
        wheels = [each for each in os.listdir(library) if each.startswith("pip-") and each.endswith(".whl")]
    except OSError:
        wheels = []
    return os.path.join(library, wheels[0]) if wheels else None


def _which(name: str) -> str | None:
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _logged(command: list[str], log: list[str]) -> int:
    code, output = subshell.capture(command, env=_environment(), stdin=b"")
    log.append(output.decode("utf-8", "backslashreplace"))
    return code


def _write_log(log: list[str]) -> None:
    try:
        with open(os.path.join(_folder, "install.log"), "a", encoding="utf-8", errors="replace") as file:
            file.write("".join(log))
    except OSError:
        return


def _show_failure(log: list[str]) -> None:
    text = "".join(log)
    if "No module named pip" in text:
        warn(f"{sys.executable} has no pip, and there is no uv on the PATH: install one of them for the server")
        return
    reason, *others = install_failure.describe(text)
    warn("\n".join([f"nothing was installed: {reason}", *others]))
    warn(f"(full log: {os.path.join(_folder, 'install.log')})")

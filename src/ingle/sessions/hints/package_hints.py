"""Hints about modules that are not installed: how to install them, or that the package index does not have them.

The host asks the index that sessions may use, and only where the session itself could ask it. The result of a cell
waits a moment at most; an answer that comes later serves the next cell. Without an answer, only well-known modules get
a hint, which then does not claim that the index has them.
"""

import asyncio
import os
import re
import ssl
import sys
import time
from urllib.parse import unquote, urlsplit

from ingle.isolation.egress.package_index import PackageIndex
from ingle.isolation.policy import NO_HOSTS
from ingle.sessions.cells.hints import Failure, Hint

NAME = "ModuleNotFoundError"
MISSING = re.compile(r"No module named '([A-Za-z]\w{0,63})'")
"""Text for a module whose name has no dot. With a dot, its package is there, so no installation helps."""

ASK_SECONDS = 0.4
"""How long the result of a cell waits for the index."""

REQUEST_SECONDS = 5.0
SILENT_SECONDS = 60.0
"""Time without questions after the index has not answered in time."""

MAX_CODE_CHARS = 4000
"""Characters of a cell in which an installation is looked for. The search takes longer than the text."""

REMEMBER_SECONDS = 3600.0
MAX_REMEMBERED = 1000

KNOWN = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cairo": "pycairo",
    "community": "python-louvain",
    "cv2": "opencv-python-headless",
    "Crypto": "pycryptodome",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "GitPython",
    "igraph": "python-igraph",
    "jose": "python-jose",
    "jwt": "PyJWT",
    "lightgbm": "lightgbm",
    "magic": "python-magic",
    "MySQLdb": "mysqlclient",
    "mpl_toolkits": "matplotlib",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "pylab": "matplotlib",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "socks": "PySocks",
    "sqlalchemy": "SQLAlchemy",
    "telegram": "python-telegram-bot",
    "umap": "umap-learn",
    "usb": "pyusb",
    "xlsxwriter": "XlsxWriter",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
    **{
        name: name
        for name in ["matplotlib", "networkx", "numpy", "openpyxl", "pandas", "plotly", "polars", "pyarrow", "pytest"]
    },
    **{
        name: name
        for name in ["requests", "rich", "scipy", "seaborn", "six", "statsmodels", "sympy", "torch", "tqdm", "xgboost"]
    },
}
"""Distributions of well-known modules."""


class PackageHints:
    def __init__(self, index: PackageIndex, *, listed: bool) -> None:
        """`listed` is whether sessions with an allow-list may reach the index."""
        self._listed = listed
        self._ask = IndexQuestion(index)
        self._answers: dict[str, tuple[bool, float]] = {}
        self._asking: dict[str, asyncio.Task[bool | None]] = {}
        self._silent_until = 0.0

    async def find(self, failure: Failure) -> str | None:
        """Return a sentence that says how to install the missing module."""
        found = MISSING.fullmatch(failure.value)
        if found is None or found[1] in sys.stdlib_module_names:
            return None
        module = found[1]
        known = module in KNOWN
        package = KNOWN.get(module, module.replace("_", "-"))
        if failure.network == "none" or (failure.network == "allowlist" and not self._listed):
            return _unreachable(module, package) if known else None
        if _installs(failure.code, package):
            return None  # the cell has tried it, and shows why it failed
        has = await self._has(package)
        if has is None and not known:
            return None
        if has is False:
            return (
                f"{module} is not installed, and the package index has no package {package}; check the name, or put "
                "the folder of the module on sys.path"
            )
        install = f"`%pip install {package}` installs it for this session"
        if has is None:
            return f"{module} is not installed; it comes with the package {package}: {install}, if the index has it"
        if known:
            comes = "" if package == module else f"it comes with the package {package}: "
            return f"{module} is not installed; {comes}{install}"
        there = f"{module} is not installed; the package index has a package {package}"
        return f"{there}: if that is the one you mean, {install}"

    async def _has(self, package: str) -> bool | None:
        """Return whether the index has a package; None if it has not answered in time."""
        answer, until = self._answers.get(package, (False, 0.0))
        if time.monotonic() < until:
            return answer
        if package not in self._asking:
            if time.monotonic() < self._silent_until:
                return None
            asking = self._asking[package] = asyncio.get_running_loop().create_task(self._learn(package))
            asking.add_done_callback(lambda asking: self._asking.pop(package))
        asking = self._asking[package]
        done, _ = await asyncio.wait({asking}, timeout=ASK_SECONDS)
        if not done:
            self._silent_until = time.monotonic() + SILENT_SECONDS
            return None
        return asking.result()

    async def _learn(self, package: str) -> bool | None:
        try:
            answer = await asyncio.to_thread(self._ask, package)
        except (OSError, ValueError):  # also what urllib raises
            self._silent_until = time.monotonic() + SILENT_SECONDS
            return None
        if len(self._answers) >= MAX_REMEMBERED:
            self._answers.clear()
        self._answers[package] = (answer, time.monotonic() + REMEMBER_SECONDS)
        self._silent_until = 0.0
        return answer


def by_name(index: PackageIndex, allowed_hosts: list[str]) -> dict[str, Hint]:
    """Return the hints for missing modules. The setting `allow_host` says whether an allow-list has the index."""
    return {NAME: PackageHints(index, listed=bool(allowed_hosts) and NO_HOSTS not in allowed_hosts).find}


class IndexQuestion:
    """Question to the package index that sessions may use: does it have this package?"""

    def __init__(self, index: PackageIndex) -> None:
        self._urls = index.urls
        self._folders = index.folders
        self._certificates = index.environment.get("PIP_CERT")

    def __call__(self, package: str) -> bool:
        """Return whether the index has the package. Blocks; raises OSError if that cannot be found out."""
        normal = re.sub(r"[-_.]+", "-", package).lower()
        start = normal.replace("-", "_")
        for folder in self._folders:
            if os.path.isdir(os.path.join(folder, normal)):
                return True
            if os.path.isdir(folder) and any(_is_of(each, start) for each in os.listdir(folder)):
                return True
        return any(self._has(f"{url.rstrip('/')}/{normal}/") for url in self._urls)

    def _has(self, url: str) -> bool:
        parts = urlsplit(url)
        if parts.scheme == "file":
            return os.path.isdir(unquote(parts.path))
        if parts.scheme not in ("http", "https"):
            return False
        # Slow to import: every start of a service would wait for them.
        import urllib.error
        import urllib.request

        context = ssl.create_default_context(cafile=self._certificates) if parts.scheme == "https" else None
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, method="HEAD"), timeout=REQUEST_SECONDS, context=context
            ):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (404, 410):
                return False
            raise


def _is_of(file: str, start: str) -> bool:
    name = re.sub(r"[-_.]+", "_", file).lower()
    return file.endswith((".whl", ".tar.gz", ".zip")) and name.startswith(f"{start}_")


def _installs(code: str, package: str) -> bool:
    """Return whether a cell has a line that installs the package."""
    wanted = rf"\bpip[\d.]*\s+install\b.*(?<![\w-]){re.escape(package)}(?![\w-])"
    return re.search(wanted, code[:MAX_CODE_CHARS], re.IGNORECASE) is not None


def _unreachable(module: str, package: str) -> str:
    return (
        f"{module} is not installed; it comes with the package {package}, and this session cannot reach a package "
        f"index: use an environment that has it (`ingle env create NAME {package}`)"
    )

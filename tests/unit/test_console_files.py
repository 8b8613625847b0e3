"""The files of the console: vendored libraries as the manifest pins them, and small modules of our own."""

import hashlib
import json
import re

import msgspec

from ingle.http.console import assets

APP, VENDOR = assets.FOLDER / "app", assets.FOLDER / "vendor"

MAX_LINES = 4000
MAX_FILE_LINES = 400

FREE = {"MIT", "Apache-2.0", "ISC", "BSD-3-Clause"}
"""Licences under which ingle can hand a library on."""


class Package(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    version: str
    licence: str


class Bundle(msgspec.Struct, forbid_unknown_fields=True):
    file: str
    sha256: str
    bytes: int
    licences: str
    packages: list[Package]


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    command: str
    bundles: list[Bundle]


def manifest() -> Manifest:
    return msgspec.json.decode((VENDOR / "MANIFEST.json").read_bytes(), type=Manifest)


def test_every_vendored_file_is_the_one_that_the_manifest_names() -> None:
    named = {"MANIFEST.json"}
    for bundle in manifest().bundles:
        data = (VENDOR / bundle.file).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (bundle.sha256, bundle.bytes), bundle.file
        named |= {bundle.file, bundle.licences}
    assert {path.name for path in VENDOR.iterdir()} == named


def test_every_vendored_package_is_pinned_and_has_its_licence() -> None:
    tools = assets.FOLDER.parents[4] / "tools/vendor"
    pinned = json.loads((tools / "package.json").read_text("utf-8"))["dependencies"]
    locked = json.loads((tools / "package-lock.json").read_text("utf-8"))["packages"]
    for bundle in manifest().bundles:
        texts = (VENDOR / bundle.licences).read_text("utf-8")
        for package in bundle.packages:
            assert package.licence in FREE, package
            assert f"{package.name} {package.version}\n" in texts
            assert locked[f"node_modules/{package.name}"]["version"] == package.version
            assert pinned.get(package.name, package.version) == package.version


def test_the_page_imports_the_bundles_of_the_manifest() -> None:
    imported = re.findall(r'"\.\./vendor/([^"]+)"', (APP / "lib.js").read_text("utf-8"))
    assert sorted(imported) == sorted(bundle.file for bundle in manifest().bundles)


def test_the_page_is_small_and_names_no_other_host() -> None:
    own = [path for path in assets.FOLDER.rglob("*") if path.is_file() and VENDOR not in path.parents]
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in own}
    assert {name for name, length in lengths.items() if length > MAX_FILE_LINES} == set()
    assert sum(lengths.values()) < MAX_LINES
    for path in own:
        addresses = re.findall(r"\b(?:https?|wss?)://[^\"'\s)]+", path.read_text("utf-8"))
        # The name of the format in a picture is no address.
        assert [each for each in addresses if each != "http://www.w3.org/2000/svg"] == [], path.name


def test_the_page_makes_no_html_of_text() -> None:
    for path in APP.glob("*.js"):
        text = path.read_text("utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySet|document\.write|\beval\(", text), (
            path.name
        )


def test_every_kind_of_file_is_served() -> None:
    found = {str(path.relative_to(assets.FOLDER)) for path in assets.FOLDER.rglob("*") if path.is_file()}
    assert set(assets.load().files) == found

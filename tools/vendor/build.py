"""Bundle the libraries of the console page, as package-lock.json pins them, and write their manifest.

Run `python tools/vendor/build.py` after a change of package.json, and commit what it writes. It needs npm; contributors
and users do not, because the bundles are part of the repository.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "src/ingle/http/console/static/vendor"

COMMAND = "python tools/vendor/build.py"

BUNDLES = {"preact": "preact", "codemirror": "codemirror", "marked": "marked", "xterm": "@xterm/xterm"}
"""By entry file: the package whose version names the bundle."""

ESBUILD = [
    "--bundle",
    "--format=esm",
    "--minify",
    "--legal-comments=none",
    "--target=es2022",
    "--loader:.css=text",
    "--metafile=meta.json",
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for path in HERE.iterdir():
            if path.suffix in (".js", ".json"):
                shutil.copy(path, work)
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=work, check=True)
        shutil.rmtree(TARGET, ignore_errors=True)
        TARGET.mkdir(parents=True)
        bundles = [bundle(work, entry, package) for entry, package in BUNDLES.items()]
    text = json.dumps({"command": COMMAND, "bundles": bundles}, indent=2)
    (TARGET / "MANIFEST.json").write_text(text + "\n", "utf-8")


def bundle(work: Path, entry: str, package: str) -> dict[str, object]:
    """Write one bundle and the licences of all packages in it. Return its row of the manifest."""
    version = described(work, package)["version"]
    name = f"{entry}-{version}.bundle.js"
    subprocess.run(["npx", "esbuild", f"{entry}.js", *ESBUILD, f"--outfile={name}"], cwd=work, check=True)
    inputs = json.loads((work / "meta.json").read_text())["inputs"]
    packages = sorted({package_of(path) for path in inputs if path.startswith("node_modules/")})
    licences = f"{entry}-{version}.licences.txt"
    texts = [f"{each} {described(work, each)['version']}\n\n{licence_text(work, each)}" for each in packages]
    (TARGET / licences).write_text(f"\n{'-' * 80}\n".join(texts), "utf-8")
    data = (work / name).read_bytes()
    (TARGET / name).write_bytes(data)
    return {
        "file": name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "licences": licences,
        "packages": [
            {"name": each, "version": described(work, each)["version"], "licence": described(work, each)["license"]}
            for each in packages
        ],
    }


def package_of(path: str) -> str:
    parts = path.rpartition("node_modules/")[2].split("/")
    return "/".join(parts[:2]) if parts[0].startswith("@") else parts[0]


def described(work: Path, package: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((work / "node_modules" / package / "package.json").read_text("utf-8"))
    return found


def licence_text(work: Path, package: str) -> str:
    folder = work / "node_modules" / package
    for path in sorted(folder.iterdir()):
        if path.name.lower().startswith(("license", "licence")):
            return path.read_text("utf-8").strip() + "\n"
    raise SystemExit(f"{package} has no file with its licence; add one by hand")


if __name__ == "__main__":
    main()

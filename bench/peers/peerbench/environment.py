"""What a run needs and makes itself: a virtual environment with the pinned wheels, ggml from a pinned source package, ropewalk's shim."""
from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
REQUIREMENTS = HERE / "requirements.txt"
WITHOUT_DEPENDENCIES = HERE / "requirements-no-deps.txt"
SOURCES = HERE / "requirements-sources.txt"
GGML_OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=OFF",
                *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("TESTS", "TOOLS", "EXAMPLES", "SERVER", "COMMON"))]


def default_folder() -> Path:
    return Path(os.environ.get("ROPEWALK_CACHE", Path.home() / ".cache" / "ropewalk")) / "peers"


def say(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)


class Stamp:
    """Remembers the files that something was made from, so that it is made again when they change."""

    def __init__(self, path: Path, *files: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()

    def fresh(self) -> bool:
        return self._path.exists() and self._path.read_text() == self._digest

    def set(self) -> None:
        self._path.write_text(self._digest)


def install(folder: Path) -> Path:
    """The environment's python."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "venv" / "bin" / "python"
    stamp = Stamp(folder / "installed", REQUIREMENTS, WITHOUT_DEPENDENCIES)
    if not stamp.fresh():
        say(f"installing the peers into {folder} (several GB)")
        run(sys.executable, "-m", "venv", folder / "venv")
        run(python, "-m", "pip", "install", "--quiet", "--requirement", REQUIREMENTS)
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", WITHOUT_DEPENDENCIES)
        stamp.set()
    return python


def build_ggml(folder: Path, python: Path) -> Path:
    """The folder of libggml-*.so."""
    built = folder / "ggml"
    stamp = Stamp(folder / "ggml-built", SOURCES)
    if not stamp.fresh():
        say("building ggml from its source package")
        with tempfile.TemporaryDirectory(dir=folder) as work:
            run(python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", work, "--requirement", SOURCES)
            with tarfile.open(next(Path(work).glob("*.tar.gz"))) as package:
                package.extractall(work, filter="data")
            source = next(Path(work).glob("*/vendor/llama.cpp"))
            run("cmake", "-G", "Ninja", "-S", source, "-B", built, *GGML_OPTIONS)
            run("cmake", "--build", built, "--target", "ggml")
        stamp.set()
    return built / "bin"


def build_shim() -> Path:
    build = ROOT / "build" / "peers"
    say("building ropewalk")
    run("cmake", "--preset", "release", "-S", ROOT, "-B", build, "-DROPEWALK_BUILD_TESTS=OFF", "-DROPEWALK_BUILD_TOOLS=OFF", "--log-level=WARNING")
    run("cmake", "--build", build, "--target", "ropewalk_peers")
    return build / "lib" / "libropewalk_peers.so"

"""What installing Octavo brings along, and what its wheel holds."""

import importlib.metadata as metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 150_000_000


def closure(name: str, extra: str = "") -> set[str]:
    """`name` and all that it needs at run time here, as normalized names."""
    found: set[str] = set()
    pending = [name]
    while pending:
        current = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if current not in found:
            found.add(current)
            requirements = [Requirement(text) for text in metadata.requires(current) or ()]
            pending += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def installed_size(name: str) -> int:
    """Bytes of a distribution's files as its wheel brings them; what Python compiles from them is left out."""
    paths = [Path(str(file.locate())) for file in metadata.files(name) or () if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def test_everything_that_is_installed_stays_small():
    sizes = {name: installed_size(name) for name in closure("octavo") - {"octavo"}}
    assert all(sizes.values())
    sizes["octavo"] = sum(path.stat().st_size for path in (ROOT / "src").rglob("*.*") if path.suffix != ".pyc" and path.is_file())
    assert sum(sizes.values()) < LIMIT, sorted(sizes.items(), key=lambda item: -item[1])[:5]


def test_nothing_heavy_is_needed():
    needed = closure("octavo")
    assert {"numpy", "fastapi", "tokenizers"} <= needed
    assert not needed & {"torch", "triton", "transformers", "ray", "scipy", "pandas"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check", "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=300)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        info = {name.rsplit(".dist-info/", 1)[1] for name in archive.namelist() if ".dist-info/" in name}
    sources = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert names == {path.relative_to(ROOT / "src").as_posix() for path in sources}
    assert "octavo/py.typed" in names
    assert {"METADATA", "entry_points.txt", "licenses/LICENSE"} <= info


def test_the_wheel_s_command_runs(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import octavo; print(octavo.__file__); from octavo.cli.main import main; main(['--version'])"
    # -S would hide the dependencies too, so the wheel is put before the working tree.
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[0].startswith(str(tmp_path))
    assert re.fullmatch(r"octavo \d+\.\d+\.\d+\S*", done.stdout.splitlines()[1])


def test_the_development_tools_are_no_run_time_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    run_time = {Requirement(text).name for text in project["dependencies"]}
    tools = {Requirement(text).name for text in project["optional-dependencies"]["dev"]}
    assert {"pytest", "hypothesis", "openai", "ruff", "mypy", "import-linter"} <= tools
    assert not run_time & tools

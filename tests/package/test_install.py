"""What installing Octavo brings along, and what its wheel holds."""

import importlib.metadata as metadata
import os
import platform
import py_compile
import re
import subprocess
import sys
import tomllib
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import octavo
from octavo.backends.select import has_native

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 160_000_000
WHEEL_LIMIT = 2_000_000


def metadata_of_the_project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def closure(name: str, extra: str = "") -> set[str]:
    """`name` and all that it needs at run time here, as normalized names."""
    found: set[str] = set()
    pending = [name]
    while pending:
        current = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if current not in found:
            found.add(current)
            # An editable installation may be older than pyproject.toml.
            texts = metadata_of_the_project()["dependencies"] if current == "octavo" else metadata.requires(current)
            requirements = [Requirement(text) for text in texts or ()]
            pending += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def compiled_size(path: Path, scratch: Path) -> int:
    """Bytes of the bytecode that pip compiles from the file at installation."""
    if path.suffix != ".py":
        return 0
    target = scratch / "one.pyc"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            py_compile.compile(str(path), cfile=str(target), doraise=True)
    except py_compile.PyCompileError:
        return 0  # pip leaves such a file uncompiled too
    return target.stat().st_size


def installed_size(paths: Iterable[Path], scratch: Path) -> int:
    """Bytes that the files take once installed, the bytecode that pip compiles from them included."""
    files = [path for path in paths if path.suffix != ".pyc" and path.is_file()]
    return sum(path.stat().st_size + compiled_size(path, scratch) for path in files)


def test_everything_that_is_installed_stays_small(tmp_path: Path):
    sizes = {
        name: installed_size([Path(str(file.locate())) for file in metadata.files(name) or ()], tmp_path)
        for name in closure("octavo") - {"octavo"}
    }
    assert all(sizes.values())
    sizes["octavo"] = installed_size((ROOT / "src").rglob("*.*"), tmp_path)
    assert sum(sizes.values()) < LIMIT, (sum(sizes.values()), sorted(sizes.items(), key=lambda item: -item[1])[:12])


def test_nothing_heavy_is_needed():
    needed = closure("octavo")
    assert {"numpy", "fastapi", "tokenizers"} <= needed
    assert not needed & {"torch", "triton", "transformers", "ray", "scipy", "pandas"}
    assert not needed & {"typer", "rich", "pygments"}  # ten megabytes of them


def test_every_package_that_is_imported_is_declared():
    """What another package happens to bring along may be gone tomorrow."""
    homes = metadata.packages_distributions()
    declared = {re.sub(r"[-_.]+", "-", Requirement(text).name).lower() for text in metadata_of_the_project()["dependencies"]}
    # FastAPI is a layer over Starlette, whose types it hands on.
    declared.add("starlette")
    for path in (ROOT / "src").rglob("*.py"):
        for name in re.findall(r"^\s*(?:import|from) ([a-zA-Z_0-9]+)", path.read_text(), flags=re.MULTILINE):
            if name in homes and name != "octavo":
                assert {re.sub(r"[-_.]+", "-", home).lower() for home in homes[name]} & declared, f"{path} imports {name}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That in OCTAVO_WHEEL_DIR, if one was built there of these sources, or a new one."""
    built = list(Path(os.environ.get("OCTAVO_WHEEL_DIR") or "/nowhere").glob("*.whl"))
    if len(built) == 1:
        return built[0]
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


@pytest.mark.skipif(not has_native(), reason="Octavo was installed without a C++ compiler")
def test_the_wheel_has_one_native_module_for_the_pythons_that_it_names(wheel: Path):
    """From 3.12 on it is for the stable ABI, and so for all later versions."""
    with zipfile.ZipFile(wheel) as archive:
        modules = [name for name in archive.namelist() if name.endswith((".so", ".dylib"))]
    python, abi, system = wheel.stem.split("-")[2:]
    if sys.version_info >= (3, 12):
        assert (python, abi) == ("cp312", "abi3")
        assert modules == ["octavo/_native.abi3.so"]
    else:
        assert (python, abi) == ("cp311", "cp311")
        (module,) = modules
        assert re.fullmatch(r"octavo/_native\.cpython-311-[a-z0-9_-]+\.so", module)
    assert system != "any"
    assert wheel.stat().st_size < WHEEL_LIMIT


@pytest.mark.skipif(not has_native(), reason="Octavo was installed without a C++ compiler")
def test_a_wheel_in_an_empty_environment_serves_a_model(wheel: Path, tmp_path: Path):
    """With what pip finds for it and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    python = str(tmp_path / "venv/bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)], check=True, timeout=600)
    done = subprocess.run([python, str(ROOT / "scripts/check_wheel.py")], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"octavo {octavo.__version__} on cpython {platform.python_version()}: _native.")


def test_the_wheel_s_command_runs(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import octavo; print(octavo.__file__); from octavo.cli.main import main; main(['--version'])"
    # -S would hide the dependencies too, so the wheel is put before the working tree.
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[0].startswith(str(tmp_path))
    assert re.fullmatch(r"octavo \d+\.\d+\.\d+\S*", done.stdout.splitlines()[1])


# From the manual of pip 22.3, which Python 3.11.0 brings; Debian 12 has 23.0.1. Both lack -C, which came with 23.1.
OPTIONS_OF_PIP = {"-q", "-e", "-w", "--no-deps", "--config-settings", "--disable-pip-version-check", "--python"}


def test_pip_is_called_with_options_that_the_oldest_python_s_own_has():
    files = [*(ROOT / "scripts").glob("*.sh"), ROOT / ".ci/run", ROOT / "Makefile"]
    calls = [call for file in files for call in re.findall(r"-m pip ((?:--python|install|wheel) .*)", file.read_text())]
    options = {option for call in calls for option in re.findall(r"(?<!\S)--?[a-zA-Z][a-z-]*", call)}
    assert options <= OPTIONS_OF_PIP
    assert {"-e", "--config-settings", "--disable-pip-version-check"} <= options


def test_the_development_tools_are_no_run_time_dependency():
    project = metadata_of_the_project()
    run_time = {Requirement(text).name for text in project["dependencies"]}
    tools = {Requirement(text).name for text in project["optional-dependencies"]["dev"]}
    assert {"pytest", "hypothesis", "openai", "ruff", "mypy", "import-linter"} <= tools
    assert not run_time & tools

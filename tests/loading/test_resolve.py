import subprocess
import sys

import pytest
import raw_gguf

from octavo.loading.resolve import resolve_model
from octavo.protocol.errors import ModelLoadError


def test_a_file_and_a_folder_are_themselves(tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(raw_gguf.build())
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"")
    assert resolve_model(str(file)) == file
    assert resolve_model(str(folder)) == folder
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/m.gguf") == file
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name").resolve() == folder


def test_a_folder_with_one_gguf_means_that_file(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"")
    (tmp_path / "config.json").write_bytes(b"{}")
    assert resolve_model(str(tmp_path)) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"several GGUF files; give one of a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    "name", ["nothing", "", "/no/such/model.gguf", "models/gone.gguf", "./x", "a/b/c", "x" * 5000, "a\0b", "http://a/b"]
)
def test_a_name_that_means_nothing_says_what_was_tried(name):
    with pytest.raises(ModelLoadError) as caught:
        resolve_model(name)
    assert caught.value.message == (
        f"no model {name!r}: there is no such file or folder, and it is none of the aliases (smollm2), pypi:PACKAGE, or ORG/NAME on the hub"
    )


def test_a_revision_is_refused_where_it_means_nothing(tmp_path):
    for name in ("smollm2", "pypi:x", str(tmp_path)):
        with pytest.raises(ModelLoadError, match=r"revision 'v1' can't hold for .*; only models on the hub have revisions"):
            resolve_model(name, revision="v1")


def test_names_are_resolved_without_heavy_imports(tmp_path):
    program = (
        "import sys, octavo.loading.resolve, octavo.loading.open, octavo.quantization.decode\n"
        "heavy = {'gguf', 'huggingface_hub', 'rich', 'safetensors', 'torch', 'requests', 'httpx'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

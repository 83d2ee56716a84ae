"""`import octavo` costs next to nothing and pulls in nothing heavy."""

import subprocess
import sys
import time

import pytest
from patience import patient

import octavo

HEAVY = {
    "torch",
    "transformers",
    "triton",
    "ray",
    "fastapi",
    "starlette",
    "uvicorn",
    "tokenizers",
    "numpy",
    "zmq",
    "gguf",
    "huggingface_hub",
}


def seconds(code: str) -> float:
    """The shortest of several runs of a fresh interpreter: the one that other work on the machine disturbed least."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def loaded_by(code: str) -> set[str]:
    code = f"{code}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_import_takes_under_300_milliseconds():
    assert seconds("import octavo") - seconds("pass") < patient(0.3)


def test_import_loads_nothing_heavy():
    loaded = loaded_by("import octavo")
    assert "octavo" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("code", ["from octavo import LLM, AsyncLLM, SamplingParams", "import octavo.server.run", "import octavo.cli.app"])
def test_nothing_loads_torch_or_transformers(code: str):
    assert not loaded_by(code) & {"torch", "transformers", "triton", "ray"}


def test_grammars_are_loaded_with_the_first_one_only():
    assert "llguidance" not in loaded_by(
        "import octavo.server.run, octavo.engine.process; from octavo import LLM, AsyncLLM, StructuredOutputsParams"
    )


def test_the_public_surface():
    assert octavo.__all__ == [
        *("LLM", "AsyncLLM", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence"),
        *("CompletionOutput", "EmbeddingRequestOutput", "Logprob", "PoolingParams", "PoolingRequestOutput"),
        *("RequestOutput", "SamplingParams", "StructuredOutputsParams", "__version__"),
    ]
    assert set(octavo.__all__) <= set(dir(octavo))
    for name in octavo.__all__:
        assert getattr(octavo, name).__name__ == name if name != "__version__" else octavo.__version__


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        octavo.Nonsense  # noqa: B018


def test_all_of_it_can_be_imported_with_a_star():
    names: dict[str, object] = {}
    exec("from octavo import *", names)
    assert set(octavo.__all__) <= set(names)

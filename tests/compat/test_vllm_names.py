"""The package vllm of compat/: vLLM's names for what Octavo has, and nothing of its own."""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.metadata
import importlib.util
import itertools
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import vllm
from vllm import LLM, AsyncEngineArgs, AsyncLLMEngine, EngineArgs, PoolingParams, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import StructuredOutputsParams

import octavo
from octavo.cli.main import main as octavo_main
from octavo.protocol.errors import ConfigError, EngineDeadError, InvalidRequestError, ModelLoadError

COMPAT = Path(__file__).resolve().parents[2] / "compat"
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def model(fixtures_dir: Path) -> str:
    return str(fixtures_dir / "tiny-llama")


def test_names_are_octavos():
    assert (LLM, SamplingParams, StructuredOutputsParams, RequestOutput, CompletionOutput) == (
        *(octavo.LLM, octavo.SamplingParams, octavo.StructuredOutputsParams),
        *(octavo.RequestOutput, octavo.CompletionOutput),
    )
    assert {"LLM", "SamplingParams", "AsyncLLMEngine", "InferenceEngine"} <= set(dir(vllm))
    with pytest.raises(AttributeError, match="'vllm' has no attribute 'LLMM'"):
        _ = vllm.LLMM


def test_every_name_can_be_loaded():
    for name in dir(vllm):
        assert getattr(vllm, name) is not None
    for path in COMPAT.glob("vllm/**/*.py"):
        parts = path.relative_to(COMPAT).with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        for name in getattr(module, "__all__", ()):
            assert getattr(module, name) is not None


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("vllm", "ModelRegistry", "README"),
        ("vllm", "ScoringOutput", "generate or embed"),
        ("vllm.outputs", "ClassificationRequestOutput", "generate or embed"),
        ("vllm.sampling_params", "GuidedDecodingParams", "StructuredOutputsParams now, which SamplingParams takes as structured_outputs"),
        ("vllm.utils", "FlexibleArgumentParser", "argparse.ArgumentParser"),
        ("vllm.utils.argparse_utils", "FlexibleArgumentParser", "argparse.ArgumentParser"),
        ("vllm.transformers_utils.tokenizer", "get_tokenizer", r"LLM.get_tokenizer\(\)"),
        ("vllm.config", "VllmConfig", r"EngineArgs\(...\).create_engine_config\(\)"),
    ],
)
def test_a_name_that_octavo_lacks_says_what_to_do_instead(module: str, name: str, instead: str):
    with pytest.raises(ImportError, match=rf"^Octavo has no {module}.{name}: .*{instead}"):
        exec(f"from {module} import {name}")
    assert name not in dir(importlib.import_module(module))


def test_helpers_that_programs_import():
    from vllm.utils import random_uuid

    made = {random_uuid() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in made)


def test_the_engines_have_their_newer_homes():
    from vllm.engine.llm_engine import LLMEngine
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.llm_engine import LLMEngine as Newer

    assert (AsyncLLM, Newer, vllm.LLMEngine) == (AsyncLLMEngine, LLMEngine, LLMEngine)


def test_the_version_says_whose_names_and_whose_code():
    assert vllm.__version__ == f"0.32.0+octavo.{octavo.__version__}"
    done = subprocess.run(
        [sys.executable, "-c", "import vllm, sys; print(vllm.__version__, 'numpy' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{vllm.__version__} False\n"


def test_it_holds_names_only():
    for path in COMPAT.glob("vllm/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.While), path


def test_its_command_is_octavos():
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="vllm")
    assert command.value == "octavo.cli.main:main"


def test_its_command_tells_the_version_of_the_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for program, line in (("vllm", vllm.__version__), ("octavo", f"octavo {octavo.__version__}")):
        monkeypatch.setattr(sys, "argv", [f"/usr/bin/{program}", "--version"])
        with pytest.raises(SystemExit) as left:
            octavo_main()
        assert not left.value.code
        assert capsys.readouterr().out == f"{line}\n"


def test_it_goes_with_this_octavo():
    project = tomllib.loads((COMPAT / "pyproject.toml").read_text())["project"]
    assert project["version"] == octavo.__version__
    assert project["dependencies"] == [f"octavo=={octavo.__version__}"]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The build backend, over a flit that only says what it was asked for."""
    flit, api = types.ModuleType("flit_core"), types.ModuleType("flit_core.buildapi")
    api.build_wheel = lambda *arguments: ("wheel", arguments)  # type: ignore[attr-defined]
    api.build_editable = lambda *arguments: ("editable", arguments)  # type: ignore[attr-defined]
    flit.buildapi = api  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flit_core", flit)
    monkeypatch.setitem(sys.modules, "flit_core.buildapi", api)
    spec = importlib.util.spec_from_file_location("refuse_vllm", COMPAT / "refuse_vllm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_not_built_where_vllm_is(backend: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend.sysconfig, "get_path", lambda name: str(tmp_path))
    assert backend.build_wheel("w") == ("wheel", ("w", None, None))
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    for build in (backend.build_wheel, backend.build_editable):
        with pytest.raises(RuntimeError, match="vLLM itself is installed in"):
            build("w")
    (tmp_path / "octavo_vllm-0.1.0.dist-info").mkdir()
    assert backend.build_editable("w", None, "m") == ("editable", ("w", None, "m"))


def test_it_says_so_when_vllm_is_there_too(tmp_path: Path):
    info = tmp_path / "vllm-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import vllm"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "octavo-vllm and vllm 0.32.0 are both installed" in done.stderr


def test_what_has_not_landed_is_refused_by_name(model: str):
    for name, value, words in [
        ("tensor_parallel_size", 4, "it runs on one device"),
        ("quantization", "awq", "awq, gptq .* can't be read yet"),
        ("enable_lora", True, "no adapters"),
    ]:
        for make in (LLM, EngineArgs):
            with pytest.raises(ConfigError, match=rf"^{name}: .* is not supported by this version of Octavo: .*{words}"):
                make(model=model, **{name: value})
    with pytest.raises(TypeError, match=r"AsyncEngineArgs\(\) has no argument 'max_modl_len'; did you mean max_model_len\?"):
        AsyncEngineArgs(model=model, max_modl_len=8)


def test_engine_arguments_make_a_configuration(model: str):
    args = AsyncEngineArgs(
        model, max_model_len=64, max_num_seqs=3, gpu_memory_utilization=0.25, dtype="half", trust_remote_code=True, seed=5
    )
    config = args.create_engine_config()
    assert (config.model.model, config.model.max_model_len, config.kv_cache_dtype, config.seed) == (model, 64, "float16", 5)
    assert (config.scheduler.max_num_seqs, config.cache.gpu_memory_utilization) == (3, 0.25)
    assert EngineArgs(model, tokenizer=model).create_engine_config().seed == 0


async def test_the_async_engine_gives_all_so_far_and_ends(model: str):
    with LLM(model, quiet=True) as llm:
        expected = llm.generate("The cat", GREEDY, use_tqdm=False)[0].outputs[0]
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model, quiet=True, kv_cache_memory_bytes=1 << 24))
    assert (engine.is_running, engine.errored) == (False, False)
    outputs = [output async for output in engine.generate("The cat", GREEDY, "a")]
    for before, after in itertools.pairwise(outputs):
        assert after.outputs[0].token_ids[: len(before.outputs[0].token_ids)] == before.outputs[0].token_ids
    assert (outputs[-1].outputs[0].token_ids, outputs[-1].outputs[0].text) == (expected.token_ids, expected.text)
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    with pytest.raises(InvalidRequestError, match=r"^lora_request: 'a'"):
        await anext(engine.generate("x", GREEDY, "b", LoRARequest("a", 1)))
    endless = engine.generate("The cat", SamplingParams(max_tokens=None, ignore_eos=True), "c")
    await anext(endless)
    await endless.aclose()
    await engine.check_health()
    assert (engine.is_running, engine.errored) == (True, False)
    assert (await engine.get_tokenizer()).encode("The cat") == outputs[0].prompt_token_ids
    (encoded,) = [output async for output in engine.encode("The cat", PoolingParams("mean"), "d")]
    with LLM(model, quiet=True) as llm:
        assert encoded.outputs.data == llm.embed("The cat", PoolingParams("mean"), use_tqdm=False)[0].outputs.embedding
    await engine.close()
    await engine.close()
    assert not engine.is_running
    with pytest.raises(EngineDeadError, match="is closed"):
        await engine.check_health()


async def test_an_async_engine_of_a_configuration(model: str):
    args = AsyncEngineArgs(model, max_model_len=64, kv_cache_memory_bytes=1 << 24)
    async with AsyncLLMEngine.from_vllm_config(args.create_engine_config()) as engine:
        assert (await engine.start()).info.max_model_len == 64
        assert [output async for output in engine.generate("The cat", GREEDY, "a")][-1].finished
    for other in (model, {"model": model}, None):
        with pytest.raises(TypeError, match=r"^AsyncLLMEngine\(\) takes EngineArgs, or what their create_engine_config"):
            AsyncLLMEngine(other)  # type: ignore[arg-type]


async def test_an_async_engine_that_could_not_start_says_so_each_time_and_closes(tmp_path: Path):
    engine = AsyncLLMEngine(AsyncEngineArgs(model=str(tmp_path / "nowhere"), quiet=True))
    for _ in range(2):
        with pytest.raises(ModelLoadError, match="nowhere"):
            await engine.start()
    assert (engine.is_running, engine.errored) == (False, True)
    await engine.close()
    await engine.close()


async def test_an_async_engine_that_is_closed_while_it_starts_says_so_to_who_waits(model: str):
    engine = AsyncLLMEngine(AsyncEngineArgs(model=model, quiet=True, kv_cache_memory_bytes=1 << 24))
    waiting = asyncio.ensure_future(anext(engine.generate("The cat", GREEDY, "a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert engine._starting is not None
    await engine.close()
    with pytest.raises(EngineDeadError, match="closed while it started"):
        await waiting
    assert (engine.is_running, engine.errored) == (False, False)


def test_an_async_engine_belongs_to_the_event_loop_that_it_was_started_in(model: str):
    engine = AsyncLLMEngine(AsyncEngineArgs(model=model, quiet=True, kv_cache_memory_bytes=1 << 24))

    async def use_elsewhere():
        for use in (engine.start, engine.close):
            with pytest.raises(RuntimeError, match="another event loop"):
                await use()

    async def use():
        await engine.start()
        await asyncio.to_thread(asyncio.run, use_elsewhere())
        await engine.close()

    asyncio.run(use())

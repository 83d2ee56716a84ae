"""Every flag of `octavo serve` reaches a field of EngineConfig or ServerOptions, and every field has a flag."""

import inspect
import sys
import types
from dataclasses import fields

import pytest

from octavo.cli.flags import flag_name
from octavo.cli.main import main
from octavo.cli.refused import REFUSED
from octavo.cli.serve import serve
from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, StructuredOutputsConfig
from octavo.config.server import ServerOptions


@pytest.fixture
def run(monkeypatch):
    """Runs `octavo serve ARGS` with a server that only notes what it was started with; returns (exit code, config, options)."""
    started = []

    def run_server(config, options):
        started.append((config, options))
        return 3

    module = types.ModuleType("octavo.server.run")
    module.serve = run_server  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "octavo.server.run", module)
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)

    def run(*args):
        started.clear()
        with pytest.raises(SystemExit) as exit:
            main(["serve", *args])
        return (exit.value.code, *(started[0] if started else (None, None)))

    return run


def test_defaults_are_the_configuration_s_own(run):
    assert run() == (3, EngineConfig(), ServerOptions())


def test_a_folder_for_the_prefix_cache(run):
    assert run("--prefix-cache-dir", "d")[1] == EngineConfig(cache=CacheConfig(prefix_cache_dir="d"))
    assert run("--prefix-cache-dir", "d", "--no-enable-prefix-caching")[0] != 3


def test_numbers_of_tokens_take_units(run):
    config = run("--max-model-len", "1.5k", "--max-num-batched-tokens", "2K")[1]
    assert (config.model.max_model_len, config.scheduler.max_num_batched_tokens) == (1500, 2048)


def test_every_flag_reaches_its_field(run):
    code, config, options = run(
        *["m", "--revision", "r", "--download-dir", "d", "--max-model-len", "99", "--generation-config", "vllm"],
        *["--block-size", "32", "--gpu-memory-utilization", "0.25", "--kv-cache-memory", "2GiB", "--num-gpu-blocks-override", "7"],
        *["--dtype", "half"],
        *["--no-enable-prefix-caching", "--kv-cache-dtype", "int8", "--scheduling-policy", "priority"],
        *["--swap-space", "4GiB", "--preemption-mode", "swap"],
        *["--max-grammar-size", "128KiB", "--max-compiled-grammars", "9"],
        *["--max-num-batched-tokens", "64", "--max-num-seqs", "3", "--backend", "cpu", "--threads", "2", "--no-pin-threads", "--seed", "5"],
        *[
            "--host",
            "0.0.0.0",
            "--port",
            "0",
            "--api-key",
            "k1",
            "--api-key",
            "k2",
            "--served-model-name",
            "n1",
            "--served-model-name",
            "n2",
        ],
        *["--max-body-size", "1MiB", "--max-logprobs", "5", "--chat-template", "t", "--response-role", "bot", "--allowed-origins", "*"],
        *["--trust-request-chat-template", "--no-enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"],
        *["--tool-parser-plugin", "parsers.py"],
        *["--root-path", "/x", "--log-level", "debug", "--access-log", "--shutdown-timeout", "1.5", "--pooling", "mean"],
        *["--root-path", "/x", "--log-level", "debug", "--access-log", "--shutdown-timeout", "1.5"],
        *["--request-timeout", "2.5", "--max-num-queued-reqs", "9"],
    )
    assert code == 3
    assert config == EngineConfig(
        model=ModelConfig("m", revision="r", download_dir="d", max_model_len=99, generation_config="vllm", dtype="float16", max_logprobs=5),
        cache=CacheConfig(32, 0.25, 2 * 2**30, 7, False, "int8", swap_space=4 * 2**30),
        scheduler=SchedulerConfig(64, 3, "priority", "swap"),
        backend=BackendConfig("cpu", 2, pin_threads=False),
        structured_outputs=StructuredOutputsConfig(2**17, 9),
        seed=5,
    )
    assert options == ServerOptions(
        host="0.0.0.0",
        port=0,
        api_key=("k1", "k2"),
        served_model_name=("n1", "n2"),
        max_body_bytes=2**20,
        chat_template="t",
        response_role="bot",
        trust_request_chat_template=True,
        enable_auto_tool_choice=False,
        tool_call_parser="hermes",
        tool_parser_plugin="parsers.py",
        reasoning_parser="qwen3",
        allowed_origins=("*",),
        root_path="/x",
        uvicorn_log_level="debug",
        access_log=True,
        shutdown_timeout=1.5,
        pooling="mean",
        request_timeout=2.5,
        max_queued_requests=9,
    )
    # Each value above differs from its default, so a flag that went nowhere would show; and no field is without one.
    for part, default in [
        (config.model, ModelConfig()),
        (config.cache, CacheConfig()),
        (config.scheduler, SchedulerConfig()),
        (config.backend, BackendConfig()),
        (config.structured_outputs, StructuredOutputsConfig()),
        (config, EngineConfig()),
        (options, ServerOptions()),
    ]:
        for field in fields(part):
            if field.name == "prefix_cache_dir":  # which can't be, beside --no-enable-prefix-caching
                continue
            assert getattr(part, field.name) != getattr(default, field.name), field.name


def test_every_parameter_is_a_field():
    kinds = (ModelConfig, CacheConfig, SchedulerConfig, BackendConfig, StructuredOutputsConfig, ServerOptions)
    known = {field.name for kind in kinds for field in fields(kind)} | {"seed"}
    assert set(inspect.signature(serve).parameters) - {"ctx", "model_option"} == known


def test_vllm_s_other_spellings(run):
    _, config, options = run(
        "--model", "m", "--kv-cache-memory-bytes", "1024", "--uvicorn-log-level", "error", "--allowed-origins", '["a", "b"]'
    )
    assert (config.model.model, config.cache.kv_cache_memory) == ("m", 1024)
    assert (options.uvicorn_log_level, options.allowed_origins) == ("error", ("a", "b"))


def test_short_spellings(run):
    args = ["--precision", "bf16", "--gpu-mem-usage", "0.85", "--server-port", "8080", "--max-batch", "7", "--trust-remote-code"]
    code, config, options = run("m", *args, "--parallel-size", "1", "--no-prefix-caching")
    assert code == 3
    assert (config.model.dtype, config.kv_cache_dtype, options.port) == ("bfloat16", "bfloat16", 8080)
    assert config.cache == CacheConfig(gpu_memory_utilization=0.85, enable_prefix_caching=False)
    assert config.scheduler == SchedulerConfig(max_num_seqs=7)
    assert run("m", "--prefix-caching")[1].cache == CacheConfig()
    assert run("m", "--precision", "fp16")[1].model.dtype == "float16"


def test_keys_from_the_environment(run, monkeypatch):
    monkeypatch.setenv("OCTAVO_API_KEY", "k1, k2")
    assert run()[2].api_key == ("k1", "k2")
    assert run("--api-key", "k3")[2].api_key == ("k3",)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--block-size", "17"], 1, "octavo: --block-size must be a power of two"),
        (
            ["--kv-cache-dtype", "fp8_e5m2"],
            1,
            "octavo: --kv-cache-dtype must be one of auto, float32, bfloat16, float16, int8, fp8, fp8_e4m3, not 'fp8_e5m2'",
        ),
        (["--precision", "fp8"], 1, "octavo: --precision (--dtype) must be one of auto, float32, bfloat16, float16"),
        (["--dtype", "float32"], 1, "octavo: --dtype: float32 needs the backend"),
        (["--kv-cache-memory", "0"], 1, "octavo: --kv-cache-memory must be over 0"),
        (["--num-gpu-blocks-override", "0"], 1, "octavo: --num-gpu-blocks-override must be at least 1"),
        (["--num-gpu-blocks-override", "9" * 23], 1, "octavo: --num-gpu-blocks-override must be at most"),
        (["--max-num-seqs", "9" * 23], 1, "octavo: --max-num-seqs must be at most"),
        (["--max-model-len", "9" * 23], 1, "octavo: --max-model-len must be at most"),
        (["--kv-cache-memory", "9" * 23], 1, "octavo: --kv-cache-memory must be over 0 and at most"),
        (["--kv-cache-memory", "9" * 400 + ".5GiB"], 2, "is not a size"),
        (["--kv-cache-memory", "9" * 5000], 2, "is not a size"),
        (["--seed", "9" * 23], 1, "octavo: --seed must be from"),
        (["--threads", "5000"], 1, "octavo: --threads must be from 0"),
        (["--shutdown-timeout", "inf"], 1, "octavo: --shutdown-timeout must be from 0"),
        (["--api-key", "k\udcff"], 1, "octavo: --api-key holds what is not valid UTF-8"),
        (["--served-model-name", "n\udcff"], 1, "octavo: --served-model-name holds what is not valid UTF-8"),
        (["--response-role", "r\udcff"], 1, "octavo: --response-role is not valid UTF-8"),
        (["m\udcff.gguf"], 1, "octavo: --model is not valid UTF-8"),
        (["--port", "70000"], 1, "octavo: --port must be from 0 to 65535"),
        (["--log-level", "loud"], 1, "octavo: --log-level must be one of"),
        (["--max-body-size", "0"], 1, "octavo: --max-body-size must be at least 1"),
        (["--allowed-origins", "[1]"], 1, "octavo: --allowed-origins must be an origin"),
        (["--backend", "abacus"], 1, "octavo: --backend must be one of"),
        (["--kv-cache-memory", "lots"], 2, "'lots' is not a size"),
        (["--max-model-len", "1.5K"], 2, "'1.5K' is not a valid integer; write it like 8192, 8K (8192) or 25.6k (25600)"),
        (["--max-num-batched-tokens", "some"], 2, "'some' is not a valid integer"),
        (["--max-num-batched-tokens", "-1k"], 1, "octavo: --max-num-batched-tokens must be at least 1, not -1000"),
        (["--port", "x"], 2, "--port"),
        (["--no-such-flag"], 2, "--no-such-flag"),
        (["a", "--model", "b"], 2, "two models"),
        (["a", "b"], 2, "b"),
    ],
)
def test_a_bad_value_is_named_and_nothing_starts(run, capsys, args, code, message):
    assert run(*args) == (code, None, None)
    said = " ".join(capsys.readouterr().err.replace("│", "").split())  # as one line, whatever box it was drawn in
    assert message in said
    assert "Traceback" not in said


def test_no_flag_is_both_offered_and_refused():
    offered = {flag_name(name) for name in inspect.signature(serve).parameters}
    assert not offered & {refused.flag for refused in REFUSED}

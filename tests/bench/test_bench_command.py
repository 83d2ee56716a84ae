"""`octavo bench` from the command line, and the servers that it starts."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from processes import children, is_alive, wait_until

from octavo.bench.server_process import ServerProcess, cpu_seconds, memory_of
from octavo.cli.app import app
from octavo.cli.bench import server_arguments
from octavo.cli.flags import engine_config
from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, StructuredOutputsConfig
from octavo.protocol.errors import EngineDeadError

BENCH = [sys.executable, "-m", "octavo", "bench"]
TINY = ["--num-gpu-blocks-override", "128", "--threads", "1"]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BENCH, *args], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def tiny(fixtures_dir) -> str:
    return str(fixtures_dir / "tiny-llama")


def test_help_lists_the_benchmarks():
    said = run("--help").stdout
    for name in ("latency", "throughput", "serve", "startup", "memory", "blocks", "kernels"):
        assert name in said


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from octavo.cli.main import main\n"
        "try: main(['bench', 'serve', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'fastapi', 'msgspec', 'tokenizers', 'zmq'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout.endswith("[]\n")


def test_serve_starts_a_server_and_ends_it(tiny, tmp_path):
    target = tmp_path / "serve.json"
    args = ["--workload", "random", "--num-prompts", "5", "--input-len", "9", "--output-len", "6", "--json", str(target)]
    done = run("serve", tiny, *TINY, *args)
    assert done.returncode == 0, done.stderr
    assert "Serving" in done.stdout
    results = json.loads(target.read_text())["results"]
    assert (results["completed"], results["errors"]) == (5, {})
    assert (results["prompt_tokens"], results["output_tokens"]) == (45, 30)
    assert results["ignore_eos"] is True
    # Processor time comes in ticks, and so little work may take none.
    assert results["server_cpu_seconds"] is not None


def test_memory_and_its_picture(tiny, tmp_path):
    plot, target = tmp_path / "memory.svg", tmp_path / "memory.json"
    trace = ["--trace", "log-normal", "--num-prompts", "8", "--max-model-len", "64", "--full-requests", "2"]
    done = run("memory", tiny, "--threads", "1", *trace, "--plot", str(plot), "--json", str(target))
    assert done.returncode == 0, done.stderr
    assert "static, buddies" in done.stdout
    (trace,) = json.loads(target.read_text())["results"]["traces"].values()
    assert trace["policies"]["maximum"]["running_peak"] == 2
    assert plot.read_text().startswith("<svg")


def test_startup_and_json_on_stdout(tiny):
    done = run("startup", tiny, *TINY, "--num-iters", "1", "--json", "-")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert 0 < results["ready_s"] < results["first_token_s"]
    assert results["engine_resident_bytes"] > results["engine_own_bytes"] > 0
    assert results["resident_bytes"] == results["engine_resident_bytes"] + results["server_resident_bytes"]
    assert results["weights_bytes"] > 0
    assert "Memory after the first request" in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["serve", "--url", "nowhere"], "--url must look like"),
        (["serve", "--rate", "0"], "--rate must be over 0"),
        (["serve", "--workload", "x"], "--workload must be one of"),
        (["latency", "--backend", "abacus"], "--backend must be one of"),
        (["throughput", "/no/such/model.gguf"], "/no/such/model.gguf"),
        (["startup", "--json", "/no/such/folder/x.json"], "--json can't write"),
        (["kernels", "--layout", "int3"], "--layout must be one of"),
        (["blocks", "--pool", "10"], "--pool: 10 blocks are too few"),
        (["memory", "--trace", "chat65"], "--trace must be of chat64, log-normal, not 'chat65'"),
        (["memory", "--plot", "/no/such/folder/x.svg"], "--plot can't write"),
    ],
)
def test_errors_are_one_sentence(args, words):
    done = run(*args)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["serve", "--workload", "random", "--num-prompts", "0"], "--num-prompts"),
        (["serve", "--num-prompts", "10"], "--num-prompts has no meaning with chat64"),
        (["throughput", "--input-len", "10"], "--input-len has no meaning with chat64"),
        (["serve", "--url", "http://127.0.0.1:9", "--threads", "1"], "--threads has no meaning with --url"),
        (["serve", "--url", "http://127.0.0.1:9", "--enable-prefix-caching"], "--enable-prefix-caching has no meaning with --url"),
        (["serve", "--workload", "random", "--prefix-len", "9"], "--prefix-len has no meaning with random"),
        (["throughput", "--prefix-len", "9"], "--prefix-len has no meaning with chat64"),
        (["serve", "--api-key", "x"], "--api-key has no meaning without --url"),
        (["latency", "a", "--model", "b"], "two models are named"),
        (["serve", "--vocab-size", "100"], "--vocab-size has no meaning with chat64"),
        (["memory", "--trace", "chat64", "--num-prompts", "9"], "--num-prompts has no meaning without --trace log-normal"),
        (["throughput", "--scheduling-policy", "priority"], "--scheduling-policy"),
    ],
)
def test_wrong_usage_ends_with_2(args, words):
    done = run(*args)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_benchmark_that_is_ended_takes_its_server_with_it(tiny, number):
    load = ["--workload", "random", "--num-prompts", "500", "--input-len", "9", "--output-len", "400", "--warmup", "0"]
    process = subprocess.Popen([*BENCH, "serve", tiny, *TINY, *load], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    servers: set[int] = set()
    engines: set[int] = set()

    def started() -> bool:
        servers.update(children(process.pid))
        engines.update(*(children(pid) for pid in servers))
        return bool(engines)

    try:
        wait_until(started, 60, "the server's engine")
        os.kill(process.pid, number)
        process.wait(30)
        wait_until(lambda: not any(map(is_alive, servers | engines)), 30, "the end of the server")
    finally:
        for pid in {process.pid, *servers, *engines}:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}[number]


def test_a_server_that_does_not_start_says_why():
    before = children()
    with pytest.raises(EngineDeadError, match="no/such/model"):
        ServerProcess(["/no/such/model.gguf"]).__enter__()
    assert children() == before


def test_a_server_that_takes_too_long_is_ended(tiny):
    before = children()
    started = time.monotonic()
    with pytest.raises(EngineDeadError, match=r"not ready within 0\.01 s"):
        ServerProcess([tiny, *TINY], start_seconds=0.01).__enter__()
    assert time.monotonic() - started < 60
    assert children() == before


def test_processes_are_measured():
    memory = memory_of(os.getpid())
    assert memory is not None
    assert memory.resident > memory.own > 0
    assert (cpu_seconds(os.getpid()) or 0) > 0
    assert memory_of(2**22 + 1) is None
    assert cpu_seconds(2**22 + 1) is None


def test_a_servers_arguments_give_the_same_configuration_again():
    assert server_arguments(EngineConfig(seed=0)) == ["smollm2", "--seed", "0"]
    for pinned in (False, True):
        config = EngineConfig(
            ModelConfig("m", "r", "d", 100, "vllm", "float16"),
            CacheConfig(32, 0.3, 1 << 20, 7, False),
            SchedulerConfig(128, 4, "priority"),
            BackendConfig("reference", 1, pinned),
            StructuredOutputsConfig(1024, 5),
            9,
        )
        assert "--no-enable-prefix-caching" in server_arguments(config)
        parsed = app.commands["serve"].make_context("serve", server_arguments(config)).params
        assert engine_config(parsed["model"], parsed, seed=parsed["seed"]) == config

"""The commands that need no model, and how all of them start and end."""

import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

import octavo
from octavo.backends.select import has_native
from octavo.cli.main import main
from octavo.protocol.errors import ModelLoadError


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "octavo", *args], capture_output=True, text=True, timeout=60, check=False)


def test_version():
    assert run("--version").stdout == f"octavo {octavo.__version__}\n"
    assert run("version").stdout == f"{octavo.__version__}\n"


def test_the_console_script_is_the_same_command():
    script = Path(sys.executable).with_name("octavo")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"octavo {octavo.__version__}\n"


def test_help_lists_the_commands():
    done = run("--help")
    assert done.returncode == 0
    for command in ("serve", "pull", "chat", "complete", "env", "version"):
        assert command in done.stdout


def test_help_describes_each_command_with_a_whole_sentence():
    said = " ".join(run("--help").stdout.partition("Commands:")[2].split())
    assert "bench Measure this machine and a model on it, or any OpenAI-compatible server. chat Talk with" in said
    assert 'complete Continue a text: `octavo complete "Once upon"`, `octavo complete MODEL "Once upon"`, or the text on stdin. env' in said
    of_bench = " ".join(run("bench", "--help").stdout.partition("Commands:")[2].split())
    assert "throughput Time a batch of requests in this process, as a script with LLM would run it." in of_bench
    assert "..." not in said + of_bench


def test_help_and_version_load_nothing_heavy():
    heavy = {"numpy", "fastapi", "uvicorn", "tokenizers", "zmq", "jinja2", "huggingface_hub", "gguf"}
    code = (
        "import sys; from octavo.cli.main import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        f"print(sorted({{m.split('.')[0] for m in sys.modules}} & {heavy}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("[]\n")


def test_env_says_what_a_bug_report_needs():
    lines = dict(line.split(None, 1) for line in run("env").stdout.splitlines())
    assert lines["octavo"] == octavo.__version__
    assert lines["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert int(lines["cores"].split()[0]) >= 1
    assert {"system", "processor", "memory", "numpy", "tokenizers"} <= lines.keys()


@pytest.mark.parametrize("args", [[], ["bench"]])
def test_a_group_alone_shows_its_help_and_ends_with_2(args: list[str]):
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: octavo")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["no-such-command"], "octavo: No such command 'no-such-command'."),
        (["--no-such-flag"], "octavo: No such option '--no-such-flag'."),
        (["pull"], "octavo pull: Missing argument 'MODEL'."),
        (["pull", "a", "b"], "octavo pull: Got unexpected extra argument (b)"),
        (["serve", "--max-logprob", "3"], "octavo serve: No such option '--max-logprob'. Did you mean '--max-logprobs'?"),
        (["serve", "--port", "x"], "octavo serve: Invalid value for '--port' / '--server-port': 'x' is not a valid integer."),
        (["serve", "--max-body-size", "x"], "octavo serve: Invalid value for '--max-body-size': 'x' is not a size; write it like 2GiB, "),
        (["serve", "a", "--model", "b"], "octavo serve: Invalid value: two models are named: a and b"),
        (["serve", "--tensor-parallel-size", "2"], "octavo serve: --tensor-parallel-size is not supported by this version of Octavo"),
        (["chat", "-q"], "octavo: Option '-q' requires an argument."),
        (["bench", "latency", "--num-iters", "0"], "octavo bench latency: Invalid value for '--num-iters': 0 is not in the range x>=1."),
    ],
)
def test_wrong_usage_is_one_sentence_and_ends_with_2(args: list[str], message: str):
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


@pytest.fixture
def pull(monkeypatch, capsys):
    """Runs `octavo pull ARGS` over a stand-in for resolve_model; returns (exit code, stdout, stderr, what it was asked for)."""

    def run(*args: str):
        asked = []

        def resolve_model(name, *, revision=None, download_dir=None, progress=None):
            assert progress is not None
            asked.append((name, revision, download_dir))
            if name == "nothing":
                raise ModelLoadError("nothing: no such model")
            return Path("/models/x.gguf")

        module = types.ModuleType("octavo.loading.resolve")
        module.resolve_model = resolve_model  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "octavo.loading.resolve", module)
        with pytest.raises(SystemExit) as exit:
            main(["pull", *args])
        said = capsys.readouterr()
        return exit.value.code, said.out, said.err, asked

    return run


def test_pull_prints_where_the_model_lies(pull):
    assert pull("smollm2", "--revision", "r", "--download-dir", "d") == (0, "/models/x.gguf\n", "", [("smollm2", "r", "d")])


def test_pull_of_a_model_that_can_not_be_had_is_one_sentence(pull):
    assert pull("nothing") == (1, "", "octavo: nothing: no such model\n", [("nothing", None, None)])


@pytest.mark.parametrize("seconds", [0.01, 0.02, 0.04, 0.06, 0.1])
def test_ctrl_c_in_its_first_moments_leaves_no_traceback(seconds: float):
    """Whatever it is doing: importing, parsing, or waiting for its text."""
    # It says so from within main, however long it takes to get there.
    code = (
        "import octavo.cli.main as entry\n"
        "begin = entry.open_closed_streams\n"
        "entry.open_closed_streams = lambda: (print('up', flush=True), begin())\n"
        "entry.main(['complete', '-'])"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")


@pytest.mark.skipif(not has_native(), reason="this installation has no native module")
def test_an_unknown_instruction_set_is_named_as_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fixtures_dir: Path
) -> None:
    """In a process that runs the engine itself, as the benchmarks do."""
    monkeypatch.setenv("OCTAVO_CPU_ISA", "sse9")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "latency", str(fixtures_dir / "tiny-llama")])
    assert ended.value.code == 1
    assert 'octavo: OCTAVO_CPU_ISA: there is no instruction set "sse9"' in capsys.readouterr().err

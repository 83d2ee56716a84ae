"""`octavo chat` and `octavo complete` without a terminal, as a script runs them."""

import subprocess
import sys

import pytest
from terminal import FAKE


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FAKE), *args], input=stdin, capture_output=True, text=True, timeout=60, check=False)


def test_chat_answers_each_line():
    done = run("chat", stdin="one\n\nhistory\n")
    assert done.returncode == 0
    assert done.stdout == "< one > \n< user:one|assistant:<_one_>_|user:history > \n"


def test_chat_ends_at_the_first_error_when_nobody_can_react():
    done = run("chat", stdin="fail\nnever\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "octavo: the prompt is too long\n" in done.stderr


def test_quick_sends_one_message():
    done = run("chat", "--system", "s", "-q", "history")
    assert (done.returncode, done.stdout) == (0, "< system:s|user:history > \n")


@pytest.mark.parametrize(
    ("args", "stdin", "text"),
    [
        (["once upon"], "", "once upon"),
        (["smollm2", "once upon"], "", "once upon"),
        (["--model", "smollm2", "once upon"], "", "once upon"),
        ([], "from stdin", "from stdin"),
        (["smollm2", "-"], "from stdin", "from stdin"),
    ],
)
def test_complete_takes_its_text_from_an_argument_or_stdin(args: list[str], stdin: str, text: str):
    done = run("complete", *args, stdin=stdin)
    assert (done.returncode, done.stdout) == (0, f"< {text} > \n")


def test_sampling_flags_go_over_the_model_s_own_defaults():
    assert run("complete", "sampling").stdout == "< T=0.25 max=256 seed=None > \n"
    assert run("chat", "-q", "sampling").stdout == "< T=0.25 max=None seed=None > \n"
    done = run("chat", "-q", "sampling", "--temperature", "0", "--max-tokens", "9", "--seed", "3")
    assert done.stdout == "< T=0.0 max=9 seed=3 > \n"


def test_a_bad_sampling_value_names_its_field():
    done = run("complete", "hello", "--temperature", "-1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "temperature" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["complete", "missing", "hello"], "octavo: missing: no such model"),
        (["complete", "hello", "--max-model-len", "7"], "octavo: --max-model-len must not be 7"),
        (["complete", "hello", "--max-model-len", "0"], "octavo: --max-model-len must be at least 1, not 0"),
    ],
)
def test_a_failed_start_is_one_sentence(args: list[str], message: str):
    done = run(*args)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message + "\n")


@pytest.mark.parametrize("args", [["complete"], ["complete", ""], ["chat", "a", "--model", "b"], ["chat", "--api-key", "k"]])
def test_wrong_usage_ends_with_2(args: list[str]):
    done = run(*args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error():
    process = subprocess.Popen([sys.executable, str(FAKE), "complete", "slow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(3) == "< s"
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=30) == 141
    assert "Traceback" not in errors
    assert "Error" not in errors
    process.stderr.close()

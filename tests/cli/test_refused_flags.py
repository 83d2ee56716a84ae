"""vLLM's flags that Octavo does not offer are refused by name, never accepted and ignored."""

import pytest

from octavo.api.engine_args import EngineArgs
from octavo.cli.main import main
from octavo.cli.refused import ALWAYS_ON, PERMISSIONS, REFUSED, UsageError, without_refused
from octavo.protocol.errors import ConfigError


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.flag)
def test_each_is_refused_by_name(refused):
    args = [refused.flag] if refused.switch else [refused.flag, "something"]
    for spelled in [args, ["=".join(args)]] if not refused.switch else [args]:
        with pytest.raises(UsageError, match=rf"^{refused.flag} is not supported by this version of Octavo"):
            without_refused(["model", *spelled, "--port", "1"])


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.flag)
def test_asking_for_what_octavo_does_anyway_is_fine(refused):
    for value in refused.harmless:
        assert without_refused([refused.flag, value, "model"]) == ["model"]
        assert without_refused([f"{refused.flag}={value}", "model"]) == ["model"]
    if refused.switch:
        assert without_refused(["--no-" + refused.flag[2:], "model"]) == ["model"]


@pytest.mark.parametrize("flag", ALWAYS_ON)
def test_what_is_always_on_can_be_asked_for_but_not_switched_off(flag):
    assert without_refused([flag, "model"]) == ["model"]
    with pytest.raises(UsageError, match="--no-"):
        without_refused(["--no-" + flag[2:]])


@pytest.mark.parametrize("flag", [*PERMISSIONS, "--trust_remote_code"])
def test_a_permission_that_no_model_needs_is_let_through(flag):
    assert without_refused([flag, "model"]) == ["model"]


@pytest.mark.parametrize(
    ("flag", "value", "named"),
    [("--quant", "awq", "--quantization"), ("--parallel-size", "4", "--tensor-parallel-size"), ("-tp", "2", "--tensor-parallel-size")],
)
def test_short_spellings_are_refused_as_they_were_typed(flag, value, named):
    with pytest.raises(UsageError, match=rf"^{flag} \({named}\) is not supported by this version of Octavo: \w"):
        without_refused([flag, value])


@pytest.mark.parametrize("args", [["-tp", "2"], ["--tensor_parallel_size", "2"], ["--tensor_parallel_size=2"], ["--tensor-parallel-size"]])
def test_other_spellings(args):
    with pytest.raises(UsageError, match="--tensor-parallel-size"):
        without_refused(args)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu-mem-usage", "1.5"], "--gpu-mem-usage (--gpu-memory-utilization) must be over 0 and at most 1, not 1.5"),
        (["--precision=int4"], "--precision (--dtype) must be one of "),
        (["--max-batch", "0"], "--max-batch (--max-num-seqs) must be at least 1, not 0"),
        (["--server-port", "99999999"], "--server-port (--port) must be from 0 to 65535, not 99999999"),
        (["--max-num-seqs", "0"], "--max-num-seqs must be at least 1, not 0"),
    ],
)
def test_values_that_cannot_hold_are_refused_under_the_name_that_was_typed(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "no-such-model", *words])
    assert ended.value.code != 0
    assert capsys.readouterr().err.startswith(f"octavo: {said}")


def test_other_arguments_pass_untouched():
    assert without_refused(["a_b", "--port", "1", "-m", "x", "--", "--enable-lora"]) == [
        "a_b",
        "--port",
        "1",
        "-m",
        "x",
        "--",
        "--enable-lora",
    ]
    assert without_refused(["--max_model_len=8", "--max_num_seqs", "4"]) == ["--max-model-len=8", "--max-num-seqs", "4"]


def test_the_command_exits_with_2(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["serve", "smollm2", "--tensor-parallel-size", "2"])
    assert exit.value.code == 2
    said = capsys.readouterr()
    assert said.err == "octavo serve: --tensor-parallel-size is not supported by this version of Octavo: it runs on one device\n"
    assert said.out == ""


# Engine arguments of vLLM's by flag: a value that asks for nothing and one that asks for something; None: a switch.
ENGINE_FLAGS = [
    ("--runner", "generate", "draft"),
    ("--convert", "auto", "classify"),
    ("--model-impl", "auto", "transformers"),
    ("--hf-token", "None", "secret"),
    ("--tokenizer-revision", "None", "main"),
    ("--config-format", "auto", "mistral"),
    ("--pooler-config", "None", "{}"),
    ("--kv-transfer-config", "None", '{"kv_role": "kv_both"}'),
    ("--additional-config", "None", "{}"),
    ("--mm-processor-kwargs", "None", '{"num_crops": 4}'),
    ("--logits-processors", "None", "my.Processor"),
    ("--max-parallel-loading-workers", "None", "4"),
    ("--stream-interval", "1", "8"),
    ("--skip-tokenizer-init", None, None),
    ("--enable-prompt-embeds", None, None),
    ("--enable-sleep-mode", None, None),
    ("--disable-sliding-window", None, None),
    ("--fully-sharded-loras", None, None),
    ("--enable-lora-bias", None, None),
]


@pytest.mark.parametrize(("flag", "nothing", "something"), ENGINE_FLAGS)
def test_a_flag_of_the_engine_is_answered_as_the_keyword_is(flag, nothing, something):
    name = flag[2:].replace("-", "_")
    fine = ["--no-" + flag[2:]] if nothing is None else [flag, nothing]
    assert without_refused([*fine, "model"]) == ["model"]
    EngineArgs("model", **{name: False if nothing is None else {"None": None, "1": 1}.get(nothing, nothing)})
    with pytest.raises(UsageError) as of_the_flag:
        without_refused([flag, *([] if something is None else [something])])
    with pytest.raises(ConfigError, match=f"^{name}: ") as of_the_keyword:
        EngineArgs("model", **{name: True if something is None else something})
    assert of_the_keyword.value.message.endswith(str(of_the_flag.value).removeprefix(f"{flag} "))
    assert "secret" not in of_the_keyword.value.message


def test_there_is_no_all_reduce_to_disable():
    assert without_refused(["--disable-custom-all-reduce", "model"]) == ["model"]
    EngineArgs("model", disable_custom_all_reduce=True)

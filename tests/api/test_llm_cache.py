"""The prefix cache as a script with LLM sees it: what is found, for whom, and until when."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, RequestOutput, SamplingParams
from octavo.backends.select import has_native
from octavo.config.engine import CacheConfig, EngineConfig, ModelConfig
from octavo.protocol.errors import ConfigError, InvalidRequestError, PrefixCacheError

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
IDS = list(range(5, 45))


@pytest.fixture
def fresh(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), quiet=True) as made:
        yield made


def one(llm: LLM, prompt: Any, params: SamplingParams = GREEDY) -> RequestOutput:
    return llm.generate(prompt, params, use_tqdm=False)[0]


def test_a_prompt_is_found_again(fresh: LLM) -> None:
    first, second = one(fresh, IDS), one(fresh, IDS)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert one(fresh, IDS[:32]).num_cached_tokens == 31
    assert one(fresh, IDS[:31]).num_cached_tokens == 16


def test_nothing_is_found_with_the_cache_off(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), quiet=True, enable_prefix_caching=False) as llm:
        assert [one(llm, IDS).num_cached_tokens for _ in range(2)] == [0, 0]
        assert llm._core.stats().blocks_cached == 0
        assert llm.reset_prefix_cache() is True


def test_a_prompt_as_a_dictionary(fresh: LLM) -> None:
    plain = one(fresh, "The cat")
    for prompt in ({"prompt": "The cat"}, {"prompt_token_ids": plain.prompt_token_ids}, {"prompt": "The cat", "cache_salt": None}):
        output = one(fresh, prompt)
        assert output.prompt_token_ids == plain.prompt_token_ids
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
    assert one(fresh, {"prompt_token_ids": IDS, "prompt": "shown"}).prompt == "shown"
    assert one(fresh, {"prompt_token_ids": IDS}).prompt is None


def test_a_salt_keeps_tenants_apart(fresh: LLM) -> None:
    def cached(**prompt: Any) -> int:
        return one(fresh, {"prompt_token_ids": IDS, **prompt}).num_cached_tokens

    assert cached() == 0
    assert cached(cache_salt="a") == 0
    assert cached(cache_salt="b") == 0
    assert cached() == cached(cache_salt="a") == cached(cache_salt="b") == 32
    assert cached(cache_salt="c") == 0


@pytest.mark.parametrize("salt", ["", 5, b"a", "x" * 129])
def test_what_is_no_salt(llm: LLM, salt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="cache_salt must be a string of 1 to 128 characters") as caught:
        one(llm, {"prompt": "The cat", "cache_salt": salt})
    assert caught.value.param == "cache_salt"


def test_reset(fresh: LLM) -> None:
    one(fresh, IDS)
    assert fresh.reset_prefix_cache() is True
    assert one(fresh, IDS).num_cached_tokens == 0
    assert one(fresh, IDS).num_cached_tokens == 32
    fresh.close()
    with pytest.raises(RuntimeError, match="closed"):
        fresh.reset_prefix_cache()


def test_samples_share_what_was_found(fresh: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True)
    assert one(fresh, IDS, params).num_cached_tokens == 0
    assert one(fresh, IDS, params).num_cached_tokens == 32


def test_an_interrupted_batch_leaves_what_it_computed(fresh: LLM) -> None:
    steps = 0
    step = fresh._core.step

    def interrupted() -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return step()

    fresh._core.step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        one(fresh, IDS)
    fresh._core.step = step  # type: ignore[method-assign]
    assert fresh._core.stats().blocks_used == 0
    assert one(fresh, IDS).num_cached_tokens == 32


# --- a folder for it


def test_a_folder_is_taken_up_at_the_start_and_written_at_the_end(tiny_llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=folder) as llm:
        assert one(llm, IDS).num_cached_tokens == 0
        assert llm.save_prefix_cache() == 2
        assert one(llm, IDS[::-1]).num_cached_tokens == 0
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=str(folder)) as llm:
        assert [one(llm, prompt).num_cached_tokens for prompt in (IDS, IDS[::-1], IDS[1:])] == [32, 32, 0]
        assert llm.reset_prefix_cache() is True
        assert llm.save_prefix_cache() == 0
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.save_prefix_cache()
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=folder) as llm:
        assert one(llm, IDS).num_cached_tokens == 0


def test_nothing_is_written_where_nothing_is_new(tiny_llama: Path, tmp_path: Path) -> None:
    def files() -> set[str]:
        return {path.name for path in tmp_path.glob("*.safetensors")}

    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=tmp_path) as llm:
        one(llm, IDS)
        assert llm.save_prefix_cache() == 2
        first = files()
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=tmp_path) as llm:
        assert one(llm, IDS).num_cached_tokens == 32
        assert llm.save_prefix_cache() == 2
        assert files() == first
        one(llm, IDS[1:])
        assert llm.save_prefix_cache() == 4
    assert len(first) == len(files()) == 1
    assert files() != first
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=tmp_path, num_gpu_blocks_override=2):
        pass
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=tmp_path) as llm:
        assert llm._core.stats().blocks_cached == 4


def test_what_was_saved_and_found_is_said_in_a_line_each(tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LLM(str(tiny_llama), prefix_cache_dir=tmp_path) as llm:
        one(llm, IDS)
    with LLM(str(tiny_llama), prefix_cache_dir=tmp_path, num_gpu_blocks_override=1):
        pass
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Prefix cache: ")]
    assert len(lines) == 2
    assert lines[0].startswith("Prefix cache: 2 blocks")
    assert f"saved to {tmp_path}" in lines[0]
    assert lines[1].startswith("Prefix cache: 1 blocks")
    assert f"restored from {tmp_path}" in lines[1]
    assert lines[1].endswith("; 1 more were saved, which the KV cache has no room for")


def test_blocks_of_another_model_or_backend_are_refused(tiny_llama: Path, changed_model: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=folder, backend="reference") as llm:
        one(llm, IDS)
    other = changed_model(config={"rms_norm_eps": 0.001})
    for model, options, words in (
        (other, {}, "they are of the model with the digest [0-9a-f]{32}, and this engine serves the one with"),
        (str(tiny_llama), {"kv_cache_dtype": "int8"}, "they are float32, and this engine has a KV cache of int8"),
        (str(tiny_llama), {"block_size": 32}, "they have 16 tokens each, and this engine has a block size of 32"),
        (str(tiny_llama), {"backend": "cpu"}, r"they were computed by Octavo \S+ reference, and this engine is Octavo \S+ cpu"),
    ):
        if options.get("backend") == "cpu" and not has_native():
            continue
        with pytest.raises(ConfigError, match=words) as caught:
            LLM(model, quiet=True, prefix_cache_dir=folder, **{"backend": "reference", **options})
        assert caught.value.param == "prefix_cache_dir"
    # Nobody holds the folder, and nothing of it is lost.
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=folder, backend="reference") as llm:
        assert one(llm, IDS).num_cached_tokens == 32


def test_two_at_one_folder(tiny_llama: Path, tmp_path: Path) -> None:
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=tmp_path):
        with pytest.raises(ConfigError, match="is in use by another engine"):
            LLM(str(tiny_llama), quiet=True, prefix_cache_dir=tmp_path)
        with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=tmp_path / "own"):
            pass


def test_a_save_that_fails_is_told_and_everything_is_freed(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    llm = LLM(str(tiny_llama), quiet=True, prefix_cache_dir=tmp_path)
    one(llm, IDS)
    assert llm.save_prefix_cache() == 2
    one(llm, IDS[::-1])
    with monkeypatch.context() as patch:
        patch.setattr("octavo.engine.prefix_folder.os.fsync", full)
        for ask in (llm.save_prefix_cache, llm.close):
            with pytest.raises(PrefixCacheError, match=f"could not be saved to {tmp_path}: No space left on device; what was saved before"):
                ask()
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=tmp_path) as llm:
        assert [one(llm, prompt).num_cached_tokens for prompt in (IDS, IDS[::-1])] == [32, 0]


def test_files_that_were_removed_are_written_again(tiny_llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with LLM(str(tiny_llama), quiet=True, prefix_cache_dir=folder) as llm:
        one(llm, IDS)
        assert llm.save_prefix_cache() == 2
        before = sorted(each.name for each in folder.iterdir())
        for name in before:
            if name.endswith(".safetensors"):
                (folder / name).unlink()
        assert llm.save_prefix_cache() == 2
        assert len(list(folder.iterdir())) == len(before)
        (folder / "prefix-cache.json").unlink()
        assert llm.save_prefix_cache() == 2
        assert len(list(folder.iterdir())) == len(before)
        shutil.rmtree(folder)
        with pytest.raises(PrefixCacheError, match=r"could not be saved to [^ ]*: No such file or directory$"):
            llm.save_prefix_cache()
        folder.mkdir()
        with pytest.raises(PrefixCacheError, match=r"could not be saved to [^ ]*: No such file or directory$"):
            llm.close()


def test_a_folder_and_no_prefix_caching(tiny_llama: Path, llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prefix_cache_dir: there is nothing to save with enable_prefix_caching off"):
        LLM(str(tiny_llama), quiet=True, prefix_cache_dir=tmp_path, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match="prefix_cache_dir: is empty"):
        LLM(str(tiny_llama), quiet=True, prefix_cache_dir="")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PrefixCacheError, match="the engine was started without a folder for the prefix cache"):
        llm.save_prefix_cache()


# --- priorities


def test_priorities_decide_who_is_first(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), quiet=True, max_num_seqs=1, scheduling_policy="priority") as llm:
        outputs = llm.generate([IDS, IDS[1:], IDS[2:]], GREEDY, use_tqdm=False, priority=[2, 0, 1])
        times = [output.metrics.first_scheduled_time for output in outputs if output.metrics is not None]
        assert sorted(range(3), key=lambda place: times[place] or 0.0) == [1, 2, 0]
        assert [output.prompt_token_ids for output in outputs] == [IDS, IDS[1:], IDS[2:]]


@pytest.mark.parametrize(
    ("priority", "words"),
    [
        ([1], "priority 1 has no meaning here: the engine serves first come, first served"),
        ([0, 0], "there are 1 prompts but 2 priorities"),
        (1, "priority must be a list of whole numbers"),
        (["high"], "priority must be a list of whole numbers"),
        ([True], "priority must be a list of whole numbers"),
    ],
)
def test_refused_priorities(llm: LLM, priority: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        llm.generate([IDS], GREEDY, use_tqdm=False, priority=priority)
    assert caught.value.param == "priority"
    assert len(llm.generate([IDS], GREEDY, use_tqdm=False, priority=[0])) == 1


def test_a_priority_beyond_64_bits(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), quiet=True, scheduling_policy="priority") as llm, pytest.raises(InvalidRequestError, match="64 bits"):
        llm.generate([IDS], GREEDY, use_tqdm=False, priority=[2**63])


def test_an_unknown_policy(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="scheduling_policy: must be one of fcfs, priority, not 'lottery'"):
        LLM(str(tiny_llama), quiet=True, scheduling_policy="lottery")


# --- over the engine's socket


@pytest.mark.asyncio(loop_scope="module")
async def test_asynchronously_too(allm: AsyncLLM) -> None:
    async def cached(prompt: Any, name: str) -> int:
        (output,) = [output async for output in allm.generate(prompt, GREEDY, name, stream=False)]
        return output.num_cached_tokens

    prompt = {"prompt_token_ids": [400 - token for token in IDS], "cache_salt": "async"}
    assert [await cached(prompt, "a"), await cached(prompt, "b")] == [0, 32]
    assert await allm.reset_prefix_cache() is True
    assert await cached(prompt, "c") == 0
    with pytest.raises(InvalidRequestError, match="priority 3 has no meaning here"):
        await anext(allm.generate("The cat", GREEDY, "d", priority=3))


@pytest.mark.parametrize("save", [True, False])
async def test_a_folder_asynchronously(tiny_llama: Path, tmp_path: Path, save: bool) -> None:
    config = EngineConfig(model=ModelConfig(str(tiny_llama)), cache=CacheConfig(prefix_cache_dir=str(tmp_path)))

    async def cached(llm: AsyncLLM, prompt: Any, name: str) -> int:
        (output,) = [output async for output in llm.generate(prompt, GREEDY, name, stream=False)]
        return output.num_cached_tokens

    llm = await AsyncLLM.start(config, quiet=True)
    assert await cached(llm, IDS, "a") == 0
    assert await llm.save_prefix_cache() == 2
    assert await cached(llm, IDS[::-1], "b") == 0
    await llm.close(save=save)
    llm = await AsyncLLM.start(config, quiet=True)
    assert [await cached(llm, prompt, str(prompt)) for prompt in (IDS, IDS[::-1], IDS[1:])] == [32, 32 * save, 0]
    (tmp_path / "prefix-cache.json").unlink()
    (tmp_path / "prefix-cache.json").mkdir()
    for ask in (llm.save_prefix_cache, llm.close):
        with pytest.raises(PrefixCacheError, match=f"could not be saved to {tmp_path}"):
            await ask()
    assert not llm.is_alive


def test_blocks_of_a_window_are_found_after_a_restart(fixtures_dir: Path, tmp_path: Path) -> None:
    prompt = [(place * 37) % 700 + 4 for place in range(100)]
    for name, blocks in (("tiny-mistral", 6), ("tiny-gemma2", 12)):
        model, folder = str(fixtures_dir / name), tmp_path / name
        with LLM(model, quiet=True, prefix_cache_dir=folder) as llm:
            one(llm, prompt)
            assert llm.save_prefix_cache() == blocks
        with LLM(model, quiet=True, prefix_cache_dir=folder) as llm:
            assert llm._core.stats().blocks_cached == blocks
            assert one(llm, prompt).num_cached_tokens == 96
        with pytest.raises(ConfigError, match="holds blocks of another kind: they were computed by"):
            LLM(model, quiet=True, prefix_cache_dir=folder, backend="reference")

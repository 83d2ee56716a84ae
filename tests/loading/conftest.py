from __future__ import annotations

import gguf
import numpy as np
import pytest


@pytest.fixture(scope="session")
def small_gguf(tmp_path_factory):
    """A GGUF by gguf's own writer, with one tensor of each common kind and each kind of metadata."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_int64("test.negative", -5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "é", "", "<|end|>"])
    writer.add_token_types([1, 1, 1, 1, 3])
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_int32("general.sampling.top_k", 20)
    writer.add_float32("general.sampling.penalty_repeat", 1.25)
    writer.add_float32("general.sampling.xtc_probability", 0.125)
    writer.add_tensor("norm", rng.normal(size=(8,)).astype(np.float32))
    writer.add_tensor("half", rng.normal(size=(3, 5)).astype(np.float16))
    for kind in ("Q8_0", "Q4_0", "Q4_1", "BF16"):
        qtype = gguf.GGMLQuantizationType[kind]
        weights = rng.normal(size=(3, 64)).astype(np.float32)
        writer.add_tensor(kind.lower(), gguf.quants.quantize(weights, qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

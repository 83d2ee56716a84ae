"""The kernels read keys sixteen at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM
from octavo.backends.select import has_native
from octavo.protocol.errors import ConfigError


@pytest.mark.skipif(not has_native(), reason="this installation has no native module")
@pytest.mark.parametrize("size", [1, 8])
def test_blocks_below_sixteen_tokens_are_refused_by_name(fixtures_dir: Path, size: int) -> None:
    with pytest.raises(ConfigError, match=f"block_size: must be at least 16 on the cpu backend, not {size}"):
        LLM(str(fixtures_dir / "tiny-llama"), backend="cpu", block_size=size, quiet=True)

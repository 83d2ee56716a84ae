"""The requests of benchmarks/structured_output.py are what it says they are."""

from __future__ import annotations

from pathlib import Path

import structured_output
from octavo import LLM


def test_no_request_ends_early_and_each_kind_is_held(fixtures_dir: Path) -> None:
    with LLM(str(fixtures_dir / "tiny-llama"), quiet=True) as llm:
        for kind in structured_output.KINDS:
            assert structured_output.measure(llm, kind, 2, 12) > 0
        params = [structured_output.sampling("schemas", index, 12) for index in range(16)]
        texts = [output.outputs[0].text for output in llm.generate("x", params[0], use_tqdm=False)]
    assert texts[0].startswith('[{"name0":"')
    assert len({str(each.structured_outputs) for each in params}) == structured_output.SCHEMAS

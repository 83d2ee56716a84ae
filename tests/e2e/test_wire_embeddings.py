"""Embeddings of a live server through the openai package."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from octavo import LLM
from octavo.protocol.pooling import PoolingParams

TEXTS = ["The cat", "안녕하세요", "The cat sat on the mat. " * 20]


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> list[list[float]]:
    with LLM(tiny_llama, quiet=True) as llm:
        return [each.outputs.embedding for each in llm.embed(TEXTS, use_tqdm=False)]


def test_they_are_the_same_bits_as_in_process(client: openai.OpenAI, expected: list[list[float]]) -> None:
    # The package asks for base64 unless told otherwise.
    for form in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model="tiny", input=TEXTS, **form)
        assert [entry.embedding for entry in answer.data] == expected


def test_pooling(client: openai.OpenAI, tiny_llama: Path) -> None:
    with LLM(tiny_llama, quiet=True) as llm:
        wanted = llm.embed(TEXTS[0], PoolingParams("mean"), use_tqdm=False)[0].outputs.embedding
    assert client.embeddings.create(model="tiny", input=TEXTS[0], extra_body={"pooling": "mean"}).data[0].embedding == wanted
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="tiny", input="a", dimensions=5)

from __future__ import annotations

import pytest
from grammar_text import ROWS, vocabulary

from octavo.structured_output.compiler import GrammarCompiler


@pytest.fixture(scope="session")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(vocabulary(), ROWS)

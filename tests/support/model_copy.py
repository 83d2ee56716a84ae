"""Changed copies of a small checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def copy_model(source: Path, target: Path, **changes: Mapping[str, Any]) -> Path:
    """`source`'s files linked into the new folder `target`, but each of `changes` is a JSON file, by its stem, with these keys set."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        stem = file.name.removesuffix(".json")
        if stem in changes:
            (target / file.name).write_text(json.dumps({**json.loads(file.read_text()), **changes[stem]}))
        else:
            (target / file.name).symlink_to(file)
    assert changes.keys() <= {file.stem for file in target.iterdir()}
    return target

"""Checks the Octavo that is installed for the Python that runs this: `check_wheel.py`. It has to bring its native module, and serve a small
model of this checkout over HTTP with the tokens that are expected of it. Needs nothing that Octavo doesn't.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import octavo
from octavo import _native
from octavo.bench.server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "fixtures" / "tiny-llama"
TOKENS = 3


def ask(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a POST request."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def main() -> int:
    """Returns the exit status."""
    home = Path(octavo.__file__).resolve().parent
    if home.is_relative_to(ROOT / "src"):
        print(f"it is the sources' Octavo that Python finds, not an installed one: {home}", file=sys.stderr)
        return 1
    prompt = json.loads((MODEL / "expected.json").read_text())["prompts"][0]
    with ServerProcess([str(MODEL), "--kv-cache-memory", "64MiB"]) as server:
        body = {"prompt": prompt["input_ids"], "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        answer = ask(server.url, "/v1/completions", body)
        expected = ask(server.url, "/detokenize", {"tokens": prompt["output_ids"][:TOKENS]})["prompt"]
    text, backend = answer["choices"][0]["text"], answer["system_fingerprint"].rpartition("-")[2]
    if text != expected or backend != "cpu":
        print(f"{text!r} came from the {backend} backend, not {expected!r} from the cpu backend", file=sys.stderr)
        return 1
    print(
        f"octavo {octavo.__version__} on {sys.implementation.name} {sys.version.split()[0]}: {Path(_native.__file__).name}, {_native.isa()}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

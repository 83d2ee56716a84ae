"""An adapter that a request wants applied."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.protocol.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """Names an adapter; the fields are vLLM's. This version can describe one, but not apply it."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    @property
    def name(self) -> str:
        """The adapter's name."""
        return self.lora_name

    @property
    def path(self) -> str:
        """Where it lies."""
        return self.lora_path


def refuse_adapters(given: object) -> None:
    """Raises InvalidRequestError if there is one in `given`, a LoRARequest, a list of them and None, or None."""
    listed = given if isinstance(given, list | tuple) else [given]
    named = next((each for each in listed if each is not None), None)
    if named is not None:
        name = getattr(named, "lora_name", named)
        raise InvalidRequestError(
            f"lora_request: {name!r} can't be applied: this version of Octavo has no adapters (LoRA)", param="lora_request"
        )

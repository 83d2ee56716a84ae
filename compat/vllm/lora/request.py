"""An adapter that a request wants applied."""

from octavo.protocol.lora import LoRARequest

__all__ = ["LoRARequest"]

"""What a request gets."""

from octavo import CompletionOutput, RequestOutput

__all__ = ["CompletionOutput", "RequestOutput"]

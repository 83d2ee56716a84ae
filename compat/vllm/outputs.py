"""What a request gets."""

from octavo import CompletionOutput, EmbeddingRequestOutput, PoolingRequestOutput, RequestOutput

__all__ = ["CompletionOutput", "EmbeddingRequestOutput", "PoolingRequestOutput", "RequestOutput"]

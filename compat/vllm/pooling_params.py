"""How a prompt's hidden states become one vector."""

from octavo import PoolingParams

__all__ = ["PoolingParams"]

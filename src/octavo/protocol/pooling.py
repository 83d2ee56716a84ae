"""How a prompt's hidden states become one vector."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.protocol.checks import flag, integer
from octavo.protocol.errors import InvalidRequestError

POOLINGS = ("last", "mean")


@dataclass(slots=True)
class PoolingParams:
    """`pooling` is "last" (the last token's hidden state, which has seen all others, after the model's last norm) or "mean" (of all
    tokens). With `normalize` the vector is brought to length 1. `dimensions` may only be what the model has.

    Raises InvalidRequestError, with `param` naming the field, for anything else.
    """

    pooling: str = "last"
    normalize: bool = True
    dimensions: int | None = None

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise InvalidRequestError(f"pooling must be {' or '.join(POOLINGS)}, not {self.pooling!r}.", param="pooling")
        flag("normalize", self.normalize)
        if self.dimensions is not None:
            self.dimensions = integer("dimensions", self.dimensions, 1)

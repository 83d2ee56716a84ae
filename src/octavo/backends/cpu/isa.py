"""The instruction set that programs use where none is asked for."""

from __future__ import annotations

from octavo.backends.cpu.native import load_native
from octavo.protocol.errors import ConfigError

VARIABLE = "OCTAVO_CPU_ISA"


def chosen_isa() -> str:
    """This machine's best, or the one that OCTAVO_CPU_ISA names. Raises ConfigError if it names none of this machine's."""
    try:
        return str(load_native().isa())
    except ValueError as error:
        raise ConfigError(str(error), param=VARIABLE) from None

"""Writes a GGUF file in another type with llama.cpp's own quantizer: quantize_gguf.py SOURCE TARGET Q4_0|Q8_0|BF16 THREADS."""

from __future__ import annotations

import ctypes
import sys

import llama_cpp


def main() -> None:
    """Ends with status 1 if llama.cpp refuses."""
    source, target, kind, threads = sys.argv[1:]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.nthread = int(threads)
    params.allow_requantize = True
    status = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if status:
        sys.exit(f"llama_model_quantize ends with {status}")


if __name__ == "__main__":
    main()

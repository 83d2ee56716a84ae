// The table of kernels of an instruction set. Not for the kernels' own files: what is inline here is compiled for the baseline.
#pragma once

#include "isa/isa.hpp"
#include "kernels/kernels.hpp"

namespace octavo {

inline const Kernels& kernels_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512Bf16:
      return kAvx512Bf16Kernels;
    case Isa::kAvx512Vnni:
      return kAvx512VnniKernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
#endif
    default:
      return kPortableKernels;
  }
}

}  // namespace octavo

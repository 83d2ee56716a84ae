// The time, for differences.
#pragma once

#include <chrono>
#include <cstdint>

namespace octavo {

inline std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace octavo

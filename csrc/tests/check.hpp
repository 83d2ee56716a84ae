// The smallest test support: CHECK counts and prints failures without stopping, so that a run shows all of them.
#pragma once

#include <cstdio>

namespace octavo::test {

inline int failures = 0;

inline bool check(bool held, const char* what, const char* file, int line) {
  if (!held && ++failures <= 20) std::fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
  return held;
}

// What main returns.
inline int report(const char* name) {
  std::printf("%s: %s\n", name, failures ? "FAILED" : "ok");
  return failures ? 1 : 0;
}

}  // namespace octavo::test

#define CHECK(condition) ::octavo::test::check((condition), #condition, __FILE__, __LINE__)

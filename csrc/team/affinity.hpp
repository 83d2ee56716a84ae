// Where threads may run. On systems without a way to pin threads, pinning does nothing.
#pragma once

#include <string>

#if defined(__linux__)
#include <sched.h>
#endif

namespace octavo {

// Whether the calling thread may run on that core.
bool may_run_on(int core);

// Keeps the calling thread on that core. Does nothing if the system refuses, since by then only speed is at stake.
void pin_this_thread(int core);

// Names the calling thread for debuggers and `top -H`; at most 15 characters.
void name_this_thread(const std::string& name);

// Keeps the calling thread on that core while it lives; -1 leaves the thread alone.
class PinnedHere {
 public:
  explicit PinnedHere(int core);
  ~PinnedHere();
  PinnedHere(const PinnedHere&) = delete;
  PinnedHere& operator=(const PinnedHere&) = delete;

 private:
#if defined(__linux__)
  cpu_set_t before_;
  bool changed_ = false;
#endif
};

}  // namespace octavo

// Pinning and naming of threads: Linux; elsewhere nothing.
#include "team/affinity.hpp"

#if defined(__linux__)
#include <pthread.h>
#endif

namespace octavo {

#if defined(__linux__)

namespace {

cpu_set_t only(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  return set;
}

}  // namespace

bool may_run_on(int core) {
  cpu_set_t allowed;
  return core >= 0 && core < CPU_SETSIZE && sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
         CPU_ISSET(static_cast<std::size_t>(core), &allowed);
}

void pin_this_thread(int core) {
  const cpu_set_t set = only(core);
  sched_setaffinity(0, sizeof set, &set);
}

void name_this_thread(const std::string& name) { pthread_setname_np(pthread_self(), name.substr(0, 15).c_str()); }

PinnedHere::PinnedHere(int core) {
  if (core < 0 || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  const cpu_set_t set = only(core);
  changed_ = !CPU_EQUAL(&set, &before_) && sched_setaffinity(0, sizeof set, &set) == 0;
}

PinnedHere::~PinnedHere() {
  if (changed_) sched_setaffinity(0, sizeof before_, &before_);
}

#else

bool may_run_on(int core) { return core >= 0; }
void pin_this_thread(int) {}
void name_this_thread(const std::string&) {}
PinnedHere::PinnedHere(int) {}
PinnedHere::~PinnedHere() {}

#endif

}  // namespace octavo

// Where the time of steps goes, by operation: kept only while somebody asks for it, since reading the clock costs a step about a percent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octavo {

// What one thread spent in one operation: at work, and waiting for the others at its barriers.
struct Spent {
  std::int64_t working = 0, waiting = 0;
};

// The mean over the threads, of all steps since the profile began, for operations of one name.
struct ProfileLine {
  std::string name;
  double working_seconds, waiting_seconds;
};

// For each thread [operations + 2]: each operation, then what fills the tables of rope, then sampling.
using Profile = std::vector<std::vector<Spent>>;

}  // namespace octavo

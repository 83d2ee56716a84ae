// What a program tells of its time.
#include <algorithm>
#include <iterator>

#include "program/program.hpp"

namespace octavo {

void Program::profile(bool on) {
  team_->timed(on);
  profile_.assign(on ? static_cast<std::size_t>(team_->size()) : 0, std::vector<Spent>(operations_.size() + 2));
}

std::vector<ProfileLine> Program::profiled() const {
  std::vector<ProfileLine> lines;
  for (std::size_t i = 0; i < operations_.size() + 2; ++i) {
    const std::string name = i > operations_.size() ? "sampling" : i == operations_.size() ? "rope tables" : name_of(i);
    auto line = std::find_if(lines.begin(), lines.end(), [&](const ProfileLine& other) { return other.name == name; });
    if (line == lines.end()) line = lines.insert(line, {name, 0, 0});
    for (const std::vector<Spent>& thread : profile_) {
      const double share = 1e-9 / static_cast<double>(profile_.size());
      line->working_seconds += share * static_cast<double>(thread[i].working);
      line->waiting_seconds += share * static_cast<double>(thread[i].waiting);
    }
  }
  return lines;
}

std::string Program::name_of(std::size_t operation) const {
  static const char* const names[] = {"embedding", "gather", "norms", "norms", "conversions", "products", "gate and up", "attention"};
  static_assert(std::size(names) == std::variant_size_v<Operation>);
  return operation + 1 == operations_.size() ? "logits" : names[operations_[operation].index()];
}

}  // namespace octavo

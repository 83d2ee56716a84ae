// Picking from one row of numbers: the highest, and a random one by weight. octavo.worker.choice defines what is picked.
//
// Weights are whole numbers whose sum is below 2^53, so sums are exact in any order, and any way of finding a cut gives the same one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.hpp"

namespace octavo {

// Runs of a row, the last perhaps not full.
inline std::size_t sample_runs(std::size_t count) { return (count + kSampleRun - 1) / kSampleRun; }

// Maxima that `scan_row` gives.
inline std::size_t sample_sets(std::size_t count) { return sample_runs(count) * kSampleSets; }

// Memory for picking from rows of up to `size` values.
struct ChoiceScratch {
  explicit ChoiceScratch(std::size_t size);

  std::vector<float> values;  // candidates: values and indices
  std::vector<std::int32_t> ids;
  std::vector<float> nearer;  // some of these again: values and where they are among the others
  std::vector<std::int32_t> places;
  std::vector<float> order;        // what is left of a search
  std::vector<std::int64_t> mass;  // of weights, by some of their bits
};

// The index of the first value that equals `top`, the highest, whose maxima `scan_row` gave.
std::size_t first_equal(const float* values, std::size_t count, const float* maxima, float top);

// The indices of the k highest values, in no order; the lower index first where they are equal. No NaN. `maxima` is what `scan_row` gave.
// The result lies in `scratch.ids` and stays until its next use; there are min(k, count).
std::size_t highest(const Kernels& kernels, const float* values, std::size_t count, const float* maxima, std::size_t k,
                    ChoiceScratch& scratch);

// A row's weights: `sums` of runs and `total` as `weigh_row` gives them.
struct Weights {
  const float* values;
  std::size_t count;
  const double* sums;
  double total;
};

// The index of a random weight in proportion to it, of the nucleus alone if `top_p` is below 1.
std::size_t draw(const Kernels& kernels, const Weights& weights, double top_p, std::uint64_t bits, ChoiceScratch& scratch);

}  // namespace octavo

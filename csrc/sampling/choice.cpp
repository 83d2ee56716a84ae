#include "sampling/choice.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace octavo {

namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::size_t kMassBins = 2048;

// So many weights are sorted sooner than they are cut by their bits.
constexpr std::size_t kFew = 96;

// The whole numbers below `total` in proportion to 64 random bits.
std::int64_t scaled(std::uint64_t bits, std::int64_t total) {
  return static_cast<std::int64_t>(static_cast<Wide>(bits) * static_cast<Wide>(total) >> 64);
}

std::int64_t whole(float weight) { return static_cast<std::int64_t>(weight); }

// The nucleus: all weights above `lowest` and the first `equal` of those that equal it; together they weigh `total`.
struct Nucleus {
  float lowest;
  std::int64_t equal;
  std::int64_t total;
};

// The fewest highest of `count` weights that together hold `wanted`, which they do. Goes down the bits of floats, which are in the order of
// the floats, ten or eleven at a time: O(count) whatever the weights. `left` takes those that share the bits so far.
Nucleus nucleus_of(const float* weights, std::size_t count, std::int64_t wanted, std::vector<std::int64_t>& mass,
                   std::vector<float>& left) {
  if (count <= kFew) {
    std::copy_n(weights, count, left.begin());
    std::sort(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count), std::greater<>());
    Nucleus nucleus{left[0], 0, 0};
    for (std::size_t i = 0; nucleus.total < wanted; ++i) {
      nucleus.equal = left[i] == nucleus.lowest ? nucleus.equal + 1 : 1;
      nucleus.lowest = left[i];
      nucleus.total += whole(left[i]);
    }
    return nucleus;
  }
  std::uint32_t prefix = 0;
  std::int64_t above = 0;
  constexpr struct {
    unsigned shift, width;
  } kDigits[] = {{21, 10}, {10, 11}, {0, 10}};
  for (const auto [shift, width] : kDigits) {
    const std::uint32_t last = (1u << width) - 1;
    std::fill_n(mass.begin(), last + 1, 0);
    for (std::size_t i = 0; i < count; ++i) mass[std::bit_cast<std::uint32_t>(weights[i]) >> shift & last] += whole(weights[i]);
    std::uint32_t digit = last;
    for (; digit > 0 && above + mass[digit] < wanted; --digit) above += mass[digit];
    prefix = prefix << width | digit;
    std::size_t same = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const float weight = weights[i];
      left[same] = weight;
      same += std::bit_cast<std::uint32_t>(weight) >> shift == prefix;
    }
    weights = left.data();
    count = same;
  }
  const auto lowest = std::bit_cast<float>(prefix);
  const std::int64_t each = std::max<std::int64_t>(whole(lowest), 1);
  const std::int64_t equal = (wanted - above + each - 1) / each;
  return {lowest, equal, above + equal * each};
}

// The highest floor that some halvings find between `low` and `high`, in the order of floats, above which the weights hold `wanted`, which
// they all together do. The sums on the way are rough: what they may be off by is taken as lost.
float raised_floor(const Kernels& kernels, const float* weights, std::size_t count, float low, float high, std::int64_t wanted) {
  constexpr int kHalvings = 6;
  const double least = 1.0 - 0x1p-23 * static_cast<double>(count), most = 1.0 + 0x1p-23 * static_cast<double>(count);
  const double spare = kernels.sum_below(weights, count, std::numeric_limits<float>::infinity()) * least - static_cast<double>(wanted);
  auto fits = std::bit_cast<std::uint32_t>(low), above = std::bit_cast<std::uint32_t>(high);
  for (int i = 0; i < kHalvings; ++i) {
    const std::uint32_t middle = fits + (above - fits) / 2;
    (kernels.sum_below(weights, count, std::bit_cast<float>(middle)) * most <= spare ? fits : above) = middle;
  }
  return std::bit_cast<float>(fits);
}

}  // namespace

ChoiceScratch::ChoiceScratch(std::size_t size)
    : values(size + 16), ids(size + 16), nearer(size + 16), places(size + 16), order(sample_runs(size) * kSampleRun), mass(kMassBins) {}

std::size_t first_equal(const float* values, std::size_t count, const float* maxima, float top) {
  const std::size_t sets = sample_sets(count);
  const auto set = static_cast<std::size_t>(std::find(maxima, maxima + sets, top) - maxima);
  const float* run = values + set / kSampleSets * kSampleRun;
  return static_cast<std::size_t>(std::find(run, values + count, top) - values);
}

std::size_t highest(const Kernels& kernels, const float* values, std::size_t count, const float* maxima, std::size_t k,
                    ChoiceScratch& scratch) {
  std::vector<std::int32_t>& ids = scratch.ids;
  if (k >= count) {
    std::iota(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), 0);
    return count;
  }
  if (k == 0) return 0;
  // The k-th highest of maxima over separate sets of values can't be above the k-th highest value.
  const std::size_t sets = sample_sets(count);
  const bool few = k <= sets / 2;
  const std::size_t size = few ? sets : count;
  std::copy_n(few ? maxima : values, size, scratch.order.begin());
  const auto kth = scratch.order.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(scratch.order.begin(), kth, scratch.order.begin() + static_cast<std::ptrdiff_t>(size), std::greater<>());
  const std::size_t found = kernels.pick_at_least(values, count, *kth, scratch.values.data(), ids.data());
  const auto before = [values](std::int32_t a, std::int32_t b) {
    const float x = values[a], y = values[b];
    return x != y ? x > y : a < b;
  };
  const auto begin = ids.begin(), end = begin + static_cast<std::ptrdiff_t>(found);
  if (found > k) std::nth_element(begin, begin + static_cast<std::ptrdiff_t>(k), end, before);
  return k;
}

std::size_t draw(const Kernels& kernels, const Weights& weights, double top_p, std::uint64_t bits, ChoiceScratch& scratch) {
  const auto total = static_cast<std::int64_t>(weights.total);
  if (!(top_p < 1.0)) {
    std::int64_t left = scaled(bits, total);
    std::size_t run = 0;
    for (; left >= static_cast<std::int64_t>(weights.sums[run]); ++run) left -= static_cast<std::int64_t>(weights.sums[run]);
    std::size_t index = run * kSampleRun;
    for (; left >= whole(weights.values[index]); ++index) left -= whole(weights.values[index]);
    return index;
  }
  const std::int64_t wanted = std::max<std::int64_t>(static_cast<std::int64_t>(std::ceil(top_p * weights.total)), 1);
  // Weights up to `tail` sum to at most what may be left out, so the nucleus ends among those above it. The comparison is with ≥
  // because `tail` is rounded to float, perhaps up to the next weight.
  const std::int64_t tail = std::max<std::int64_t>((total - wanted) / static_cast<std::int64_t>(weights.count), 1);
  const auto floor = static_cast<float>(tail);
  const std::size_t picked = kernels.pick_at_least(weights.values, weights.count, floor, scratch.values.data(), scratch.ids.data());
  // Of thousands of weights a nucleus often holds some dozens. Passes that whole vectors make leave few for those that they can't.
  const float raised = raised_floor(kernels, scratch.values.data(), picked, floor, static_cast<float>(weights.total), wanted);
  const std::size_t count = kernels.pick_at_least(scratch.values.data(), picked, raised, scratch.nearer.data(), scratch.places.data());
  const Nucleus nucleus = nucleus_of(scratch.nearer.data(), count, wanted, scratch.mass, scratch.order);
  std::int64_t left = scaled(bits, nucleus.total), equal = nucleus.equal;
  for (std::size_t i = 0; i < count; ++i) {
    const float weight = scratch.nearer[i];
    const bool same = weight == nucleus.lowest;
    // No branch: which weights are kept can't be foreseen.
    left -= static_cast<std::int64_t>(weight > nucleus.lowest || (same && equal > 0)) * whole(weight);
    equal -= same;
    if (left < 0) return static_cast<std::size_t>(scratch.ids[static_cast<std::size_t>(scratch.places[i])]);
  }
  return static_cast<std::size_t>(scratch.ids[0]);  // never: what is left is below the nucleus's own sum
}

}  // namespace octavo

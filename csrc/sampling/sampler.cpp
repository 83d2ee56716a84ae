#include "sampling/sampler.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "sampling/philox.hpp"

namespace octavo {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// For each byte eight words: all bits where the byte has one, lowest first.
constexpr auto kSpread = [] {
  std::array<std::array<std::uint32_t, 8>, 256> spread{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    for (std::size_t bit = 0; bit < 8; ++bit) spread[byte][bit] = (byte >> bit & 1u) != 0 ? ~std::uint32_t{0} : 0;
  }
  return spread;
}();

// Eight logits, with −infinity where the byte has no bit; without a branch, as which bits a mask has can't be foretold.
void mask_eight(const float* raw, std::uint32_t byte, float* values) {
  constexpr auto kNothing = std::bit_cast<std::uint32_t>(-kInfinity);
  std::uint32_t logits[8];
  std::memcpy(logits, raw, sizeof(logits));
  for (std::size_t i = 0; i < 8; ++i) logits[i] = (logits[i] & kSpread[byte][i]) | (kNothing & ~kSpread[byte][i]);
  std::memcpy(values, logits, sizeof(logits));
}

std::int32_t code(NoToken reason) { return static_cast<std::int32_t>(reason); }

}  // namespace

Sampler::Scratch::Scratch(std::size_t size)
    : values(size),
      weights(sample_runs(size) * kSampleRun),
      raw_maxima(sample_sets(size)),
      maxima(sample_sets(size)),
      picked(size),
      kept(size),
      sums(sample_runs(size)),
      choice(size) {}

// The scale is the largest power of two for which the sum of a whole row of such weights stays exact in float64.
Sampler::Sampler(std::size_t vocabulary, int threads, const Kernels& kernels)
    : vocabulary_(vocabulary),
      words_((vocabulary + 31) / 32),
      threads_(static_cast<std::size_t>(threads)),
      scale_(std::ldexp(1.0f, 52 - static_cast<int>(std::bit_width(vocabulary - 1)))),
      kernels_(kernels) {
  require(vocabulary > 0 && vocabulary <= std::size_t{1} << 31, "a sampler needs a vocabulary");
}

std::size_t Sampler::tops(const SamplingRow& row) const {
  return row.logprobs < 0 ? 0 : std::min(static_cast<std::size_t>(row.logprobs), vocabulary_);
}

void Sampler::prepare(const SamplingInputs& inputs) {
  places_.clear();
  Place place{0, 0, 0, 0};
  for (const SamplingRow& row : inputs.rows) {
    require(row.temperature >= 0.0f && row.temperature < kInfinity, "a temperature is out of range");
    require(row.top_p > 0.0 && row.top_p <= 1.0 && row.min_p >= 0.0f && row.min_p <= 1.0f, "a share to sample from is out of range");
    require(row.top_k >= 0 && row.logprobs >= -1 && row.changes >= 0 && row.biases >= 0, "a count of a row to sample is negative");
    require(row.given < 0 || static_cast<std::size_t>(row.given) < vocabulary_, "a given token id is out of range");
    require(row.mask >= -1 && (row.mask < 0 || static_cast<std::size_t>(row.mask) < inputs.masks), "a row's mask is out of range");
    places_.push_back(place);
    place.changes += static_cast<std::size_t>(row.changes);
    place.biases += static_cast<std::size_t>(row.biases);
    place.logprobs += row.logprobs >= 0;
    place.tops += tops(row);
  }
  require(place.changes == inputs.changes, "the rows' changes differ in number from those given");
  require(place.biases == inputs.biases, "the rows' biases differ in number from those given");
  for (std::size_t i = 0; i < inputs.biases; ++i) {
    require(inputs.bias_ids[i] >= 0 && static_cast<std::size_t>(inputs.bias_ids[i]) < vocabulary_, "a token id to bias is out of range");
    require(std::isfinite(inputs.bias[i]), "a bias is not a number");
  }
  for (std::size_t i = 0; i < inputs.changes; ++i) {
    require(inputs.ids[i] >= 0 && static_cast<std::size_t>(inputs.ids[i]) < vocabulary_, "a token id to change is out of range");
    require(inputs.counts[i] >= -1, "a token to change has a negative count");
  }
  results_.token_ids.assign(inputs.rows.size(), 0);
  results_.logprobs.assign(place.logprobs, 0.0f);
  results_.ranks.assign(place.logprobs, 0);
  results_.top_ids.assign(place.tops, 0);
  results_.top_logprobs.assign(place.tops, 0.0f);
  while (scratch_.size() < threads_) scratch_.emplace_back(vocabulary_);
}

void Sampler::run(Member& member, const SamplingInputs& inputs, const float* logits) {
  Scratch& scratch = scratch_[static_cast<std::size_t>(member.index())];
  member.share(inputs.rows.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      results_.token_ids[row] = sample_row(inputs, row, logits + row * vocabulary_, scratch);
    }
  });
}

std::int32_t Sampler::sample_row(const SamplingInputs& inputs, std::size_t index, const float* raw, Scratch& scratch) {
  const SamplingRow& row = inputs.rows[index];
  const float raw_top = kernels_.scan_row(raw, vocabulary_, scratch.raw_maxima.data());
  if (std::isnan(raw_top)) return code(NoToken::kNan);
  if (std::isinf(raw_top)) return code(raw_top > 0.0f ? NoToken::kInfinity : NoToken::kNothing);
  if (row.given >= 0) {
    if (row.logprobs >= 0) add_logprobs(row, places_[index], raw, raw_top, static_cast<std::size_t>(row.given), scratch);
    return row.given;
  }
  const float *values = raw, *maxima = scratch.raw_maxima.data();
  float top = raw_top;
  if (row.changes > 0 || row.biases > 0 || row.mask >= 0) {
    mask(inputs, row, raw, scratch.values.data());
    change(inputs, index, scratch.values.data());
    values = scratch.values.data();
    maxima = scratch.maxima.data();
    top = kernels_.scan_row(values, vocabulary_, scratch.maxima.data());
    if (top == -kInfinity) return code(NoToken::kMasked);
    if (!std::isfinite(top)) return code(NoToken::kOverflow);
  }
  const bool greedy = row.temperature == 0.0f;
  const std::size_t token = greedy ? first_equal(values, vocabulary_, maxima, top) : choose(row, values, maxima, top, scratch);
  if (row.logprobs >= 0) add_logprobs(row, places_[index], raw, raw_top, token, scratch);
  return static_cast<std::int32_t>(token);
}

// The row with −infinity for what its mask leaves out, which nothing that follows changes.
void Sampler::mask(const SamplingInputs& inputs, const SamplingRow& row, const float* raw, float* values) const {
  if (row.mask < 0) {
    std::copy_n(raw, vocabulary_, values);
    return;
  }
  const std::int32_t* words = inputs.mask_words + static_cast<std::size_t>(row.mask) * words_;
  for (std::size_t begin = 0; begin < vocabulary_; begin += 32) {
    const auto bits = static_cast<std::uint32_t>(words[begin / 32]);
    const std::size_t count = std::min<std::size_t>(32, vocabulary_ - begin);
    if (bits == 0) {
      std::fill_n(values + begin, count, -kInfinity);
    } else if (bits == ~std::uint32_t{0}) {
      std::copy_n(raw + begin, count, values + begin);
    } else if (count < 32) {
      for (std::size_t i = 0; i < count; ++i) values[begin + i] = (bits >> i & 1u) != 0 ? raw[begin + i] : -kInfinity;
    } else {
      for (std::size_t part = 0; part < 4; ++part) mask_eight(raw + begin + 8 * part, bits >> 8 * part & 255u, values + begin + 8 * part);
    }
  }
}

// Biases, then penalties as octavo.worker.penalties has them, then what can't be chosen: a penalty never changes −infinity.
void Sampler::change(const SamplingInputs& inputs, std::size_t index, float* values) const {
  const SamplingRow& row = inputs.rows[index];
  const std::size_t first_bias = places_[index].biases, last_bias = first_bias + static_cast<std::size_t>(row.biases);
  for (std::size_t i = first_bias; i < last_bias; ++i) values[inputs.bias_ids[i]] += inputs.bias[i];
  const std::size_t first = places_[index].changes, last = first + static_cast<std::size_t>(row.changes);
  for (std::size_t i = first; i < last; ++i) {
    float& value = values[inputs.ids[i]];
    const std::int32_t count = inputs.counts[i];
    if (count < 0) {
      value = -kInfinity;
      continue;
    }
    if (row.repetition != 1.0f) value = value > 0.0f ? value / row.repetition : value * row.repetition;
    value -= row.frequency * static_cast<float>(count);
    value -= count > 0 ? row.presence : 0.0f;
  }
}

std::size_t Sampler::choose(const SamplingRow& row, const float* values, const float* maxima, float top, Scratch& scratch) const {
  const std::uint64_t bits = random_bits(row.seed, static_cast<std::uint64_t>(row.position));
  const auto drawn = [&](const float* from, std::size_t count) {
    float* weights = scratch.weights.data();
    const double total = kernels_.weigh_row(from, count, top, row.temperature, row.min_p, scale_, weights, scratch.sums.data());
    return draw(kernels_, {weights, count, scratch.sums.data(), total}, row.top_p, bits, scratch.choice);
  };
  const auto k = static_cast<std::size_t>(row.top_k);
  if (k == 0 || k >= vocabulary_) return drawn(values, vocabulary_);
  highest(kernels_, values, vocabulary_, maxima, k, scratch.choice);
  std::copy_n(scratch.choice.ids.begin(), k, scratch.kept.begin());
  std::sort(scratch.kept.begin(), scratch.kept.begin() + static_cast<std::ptrdiff_t>(k));
  for (std::size_t i = 0; i < k; ++i) scratch.picked[i] = values[scratch.kept[i]];
  return static_cast<std::size_t>(scratch.kept[drawn(scratch.picked.data(), k)]);
}

// Log-softmax of the raw logits. Order and rank are by logit, so that tokens whose logprobs round to the same float still have one order.
void Sampler::add_logprobs(const SamplingRow& row, const Place& place, const float* raw, float top, std::size_t token, Scratch& scratch) {
  const double norm = static_cast<double>(top) + std::log(kernels_.exp_sum(raw, vocabulary_, top));
  const auto logprob = [&](std::size_t id) { return static_cast<float>(static_cast<double>(raw[id]) - norm); };
  results_.logprobs[place.logprobs] = logprob(token);
  results_.ranks[place.logprobs] = 1 + static_cast<std::int32_t>(kernels_.count_above(raw, vocabulary_, raw[token]));
  const std::size_t count = highest(kernels_, raw, vocabulary_, scratch.raw_maxima.data(), tops(row), scratch.choice);
  const auto begin = scratch.choice.ids.begin();
  std::sort(begin, begin + static_cast<std::ptrdiff_t>(count),
            [raw](std::int32_t a, std::int32_t b) { return raw[a] != raw[b] ? raw[a] > raw[b] : a < b; });
  for (std::size_t i = 0; i < count; ++i) {
    results_.top_ids[place.tops + i] = begin[static_cast<std::ptrdiff_t>(i)];
    results_.top_logprobs[place.tops + i] = logprob(static_cast<std::size_t>(begin[static_cast<std::ptrdiff_t>(i)]));
  }
}

}  // namespace octavo

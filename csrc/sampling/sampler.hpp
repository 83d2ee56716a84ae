// Logits in, tokens out, by a team of threads: every thread takes whole rows. octavo.worker.sampler defines what is chosen, and gives
// the same token for the same exponentials; those may differ from numpy's in the last place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.hpp"
#include "sampling/choice.hpp"
#include "team/team.hpp"

namespace octavo {

// How one row is to be sampled; laid out as octavo.backends.sampling.ROW.
struct SamplingRow {
  std::uint64_t seed;
  std::int64_t position;
  double top_p;
  float temperature;  // 0 for the highest logit
  float min_p;
  float repetition, frequency, presence;
  std::int32_t top_k;     // 0 for all
  std::int32_t logprobs;  // most likely tokens wanted beside the chosen one; −1 for no logprobs at all
  std::int32_t changes;   // of the step's changes, those that are this row's
  std::int32_t given;     // the token whose logprobs are wanted, in place of one to choose; −1 to choose one
  std::int32_t biases;    // of the step's biases, those that are this row's
  std::int32_t mask;      // which of the step's masks says what may be chosen; −1 for none
};
static_assert(sizeof(SamplingRow) == 72);

// Tokens whose logits change first: ids[i] was generated counts[i] times, 0 if it is of the prompt alone; −1 for one that can't be chosen.
// Before that bias[i] is added to the logit of bias_ids[i]. A mask has a bit for each token that may be chosen, 32 to a word, the lowest
// first.
struct SamplingInputs {
  std::vector<SamplingRow> rows;
  const std::int32_t* ids;
  const std::int32_t* counts;
  std::size_t changes;
  const std::int32_t* bias_ids;
  const float* bias;
  std::size_t biases;
  const std::int32_t* mask_words;
  std::size_t masks;
};

// Why a row has no token; in a token's place.
enum class NoToken : std::int32_t { kNan = -1, kInfinity = -2, kNothing = -3, kMasked = -4, kOverflow = -5 };

// One token for each row, and for each row that wants logprobs: its token's, the token's rank, and those of the most likely, in
// falling order.
struct SamplingResults {
  std::vector<std::int32_t> token_ids;
  std::vector<float> logprobs;
  std::vector<std::int32_t> ranks;
  std::vector<std::int32_t> top_ids;
  std::vector<float> top_logprobs;
};

class Sampler {
 public:
  Sampler(std::size_t vocabulary, int threads, const Kernels& kernels);

  // Checks the rows and makes room. Throws std::invalid_argument.
  void prepare(const SamplingInputs& inputs);

  // Every thread of the team calls it, after `prepare`. `logits` is [rows][vocabulary].
  void run(Member& member, const SamplingInputs& inputs, const float* logits);

  // Of the last run, valid until the next `prepare`.
  const SamplingResults& results() const { return results_; }

 private:
  struct Scratch {
    explicit Scratch(std::size_t size);

    std::vector<float> values, weights, raw_maxima, maxima, picked;
    std::vector<std::int32_t> kept;  // of the top_k
    std::vector<double> sums;
    ChoiceScratch choice;
  };
  // Where a row's changes, biases and logprobs begin.
  struct Place {
    std::size_t changes, biases, logprobs, tops;
  };

  std::int32_t sample_row(const SamplingInputs& inputs, std::size_t index, const float* raw, Scratch& scratch);
  void mask(const SamplingInputs& inputs, const SamplingRow& row, const float* raw, float* values) const;
  void change(const SamplingInputs& inputs, std::size_t index, float* values) const;
  std::size_t choose(const SamplingRow& row, const float* values, const float* maxima, float top, Scratch& scratch) const;
  void add_logprobs(const SamplingRow& row, const Place& place, const float* raw, float top, std::size_t token, Scratch& scratch);
  std::size_t tops(const SamplingRow& row) const;

  std::size_t vocabulary_;
  std::size_t words_;  // of a mask
  std::size_t threads_;
  float scale_;
  const Kernels& kernels_;
  std::vector<Scratch> scratch_;
  std::vector<Place> places_;
  SamplingResults results_;
};

}  // namespace octavo

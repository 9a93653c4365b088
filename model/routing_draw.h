// What the routing generators draw with: distinct experts, Zipf weights, exact quotas of slots per rank.
// Internal to model/routing*.cc and their tests. Integers only, so that the drawn ids are the same on every
// machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/random.h"
#include "model/shape.h"

namespace plumb::detail {

/// Streams of a seed besides the ranks' own (index = rank).
inline constexpr uint64_t kSharedIndex = uint64_t{1} << 32;  // what all ranks have in common
inline constexpr uint64_t kMaskIndex = uint64_t{2} << 32;    // + rank: places of masked choices

/// Unbiased bounded draws, two from each 64-bit number (Lemire, "Fast random integer generation in an
/// interval", 2019).
class Draws {
 public:
  Draws(uint64_t seed, uint64_t index) : random_(seed, RandomStream::routing, index) {}

  /// Uniform in [0, bound). Requires bound > 0.
  uint32_t below(uint32_t bound) {
    uint64_t product = uint64_t{half()} * bound;
    if (static_cast<uint32_t>(product) < bound) {
      const uint32_t rejected = (0 - bound) % bound;  // 2^32 mod bound
      while (static_cast<uint32_t>(product) < rejected) product = uint64_t{half()} * bound;
    }
    return static_cast<uint32_t>(product >> 32);
  }

  /// Fills `out` with distinct numbers of [0, bound), all ordered choices equally likely. Requires bound >=
  /// out.size() and at most kMaxTopk numbers.
  void distinct(int32_t bound, std::span<int32_t> out);

  Random& random() { return random_; }

 private:
  uint32_t half() {
    has_half_ = !has_half_;
    if (!has_half_) return static_cast<uint32_t>(bits_ >> 32);
    bits_ = random_.next();
    return static_cast<uint32_t>(bits_);
  }

  Random random_;
  uint64_t bits_ = 0;
  bool has_half_ = false;
};

/// Picks exactly `count` of `places` one after the other, all subsets equally likely (Knuth, TAOCP 2,
/// algorithm S).
class Subset {
 public:
  Subset(int64_t count, int64_t places) : count_(count), places_(places) {}
  bool next(Random& random) {
    const bool is_chosen = static_cast<int64_t>(random.below(static_cast<uint64_t>(places_--))) < count_;
    count_ -= is_chosen ? 1 : 0;
    return is_chosen;
  }

 private:
  int64_t count_;
  int64_t places_;
};

/// Experts with weights (1 + i)^-exponent, i = place of the expert in a permutation that the seed fixes.
///
/// Weights are integers: floor(2^39 (1 + i)^-exponent), at least 1, by 62-bit fixed-point log2 and exp2 of
/// our own, because pow() differs in the last place between C libraries and a draw on a border would then
/// choose another expert.
class ZipfTable {
 public:
  /// Requires 1 <= experts <= kMaxExperts, 0 <= exponent <= 16. exponent is rounded to a multiple of 2^-32.
  ZipfTable(int32_t experts, double exponent, uint64_t seed);

  /// Draws out.size() <= kMaxTopk distinct experts one after the other, each by weight among those left.
  void distinct(Random& random, std::span<int32_t> out) const;

  uint64_t weight(int32_t place) const {
    return begin_[static_cast<size_t>(place) + 1] - begin_[static_cast<size_t>(place)];
  }
  int32_t expert_at(int32_t place) const { return expert_at_[static_cast<size_t>(place)]; }

 private:
  std::vector<uint64_t> begin_;     // [experts + 1], sum of the weights before a place; at most 2^63
  std::vector<int32_t> expert_at_;  // [experts]
};

/// Slots per destination rank that sum to `total`: `peak` at `hot`, the others equal to one slot.
/// Requires 0 <= peak <= total.
std::vector<int64_t> hot_quota(int64_t total, int32_t ranks, Rank hot, int64_t peak);

/// Slots per destination rank that sum to `total`: `peak` at `hot`, falling along a straight line over the
/// next ranks (mod ranks); from a peak of twice the mean on, the line reaches zero before the last one.
/// Requires ranks * peak >= total >= peak.
std::vector<int64_t> ramp_quota(int64_t total, int32_t ranks, Rank hot, int64_t peak);

/// Rows whose slots per destination rank are exactly a quota over the whole batch, made rank by rank.
///
/// With the quotas laid end to end, token g of the batch owns the places (a g mod tokens) + j tokens, j = 0
/// .. topk-1, a coprime with tokens. So each rank's share of each quota is fixed without looking at other
/// ranks, close to proportional, and no token owns more than ceil(quota / tokens) places of a destination. A
/// rank shuffles its places among its tokens; a token with more places on a destination than this has experts
/// swaps with another token.
class QuotaTable {
 public:
  /// Requires experts % ranks == 0, tokens below 2^31 in all, quotas that sum to tokens * topk, each at most
  /// tokens * local experts.
  QuotaTable(const Shape& shape, std::span<const int64_t> quota);

  /// Rows of the tokens first .. first + out.size() / topk - 1 of the batch.
  void rows(int64_t first, Draws& draws, std::span<int32_t> out) const;

 private:
  void deal(int64_t first, Draws& draws, std::span<int32_t> labels) const;

  std::vector<int64_t> begin_;  // [ranks + 1], sum of the quotas before a rank
  int64_t tokens_;
  int64_t stride_ = 1;  // the a above
  int32_t topk_;
  int32_t local_experts_;
};

}  // namespace plumb::detail

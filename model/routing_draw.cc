// Distinct draws, Zipf weights in fixed point, and tables with exact slots per destination rank.
#include "model/routing_draw.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "model/error.h"

namespace plumb::detail {
namespace {

__extension__ using Wide = unsigned __int128;

// Fixed point of the Zipf weights: mantissas have 62 fractional bits, logarithms 40.
constexpr int kMantissaBits = 62;
constexpr int kLogBits = 40;
constexpr int kWeightBits = 39;  // kMaxExperts weights of 2^39 sum to 2^63
constexpr int kExponentBits = 32;

uint64_t multiply(uint64_t a, uint64_t b) { return static_cast<uint64_t>(Wide{a} * b >> kMantissaBits); }

/// log2(n) with kLogBits fractional bits, by squaring the mantissa once for each bit.
uint64_t log2_fixed(uint64_t n) {
  const int whole = static_cast<int>(std::bit_width(n)) - 1;
  uint64_t mantissa = n << (kMantissaBits - whole);  // [1, 2)
  auto result = static_cast<uint64_t>(whole);
  for (int bit = 0; bit < kLogBits; ++bit) {
    mantissa = multiply(mantissa, mantissa);
    const bool is_two = mantissa >> (kMantissaBits + 1) != 0;
    result = result * 2 + (is_two ? 1 : 0);
    if (is_two) mantissa /= 2;
  }
  return result;
}

/// Largest r with r * r <= square. Requires square < 2^124.
uint64_t root(Wide square) {
  uint64_t result = 0;
  for (uint64_t bit = uint64_t{1} << kMantissaBits; bit != 0; bit /= 2)
    if (Wide{result + bit} * (result + bit) <= square) result += bit;
  return result;
}

/// 2^-(1/2), 2^-(1/4), 2^-(1/8), ... as mantissas.
std::array<uint64_t, kLogBits> halving_roots() {
  std::array<uint64_t, kLogBits> roots{};
  uint64_t last = uint64_t{1} << (kMantissaBits - 1);
  for (uint64_t& r : roots) last = r = root(Wide{last} << kMantissaBits);
  return roots;
}

/// floor(2^kWeightBits 2^-x) for an x with kLogBits fractional bits, at least 1 so that every expert can be
/// drawn.
uint64_t weight_of(uint64_t x, const std::array<uint64_t, kLogBits>& roots) {
  const uint64_t whole = x >> kLogBits;
  if (whole >= kWeightBits) return 1;
  uint64_t mantissa = uint64_t{1} << kMantissaBits;
  for (int bit = 0; bit < kLogBits; ++bit)
    if ((x >> (kLogBits - 1 - bit) & 1) != 0) mantissa = multiply(mantissa, roots[static_cast<size_t>(bit)]);
  return std::max<uint64_t>(1, mantissa >> (static_cast<uint64_t>(kMantissaBits - kWeightBits) + whole));
}

bool contains(std::span<const int32_t> row, int32_t value) {
  return std::find(row.begin(), row.end(), value) != row.end();
}

int64_t count_in(std::span<const int32_t> row, int32_t value) {
  return std::count(row.begin(), row.end(), value);
}

/// Swaps labels between rows until no row holds one more than `limit` times. Each swap lowers the number of
/// labels too many: a label d above the limit in row a goes to a row b that has fewer than `limit` of d, for
/// a label of which b has more than a (there is one: both rows have topk labels). Such a b exists as long as
/// d occurs at most limit * rows times.
void spread_repeats(std::span<int32_t> labels, size_t topk, int64_t limit, Draws& draws) {
  const size_t rows = labels.size() / topk;
  const auto row_at = [&](size_t i) { return labels.subspan(i * topk, topk); };
  for (size_t a = 0; a < rows; ++a) {
    for (size_t i = 0; i < topk; ++i) {
      while (count_in(row_at(a), row_at(a)[i]) > limit) {
        const int32_t label = row_at(a)[i];
        size_t b = draws.below(static_cast<uint32_t>(rows));
        for (size_t tried = 0; count_in(row_at(b), label) >= limit; ++tried) {
          PLUMB_CHECK(tried < rows, "no row of {} has room for rank {}", rows, label);
          b = (b + 1) % rows;
        }
        const auto other = std::find_if(row_at(b).begin(), row_at(b).end(), [&](int32_t candidate) {
          return count_in(row_at(b), candidate) > count_in(row_at(a), candidate);
        });
        PLUMB_CHECK(other != row_at(b).end(), "rows {} and {} cannot swap rank {}", a, b, label);
        std::swap(*other, row_at(a)[i]);
      }
    }
  }
}

}  // namespace

void Draws::distinct(int32_t bound, std::span<int32_t> out) {
  const auto count = static_cast<int32_t>(out.size());
  if (count * 4 <= bound) {  // few collisions: draw again
    for (size_t i = 0; i < out.size(); ++i) {
      do out[i] = static_cast<int32_t>(below(static_cast<uint32_t>(bound)));
      while (contains(out.first(i), out[i]));
    }
    return;
  }
  std::array<int32_t, size_t{4} * kMaxTopk> pool;  // the head of a Fisher-Yates shuffle
  PLUMB_CHECK(count <= bound && count <= kMaxTopk, "{} distinct numbers below {}", count, bound);
  std::iota(pool.begin(), pool.begin() + bound, 0);
  for (int32_t i = 0; i < count; ++i) {
    const auto j = static_cast<size_t>(i) + below(static_cast<uint32_t>(bound - i));
    std::swap(pool[static_cast<size_t>(i)], pool[j]);
    out[static_cast<size_t>(i)] = pool[static_cast<size_t>(i)];
  }
}

ZipfTable::ZipfTable(int32_t experts, double exponent, uint64_t seed)
    : begin_(static_cast<size_t>(experts) + 1), expert_at_(static_cast<size_t>(experts)) {
  const auto fixed_exponent = static_cast<uint64_t>(std::llround(std::ldexp(exponent, kExponentBits)));
  const auto roots = halving_roots();
  for (size_t i = 0; i < expert_at_.size(); ++i) {
    const auto x = static_cast<uint64_t>(Wide{log2_fixed(i + 1)} * fixed_exponent >> kExponentBits);
    begin_[i + 1] = begin_[i] + weight_of(x, roots);
  }
  std::iota(expert_at_.begin(), expert_at_.end(), 0);
  Draws draws(seed, kSharedIndex);
  for (size_t i = expert_at_.size(); i > 1; --i)
    std::swap(expert_at_[i - 1], expert_at_[draws.below(static_cast<uint32_t>(i))]);
}

void ZipfTable::distinct(Random& random, std::span<int32_t> out) const {
  std::array<int32_t, kMaxTopk> taken;  // places drawn so far, ascending
  uint64_t left = begin_.back();
  for (size_t drawn = 0; drawn < out.size(); ++drawn) {
    uint64_t mark = random.below(left);
    // `mark` counts only weights not yet taken: step over each taken place at or before it.
    size_t before = 0;
    while (before < drawn && mark >= begin_[static_cast<size_t>(taken[before])])
      mark += weight(taken[before++]);
    const auto next = std::upper_bound(begin_.begin(), begin_.end(), mark);
    const auto place = static_cast<int32_t>(next - begin_.begin() - 1);
    std::copy_backward(taken.begin() + before, taken.begin() + drawn, taken.begin() + drawn + 1);
    taken[before] = place;
    left -= weight(place);
    out[drawn] = expert_at(place);
  }
}

std::vector<int64_t> hot_quota(int64_t total, int32_t ranks, Rank hot, int64_t peak) {
  std::vector<int64_t> quota(static_cast<size_t>(ranks));
  const int64_t rest = total - peak;
  const int64_t others = std::max(ranks - 1, 1);
  for (int32_t i = 0; i < ranks; ++i)  // i = 0 is the hot rank
    quota[static_cast<size_t>((int64_t{hot} + i) % ranks)] =
        i == 0 ? peak : rest / others + (i - 1 < rest % others ? 1 : 0);
  return quota;
}

std::vector<int64_t> ramp_quota(int64_t total, int32_t ranks, Rank hot, int64_t peak) {
  constexpr int kSlopeBits = 20;  // a step of the slope moves no rank (at most 2^20) by more than one slot
  const auto height = [&](int32_t i, int64_t slope) {
    const auto drop =
        static_cast<int64_t>(Wide{static_cast<uint64_t>(slope)} * static_cast<uint64_t>(i) >> kSlopeBits);
    return std::max<int64_t>(0, peak - drop);
  };
  const auto sum = [&](int64_t slope) {
    int64_t result = 0;
    for (int32_t i = 0; i < ranks; ++i) result += height(i, slope);
    return result;
  };
  int64_t flat = -1;                   // too flat: sum > total, or -1
  int64_t steep = peak << kSlopeBits;  // all but the hot rank at zero
  while (steep - flat > 1) {
    const int64_t middle = flat + (steep - flat) / 2;
    (sum(middle) > total ? flat : steep) = middle;
  }
  std::vector<int64_t> quota(static_cast<size_t>(ranks));
  int64_t missing = total - sum(steep);
  for (int32_t i = 0; i < ranks; ++i) {
    const int64_t raise = flat < 0 ? 0 : std::min(missing, height(i, flat) - height(i, steep));
    missing -= raise;
    quota[static_cast<size_t>((int64_t{hot} + i) % ranks)] = height(i, steep) + raise;
  }
  PLUMB_CHECK(missing == 0, "{} slots of {} left over {} ranks with peak {}", missing, total, ranks, peak);
  return quota;
}

QuotaTable::QuotaTable(const Shape& shape, std::span<const int64_t> quota)
    : begin_(quota.size() + 1),
      tokens_(shape.total_tokens()),
      topk_(shape.topk),
      local_experts_(shape.local_experts()) {
  std::partial_sum(quota.begin(), quota.end(), begin_.begin() + 1);
  PLUMB_CHECK(begin_.back() == tokens_ * topk_, "quotas of {} slots, batch of {}", begin_.back(),
              tokens_ * topk_);
  // Multiples of the golden section spread any run of tokens evenly; 46368 / 75025 is a ratio of Fibonacci
  // numbers.
  stride_ = std::max<int64_t>(1, tokens_ * 46368 / 75025);
  while (tokens_ > 0 && std::gcd(stride_, tokens_) != 1) ++stride_;
}

void QuotaTable::deal(int64_t first, Draws& draws, std::span<int32_t> labels) const {
  int64_t place = first * stride_ % tokens_;  // both below 2^31
  for (size_t i = 0; i < labels.size(); place = (place + stride_) % tokens_)
    for (int32_t j = 0; j < topk_; ++j, ++i)
      labels[i] = static_cast<Rank>(std::upper_bound(begin_.begin(), begin_.end(), place + j * tokens_) -
                                    begin_.begin() - 1);
  for (size_t i = labels.size(); i > 1; --i) std::swap(labels[i - 1], labels[draws.random().below(i)]);
}

void QuotaTable::rows(int64_t first, Draws& draws, std::span<int32_t> out) const {
  if (out.empty()) return;
  const auto topk = static_cast<size_t>(topk_);
  deal(first, draws, out);
  if (local_experts_ < topk_) spread_repeats(out, topk, local_experts_, draws);
  for (size_t begin = 0; begin < out.size(); begin += topk) {
    for (size_t i = begin; i < begin + topk; ++i) {
      const Rank rank = out[i];
      do
        out[i] =
            rank * local_experts_ + static_cast<int32_t>(draws.below(static_cast<uint32_t>(local_experts_)));
      while (contains(out.subspan(begin, i - begin), out[i]));
    }
  }
}

}  // namespace plumb::detail

// Random dispatch and combine cases and what they must yield: a small reference on the CPU, straight from the
// routing, that shares no code with kernels or plans.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "model/random.h"

namespace plumb::hw::test {

struct Case {
  uint64_t seed = 0;
  int32_t ranks = 1, experts = 1, topk = 1, hidden = 8, max_tokens = 1;
  std::vector<int32_t> tokens;
  bool fp8 = false, expand = false, zero_padding = false, column_scales = false, wide_ids = false;
  bool multiple_reduction = true, has_weights = true, together = true, host_sync = false;
  int32_t scale_packs = 0, alignment = 1, biases = 0, sms = 1;
  std::vector<std::vector<int32_t>> ids;      // [ranks][tokens * topk]
  std::vector<std::vector<float>> weights;    // [ranks][tokens * topk]
  std::vector<std::vector<uint8_t>> x;        // [ranks][tokens * row_bytes]
  std::vector<std::vector<uint32_t>> scales;  // [ranks][tokens * packs]
  std::vector<std::vector<uint16_t>> bias;    // [ranks][2 * tokens * hidden]

  int32_t local() const { return experts / ranks; }
  int32_t row_bytes() const { return hidden * (fp8 ? 1 : 2); }
  std::string describe() const {
    return fmt::format(
        "seed {} R {} E {} K {} H {} T {} fp8 {} expand {} pad {} column {} wide {} multiple {} weights {} "
        "together {} "
        "sync {} packs {} align {} biases {} sms {}",
        seed, ranks, experts, topk, hidden, max_tokens, fp8, expand, zero_padding, column_scales, wide_ids,
        multiple_reduction, has_weights, together, host_sync, scale_packs, alignment, biases, sms);
  }
};

/// A finite bf16 of moderate size; sums of 32 stay finite.
inline uint16_t small_bf16(Random& random) {
  const auto sign = static_cast<uint16_t>(random.below(2) << 15);
  const auto exponent = static_cast<uint16_t>((118 + random.below(14)) << 7);
  return static_cast<uint16_t>(sign | exponent | random.below(128));
}

inline void fill_routing(Case& c, Random& random) {
  const uint64_t style = random.below(4);  // uniform, masked, one hot expert, one hot rank
  for (int32_t r = 0; r < c.ranks; ++r) {
    const auto tokens = static_cast<size_t>(c.tokens[static_cast<size_t>(r)]);
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (size_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> all(static_cast<size_t>(c.experts));
      for (int32_t e = 0; e < c.experts; ++e) all[static_cast<size_t>(e)] = e;
      for (int32_t k = 0; k < c.topk; ++k)
        std::swap(all[static_cast<size_t>(k)],
                  all[static_cast<size_t>(k) + random.below(static_cast<uint64_t>(c.experts - k))]);
      all.resize(static_cast<size_t>(c.topk));
      if (style == 2 && std::find(all.begin(), all.end(), 0) == all.end()) all[random.below(all.size())] = 0;
      if (style == 3 && c.topk <= c.local())
        for (int32_t k = 0; k < c.topk; ++k) all[static_cast<size_t>(k)] = k;
      for (int32_t& e : all)
        if (style == 1 && random.below(3) == 0) e = -1;
      ids.insert(ids.end(), all.begin(), all.end());
      for (int32_t k = 0; k < c.topk; ++k) weights.push_back(static_cast<float>(random.uniform()));
    }
    c.ids.push_back(ids);
    c.weights.push_back(weights);
  }
}

inline void fill_payload(Case& c, Random& random) {
  for (int32_t r = 0; r < c.ranks; ++r) {
    const auto tokens = static_cast<size_t>(c.tokens[static_cast<size_t>(r)]);
    std::vector<uint8_t> x(tokens * static_cast<size_t>(c.row_bytes()));
    for (auto& byte : x) byte = static_cast<uint8_t>(random.next());
    std::vector<uint32_t> scales(tokens * static_cast<size_t>(c.scale_packs));
    for (auto& pack : scales) pack = static_cast<uint32_t>(random.next());
    std::vector<uint16_t> bias(2 * tokens * static_cast<size_t>(c.hidden));
    for (auto& value : bias) value = small_bf16(random);
    c.x.push_back(std::move(x));
    c.scales.push_back(std::move(scales));
    c.bias.push_back(std::move(bias));
  }
}

/// `ranks` 0: 1 to 12.
inline Case random_case(uint64_t seed, int32_t ranks = 0) {
  Random random(seed, RandomStream::test);
  const auto pick = [&](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random.below(static_cast<uint64_t>(high - low + 1)));
  };
  Case c;
  c.seed = seed;
  c.ranks = ranks > 0 ? ranks : pick(1, 12);
  c.experts = c.ranks * pick(1, 12);
  if (seed % 13 == 6) c.experts = c.ranks * (700 / c.ranks + pick(0, 40));  // more than shared memory keeps
  c.topk = pick(1, std::min(c.experts, seed % 7 == 0 ? 32 : 10));
  c.fp8 = random.below(2) == 0;
  c.hidden = 16 * pick(1, seed % 5 == 0 ? 300 : 24);
  c.scale_packs = c.fp8 ? pick(0, 70) : 0;
  c.max_tokens = pick(1, seed % 11 == 0 ? 700 : seed % 5 == 2 ? 250 : 70);
  for (int32_t r = 0; r < c.ranks; ++r) c.tokens.push_back(random.below(5) == 0 ? 0 : pick(0, c.max_tokens));
  c.expand = random.below(2) == 0;
  c.alignment = c.expand ? (random.below(2) == 0 ? 1 : pick(2, 32)) : 1;
  c.zero_padding = c.expand && random.below(2) == 0;
  c.column_scales = random.below(2) == 0;
  c.wide_ids = random.below(2) == 0;
  c.multiple_reduction = random.below(3) != 0;
  c.has_weights = random.below(4) != 0;
  c.together = random.below(3) != 0;
  c.host_sync = c.together && random.below(2) == 0;
  c.biases = pick(0, 2);
  c.sms = pick(1, std::min(10, 120 / c.ranks));
  if (seed % 5 == 2) c.sms = 1;  // many tokens a block: metadata in groups, counts told directly
  if (seed % 5 == 4 && c.ranks <= 2) c.sms = pick(48, 60);  // expand: copies follow the sources
  if (seed % 5 == 3 && ranks == 2) {                        // on GPUs of their own: blocks share tokens
    c.sms = pick(14, 26);
    c.max_tokens = 64 * c.sms + pick(0, 400);
    c.expand = c.zero_padding = false;
    c.alignment = 1;
    for (int32_t& tokens : c.tokens) tokens = pick(random.below(4) == 0 ? 0 : 64 * c.sms, c.max_tokens);
  }
  if (seed % 10 == 4 && ranks == 2) {  // likewise: combine pushes rows home
    c.max_tokens = 40 * c.sms + pick(0, 700);
    for (int32_t& tokens : c.tokens) tokens = pick(random.below(4) == 0 ? 0 : 36 * c.sms, c.max_tokens);
  }
  fill_routing(c, random);
  fill_payload(c, random);
  return c;
}

/// A row of a rank's tensor: who sent it; position >= 0: the selection behind it (expand); rank -1: a gap.
struct Row {
  int32_t rank = -1, token = -1, position = -1;
};

inline int32_t expert_of(const Case& c, int32_t rank, int32_t token, int32_t k) {
  return c.ids[static_cast<size_t>(rank)][static_cast<size_t>(token * c.topk + k)];
}

inline std::vector<Row> copies_of(const Case& c, int32_t dst) {
  std::vector<Row> rows;
  for (int32_t s = 0; s < c.ranks; ++s)
    for (int32_t t = 0; t < c.tokens[static_cast<size_t>(s)]; ++t) {
      bool is_sent = false;
      for (int32_t k = 0; k < c.topk; ++k) {
        const int32_t e = expert_of(c, s, t, k);
        is_sent |= e >= 0 && e / c.local() == dst;
      }
      if (is_sent) rows.push_back({s, t, -1});
    }
  return rows;
}

inline std::vector<Row> tensor_of(const Case& c, int32_t dst) {
  if (!c.expand) return copies_of(c, dst);
  std::vector<Row> rows;
  for (int32_t e = dst * c.local(); e < (dst + 1) * c.local(); ++e) {
    for (int32_t s = 0; s < c.ranks; ++s)
      for (int32_t t = 0; t < c.tokens[static_cast<size_t>(s)]; ++t)
        for (int32_t k = 0; k < c.topk; ++k)
          if (expert_of(c, s, t, k) == e) rows.push_back({s, t, k});
    while (rows.size() % static_cast<size_t>(c.alignment) != 0) rows.push_back({});
  }
  return rows;
}

inline std::vector<int64_t> expert_counts(const Case& c, int32_t dst) {
  std::vector<int64_t> counts(static_cast<size_t>(c.local()));
  for (const auto& ids : c.ids)
    for (const int32_t e : ids)
      if (e >= 0 && e / c.local() == dst) ++counts[static_cast<size_t>(e % c.local())];
  return counts;
}

inline float bf16_value(uint16_t code) { return std::bit_cast<float>(uint32_t{code} << 16); }
inline uint16_t bf16_rounded(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// What an expert answers in row `row` of rank `rank`: numbers that differ everywhere.
inline uint16_t answer(const Case& c, int32_t rank, int64_t row, int32_t i) {
  uint64_t h = c.seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank) * 1000003u +
               static_cast<uint64_t>(row) * 8191u + static_cast<uint64_t>(i);
  h ^= h >> 31;
  h *= 0xbf58476d1ce4e5b9u;
  h ^= h >> 29;
  if (h % 16 < 3) return h % 16 == 0 ? 0 : 0x8000;  // zeros of both signs
  return static_cast<uint16_t>((h & 0x807fu) | ((118 + h % 14) << 7));
}
inline float answer_weight(const Case& c, int32_t rank, int64_t index) {
  return static_cast<float>(rank) + static_cast<float>(index) * 0.5f + static_cast<float>(c.seed % 13);
}

/// Where the tensor row of each selection is: places[rank][source][token * topk + k] as a pair of copy and
/// row.
struct Places {
  std::map<std::pair<int32_t, int32_t>, int64_t> copy;           // (source, token) -> copy
  std::map<std::tuple<int32_t, int32_t, int32_t>, int64_t> row;  // (source, token, k) -> row, expand
};
inline Places places_at(const Case& c, int32_t dst) {
  Places places;
  const auto copies = copies_of(c, dst);
  for (size_t i = 0; i < copies.size(); ++i)
    places.copy[{copies[i].rank, copies[i].token}] = static_cast<int64_t>(i);
  if (!c.expand) return places;
  const auto rows = tensor_of(c, dst);
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].rank >= 0)
      places.row[{rows[i].rank, rows[i].token, rows[i].position}] = static_cast<int64_t>(i);
  return places;
}

/// The combined row of a token, element i: biases, then by rank in order of its last selection.
inline uint16_t combined(const Case& c, const std::vector<Places>& places, int32_t source, int32_t token,
                         int32_t i) {
  const auto s = static_cast<size_t>(source);
  float sum = 0;
  const size_t tokens = static_cast<size_t>(c.tokens[s]);
  for (int32_t b = 0; b < c.biases; ++b)
    sum += bf16_value(
        c.bias[s][static_cast<size_t>(b) * tokens * static_cast<size_t>(c.hidden) +
                  static_cast<size_t>(token) * static_cast<size_t>(c.hidden) + static_cast<size_t>(i)]);
  for (int32_t k = 0; k < c.topk; ++k) {
    const int32_t e = expert_of(c, source, token, k);
    if (e < 0) continue;
    const int32_t rank = e / c.local();
    const Places& there = places[static_cast<size_t>(rank)];
    if (c.expand && !c.multiple_reduction) {
      sum += bf16_value(answer(c, rank, there.row.at({source, token, k}), i));
      continue;
    }
    bool is_last = true;
    float local = 0;
    for (int32_t j = 0; j < c.topk; ++j) {
      const int32_t other = expert_of(c, source, token, j);
      if (other < 0 || other / c.local() != rank) continue;
      is_last &= j <= k;
      if (c.expand) local += bf16_value(answer(c, rank, there.row.at({source, token, j}), i));
    }
    if (!is_last) continue;
    sum += c.expand ? bf16_value(bf16_rounded(local))
                    : bf16_value(answer(c, rank, there.copy.at({source, token}), i));
  }
  return bf16_rounded(sum);
}

}  // namespace plumb::hw::test

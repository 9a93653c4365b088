// Inputs of the NVLink benchmark and the rows that they lead to, straight from the routing.
#pragma once

#include <algorithm>
#include <vector>

#include "model/error.h"
#include "model/random.h"
#include "tests/hw/bench_points.h"

namespace plumb::hw {

/// Inputs of both ranks, so that each can check what came from the other.
struct Inputs {
  Shape shape;                               // of the largest call
  std::vector<int32_t> ids[kBenchRanks];     // [tokens][topk], of the current point
  std::vector<uint32_t> words[kBenchRanks];  // finite bf16; rows of fp8 are the first half of these bytes
  std::vector<uint32_t> packs;               // [tokens][packs], equal on both

  explicit Inputs(const Shape& largest) : shape(largest) {
    Random random(1, RandomStream::payload);
    packs.resize(static_cast<size_t>(shape.max_tokens) * static_cast<size_t>(shape.hidden / 128));
    for (auto& pack : packs) pack = static_cast<uint32_t>(random.next());
    for (auto& rows : words) {
      rows.resize(static_cast<size_t>(shape.max_tokens) * static_cast<size_t>(shape.hidden / 2));
      for (auto& word : rows) word = (static_cast<uint32_t>(random.next()) & 0x83ff83ffu) | 0x3c003c00u;
    }
  }
  const int32_t* row_ids(Rank source, int32_t token) const {
    return &ids[source][static_cast<size_t>(token) * static_cast<size_t>(shape.topk)];
  }
  bool hits(Rank source, int32_t token, Rank dst) const {
    const int32_t* row = row_ids(source, token);
    return std::any_of(row, row + shape.topk, [&](int32_t e) { return shape.rank_of(e) == dst; });
  }
  const char* row(Rank source, int32_t token, int64_t row_bytes) const {
    return reinterpret_cast<const char*>(words[source].data()) + token * row_bytes;
  }
};

/// The shape of one experiment with the tokens of the largest.
inline Shape largest_shape(const std::vector<Experiment>& experiments) {
  Shape largest = experiments.front().shape;
  for (const Experiment& e : experiments) {
    const Shape& s = e.shape;
    largest.max_tokens = std::max(largest.max_tokens, s.max_tokens);
    largest.alignment = std::max(largest.alignment, s.alignment);
    if (s.hidden != largest.hidden || s.experts != largest.experts || s.topk != largest.topk)
      fail_usage("point '{}' differs in hidden, experts or topk from the others; allowed: equal ones",
                 e.label);
  }
  return largest;
}

struct Place {
  Rank source = -1;  // -1: a gap
  int32_t token = 0;
};

/// Rows of a rank's tensor in canonical order, straight from the routing.
inline std::vector<Place> places_of(const Inputs& inputs, const BenchPoint& p, Rank dst) {
  std::vector<Place> places;
  const int32_t local = inputs.shape.local_experts(), topk = inputs.shape.topk;
  for (int32_t e = dst * local; e < (p.expand ? (dst + 1) * local : dst * local + 1); ++e) {
    for (Rank s = 0; s < kBenchRanks; ++s)
      for (int32_t t = 0; t < p.tokens; ++t) {
        const int32_t* row = inputs.row_ids(s, t);
        if (p.expand ? std::find(row, row + topk, e) != row + topk : inputs.hits(s, t, dst))
          places.push_back({s, t});
      }
    while (p.expand && places.size() % static_cast<size_t>(inputs.shape.alignment) != 0)
      places.emplace_back();
  }
  return places;
}

}  // namespace plumb::hw

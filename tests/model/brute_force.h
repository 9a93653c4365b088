// What dispatch and combine mean, straight from shape and routing: the independent definition that plans and
// executors are tested against. Slow, and shares no code with builders or executors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "model/routing.h"
#include "model/shape.h"

namespace plumb::brute {

using Table = std::vector<std::vector<int32_t>>;  // [ranks][tokens * topk]

inline Table table_of(const Shape& shape, const Routing& routing) {
  Table table;
  for (int32_t r = 0; r < shape.ranks; ++r) table.push_back(routing.rows(r));
  return table;
}

inline int32_t choice(const Shape& shape, const Table& table, int32_t rank, int32_t token, int32_t k) {
  return table[static_cast<size_t>(rank)][static_cast<size_t>(token * shape.topk + k)];
}

/// A received row: who sent it; position >= 0: the one choice behind an expanded row. rank -1: padding.
struct Row {
  int32_t rank = -1;
  int32_t token = -1;
  int32_t position = -1;
};

/// One row per (token, rank that owns one of its experts), by source rank, then token.
inline std::vector<Row> plain_rows(const Shape& shape, const Table& table, int32_t destination) {
  std::vector<Row> rows;
  for (int32_t s = 0; s < shape.ranks; ++s)
    for (int32_t t = 0; t < shape.tokens[static_cast<size_t>(s)]; ++t) {
      bool is_sent = false;
      for (int32_t k = 0; k < shape.topk; ++k) {
        const int32_t e = choice(shape, table, s, t, k);
        is_sent |= e >= 0 && e / (shape.experts / shape.ranks) == destination;
      }
      if (is_sent) rows.push_back({s, t, -1});
    }
  return rows;
}

/// Sources of the rows of one expert, ascending.
inline std::vector<Row> expert_rows(const Shape& shape, const Table& table, int32_t expert) {
  std::vector<Row> rows;
  for (int32_t s = 0; s < shape.ranks; ++s)
    for (int32_t t = 0; t < shape.tokens[static_cast<size_t>(s)]; ++t)
      for (int32_t k = 0; k < shape.topk; ++k)
        if (choice(shape, table, s, t, k) == expert) rows.push_back({s, t, k});
  return rows;
}

/// One row per (token, local expert), grouped by expert, each group filled up to a multiple of `alignment`.
inline std::vector<Row> expanded_rows(const Shape& shape, const Table& table, int32_t destination,
                                      int32_t alignment) {
  const int32_t local = shape.experts / shape.ranks;
  std::vector<Row> rows;
  for (int32_t e = destination * local; e < (destination + 1) * local; ++e) {
    for (const Row& row : expert_rows(shape, table, e)) rows.push_back(row);
    while (rows.size() % static_cast<size_t>(alignment) != 0) rows.push_back({});
  }
  return rows;
}

/// Nearest bf16, ties to even, by scaling to 8 significant bits; not for values beyond the range of bf16.
inline float round_to_bf16(float value) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  exponent = std::max(exponent, -125);  // bf16 subnormals share the step of the smallest normal
  const double scaled = std::nearbyint(std::ldexp(static_cast<double>(value), 8 - exponent));
  return static_cast<float>(std::ldexp(scaled, exponent - 8));
}

enum class Expert { identity, scaled, weighted };

/// How a combine sums.
struct Recipe {
  int32_t scaleup = 1;             // ranks per node
  bool is_hybrid = false;          // sums on the node of the experts before rows cross the network
  bool expand = false;             // experts answer once per choice, not once per token and rank
  bool multiple_reduction = true;  // false: one sum, at the source
  bool weigh_at_source = false;    // low latency: the source multiplies by the gate weight
  Expert expert = Expert::identity;
};

/// One token: its choices, weights [topk], and one element of x and of the biases.
struct Token {
  std::vector<int32_t> choices;
  std::vector<float> weights;
  float x = 0;
  std::vector<float> biases;
};

/// A partial sum on its way home; `position` orders the next sum.
struct Partial {
  int32_t position = 0;
  int32_t rank = 0;
  float value = 0;
};

inline float sum_in_order(std::vector<Partial> parts, float sum) {
  std::sort(parts.begin(), parts.end(),
            [](const Partial& a, const Partial& b) { return a.position < b.position; });
  for (const Partial& part : parts) sum += part.value;
  return sum;
}

/// Replaces the parts of each group (of rank / ranks_per_group) by their rounded sum, which takes the
/// position of its last member.
inline std::vector<Partial> sum_groups(const std::vector<Partial>& parts, int32_t ranks_per_group) {
  std::map<int32_t, std::vector<Partial>> groups;
  for (const Partial& part : parts) groups[part.rank / ranks_per_group].push_back(part);
  std::vector<Partial> sums;
  for (const auto& [group, members] : groups) {
    int32_t last = 0;
    for (const Partial& part : members) last = std::max(last, part.position);
    sums.push_back({last, group * ranks_per_group, round_to_bf16(sum_in_order(members, 0))});
  }
  return sums;
}

inline float expert_factor(const Token& token, Expert expert, int32_t k) {
  const auto index = static_cast<size_t>(k);
  return expert == Expert::scaled     ? static_cast<float>(token.choices[index] + 1)
         : expert == Expert::weighted ? token.weights[index]
                                      : 1.0f;
}

/// What the experts answer, before any sum of combine.
inline std::vector<Partial> answers(const Token& token, const Recipe& recipe, int32_t experts_per_rank) {
  std::vector<Partial> parts;
  for (int32_t k = 0; k < static_cast<int32_t>(token.choices.size()); ++k) {
    const int32_t e = token.choices[static_cast<size_t>(k)];
    if (e < 0) continue;
    const int32_t rank = e / experts_per_rank;
    volatile float product = expert_factor(token, recipe.expert, k) * token.x;  // not fused into the sum
    const auto same =
        std::find_if(parts.begin(), parts.end(), [&](const Partial& p) { return p.rank == rank; });
    if (recipe.expand || same == parts.end())
      parts.push_back({k, rank, product});
    else  // one row per rank: the expert side adds its local experts in fp32; identity answers x once
      *same = {k, rank, recipe.expert == Expert::identity ? same->value : same->value + product};
  }
  for (Partial& part : parts) part.value = round_to_bf16(part.value);
  return parts;
}

/// One element of the combined row of a token.
inline float combine(const Token& token, const Recipe& recipe, int32_t experts_per_rank) {
  std::vector<Partial> parts = answers(token, recipe, experts_per_rank);
  if (recipe.multiple_reduction && recipe.expand && !recipe.weigh_at_source) parts = sum_groups(parts, 1);
  if (recipe.multiple_reduction && recipe.is_hybrid) parts = sum_groups(parts, recipe.scaleup);
  if (recipe.weigh_at_source)
    for (Partial& part : parts) {
      volatile float product = token.weights[static_cast<size_t>(part.position)] * part.value;
      part.value = product;
    }
  float bias = 0;
  for (const float b : token.biases) bias += b;
  return round_to_bf16(sum_in_order(parts, bias));
}

}  // namespace plumb::brute

// Which experts each token chose. Rows are made rank by rank from (seed, rank), so a table of 2048 ranks
// never has to be in memory, and a real rank can make its own rows alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/shape.h"

namespace plumb {

/// Generators of routing; see docs/routing.md for their definitions.
enum class RoutingKind : uint8_t {
  uniform,        // topk distinct experts, all sets equally likely
  balanced,       // round robin: slots per rank differ by at most one over the whole batch
  group_limited,  // DeepSeek-V3: the `group_topk` best of `groups` groups, then topk experts inside them
  zipf,           // expert e drawn with weight 1 / (1 + permuted(e))^exponent, without replacement
  hot_expert,  // `hot_fraction` of the tokens choose `hot_index` as one of their experts; the rest is uniform
  hot_rank,    // rank `hot_index` receives `hot_ratio` times the mean number of slots (exact to one slot)
  unbalanced,  // max/mean slots per rank is exactly `hot_ratio` to one slot, spread over all ranks (linear
               // ramp)
  replay,      // read from a trace file
};

struct RoutingSpec {
  RoutingKind kind = RoutingKind::uniform;
  uint64_t seed = 1;
  int32_t groups = 8;
  int32_t group_topk = 4;
  double exponent = 1.0;
  int32_t hot_index = 0;
  double hot_fraction = 0.5;
  double hot_ratio = 2.0;
  double masked_ratio =
      0;             // fraction of choices replaced by -1 afterwards (exact count per rank, random places)
  std::string file;  // replay

  bool operator==(const RoutingSpec&) const = default;
};

std::string_view to_string(RoutingKind kind);

/// The routing table of a batch: topk_idx int32 [ranks][tokens][topk], kNone = no choice.
class Routing {
 public:
  /// From a generator. Throws Error(usage) when the spec does not fit the shape (e.g. groups do not divide
  /// experts, fewer than topk experts in group_topk groups, a hot ratio that cannot be reached), naming found
  /// and allowed.
  static Routing generate(const Shape& shape, const RoutingSpec& spec);
  /// From a table; rows of rank r are table[first_token(r) * topk ...]. Throws Error(usage) naming rank,
  /// token and position for an id >= experts or < -1, or an expert chosen twice by one token.
  static Routing from_table(const Shape& shape, std::vector<int32_t> table);

  /// Fills `out` ([tokens[r]][topk]) with the rows of one rank. Thread-safe.
  void rows(Rank r, std::vector<int32_t>& out) const;
  std::vector<int32_t> rows(Rank r) const;

  int32_t topk() const { return topk_; }

 private:
  Routing() = default;
  int32_t topk_ = 0;
  std::function<void(Rank, std::vector<int32_t>&)> fill_;
};

/// Distinct destination ranks of one row in ascending order, appended to `out` (cleared first).
void destinations(const Shape& shape, std::span<const int32_t> row, std::vector<Rank>& out);

/// Expected number of distinct groups hit by one token: topk experts uniformly without replacement, experts
/// split evenly over `groups`: hit = G (1 - C(E - E/G, K) / C(E, K)). E 256, G 8, K 8 -> 5.29465. Source:
/// DeepEP deep_ep/buffers/elastic.py; requires experts % groups == 0.
double expected_distinct(int32_t experts, int32_t groups, int32_t topk);
/// Its limit for many experts: G (1 - (1 - 1/G)^K).
double expected_distinct_limit(int32_t groups, int32_t topk);
/// The same for a group-limited gate: the `group_topk` best of `gate_groups` groups, then topk experts inside
/// these. `groups` (ranks or nodes) must divide or be a multiple of gate_groups.
double expected_distinct_group_limited(int32_t experts, int32_t groups, int32_t topk, int32_t gate_groups,
                                       int32_t group_topk);

/// Trace file of routing (docs/routing.md): '#' header lines, then "rank,token,e0,...,eK-1" lines.
/// Reading checks shape, order, completeness, ids; errors carry file:line:column. Writing is byte-stable.
std::vector<int32_t> read_routing_file(const std::string& path, const Shape& shape);
void write_routing_file(const std::string& path, const Shape& shape, const Routing& routing);

}  // namespace plumb

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

/// Generators of routing; docs/routing.md defines them. A slot is one choice of one token.
enum class RoutingKind : uint8_t {
  uniform,        // topk distinct experts, all ordered choices equally likely
  balanced,       // round robin: slots per rank (and per expert) differ by at most one over the whole batch
  group_limited,  // the `group_topk` of `groups` groups with the best experts, then the best topk inside them
  zipf,           // expert e drawn with weight 1 / (1 + permuted(e))^exponent, without replacement
  hot_expert,  // exactly `hot_fraction` of each rank's tokens choose expert `hot_index`; all else is uniform
  hot_rank,    // rank `hot_index` receives `hot_ratio` times the mean slots, the others equally many
  unbalanced,  // max/mean slots per rank is `hot_ratio`, a straight line falling from rank `hot_index` on
  replay,      // read from a trace file
};

struct RoutingSpec {
  RoutingKind kind = RoutingKind::uniform;
  uint64_t seed = 1;
  int32_t groups = 8;         // group_limited: a divisor of experts
  int32_t group_topk = 4;     // group_limited: 1 .. groups
  double exponent = 1.0;      // zipf: 0 .. 16
  int32_t hot_index = 0;      // hot_expert: an expert; hot_rank, unbalanced: a rank
  double hot_fraction = 0.5;  // hot_expert: 0 .. 1, rounded to whole tokens on each rank
  double hot_ratio = 2.0;     // hot_rank: >= 0, unbalanced: >= 1; rounded to whole slots
  double masked_ratio = 0;    // 0 .. 1 of each rank's slots become -1 (a whole number, at random places)
  std::string file{};         // replay

  bool operator==(const RoutingSpec&) const = default;
};

std::string_view to_string(RoutingKind kind);

/// The routing table of a batch: topk_idx int32 [ranks][tokens][topk], kNone = no choice.
class Routing {
 public:
  /// From a generator. Throws Error(usage) when the shape fails validate_gate(), or the spec does not fit it
  /// (e.g. experts % ranks != 0 for a kind that looks at ranks, groups that do not divide experts, a hot
  /// ratio that cannot be reached), naming found and allowed.
  static Routing generate(const Shape& shape, const RoutingSpec& spec);
  /// From a table; rows of rank r are table[first_token(r) * topk ...]. Throws Error(usage) naming rank,
  /// token and position for an id >= experts or < -1, or an expert chosen twice by one token.
  static Routing from_table(const Shape& shape, std::vector<int32_t> table);
  /// From a thread-safe function that fills the rows of a rank; it is trusted to keep the rules of
  /// from_table.
  static Routing from_function(int32_t topk, std::function<void(Rank, std::vector<int32_t>&)> fill);

  /// Fills `out` ([tokens[r]][topk]) with the rows of one rank. Thread-safe.
  void rows(Rank r, std::vector<int32_t>& out) const;
  std::vector<int32_t> rows(Rank r) const;

  int32_t topk() const { return topk_; }

 private:
  Routing() = default;
  int32_t topk_ = 0;
  std::function<void(Rank, std::vector<int32_t>&)> fill_;
};

/// Distinct destination ranks of one row in ascending order; clears `out` first. Needs experts % ranks == 0.
void destinations(const Shape& shape, std::span<const int32_t> row, std::vector<Rank>& out);

/// Expected number of distinct groups hit by one token: topk experts uniformly without replacement, experts
/// split evenly over `groups`: hit = G (1 - C(E - E/G, K) / C(E, K)). E 256, G 8, K 8 -> 5.29465.
/// Source: DeepEP deep_ep/buffers/elastic.py. Throws Error(usage) unless experts % groups == 0 and
/// 0 <= topk <= experts.
double expected_distinct(int32_t experts, int32_t groups, int32_t topk);
/// Its limit for many experts: G (1 - (1 - 1/G)^K).
double expected_distinct_limit(int32_t groups, int32_t topk);
/// The same for the group_limited gate, exact. `groups` (ranks or nodes) must divide or be a multiple of
/// gate_groups, and both divide experts; else Error(usage). E 256, K 8, 4 of 8 gate groups: 3.98308 of 8
/// groups, 7.47109 of 64, 1.96944 of 2.
double expected_distinct_group_limited(int32_t experts, int32_t groups, int32_t topk, int32_t gate_groups,
                                       int32_t group_topk);

/// Reads a trace file of routing (docs/routing.md) into a table for Routing::from_table. Checks shape, order,
/// completeness and ids; throws ConfigError with file:line:column, Error(usage) when the file cannot be read.
std::vector<int32_t> read_routing_file(const std::string& path, const Shape& shape);
/// Writes one, byte-stable, rank by rank. Throws Error(environment) when it cannot be written.
void write_routing_file(const std::string& path, const Shape& shape, const Routing& routing);

}  // namespace plumb

// Routing tables: generators by kind, tables given by the user, and the expected fan-out of a token.
#include "model/routing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "model/error.h"
#include "model/routing_draw.h"

namespace plumb {
namespace {

using detail::Draws;

/// Fills the rows [tokens][topk] of one rank from its own stream of random numbers.
using RowMaker = std::function<void(Rank, Draws&, std::span<int32_t>)>;

/// [ranks + 1], tokens before a rank.
std::vector<int64_t> first_tokens(const Shape& shape) {
  std::vector<int64_t> first(1, 0);
  for (const int32_t count : shape.tokens) first.push_back(first.back() + count);
  return first;
}

void require_range(std::string_view kind, std::string_view field, double value, double low, double high) {
  if (!(value >= low && value <= high))  // also refuses NaN
    fail_usage("routing {}: {} is {}; allowed: {} .. {}", kind, field, value, low, high);
}

void require_whole_ranks(const Shape& shape, RoutingKind kind) {
  if (shape.experts % shape.ranks != 0)
    fail_usage("routing {}: experts is {}, not a multiple of ranks {}; nearest allowed: {}", to_string(kind),
               shape.experts, shape.ranks, nearest_multiples(shape.experts, shape.ranks));
}

RowMaker uniform_rows(const Shape& shape) {
  return [experts = shape.experts, topk = static_cast<size_t>(shape.topk)](Rank, Draws& draws,
                                                                           std::span<int32_t> out) {
    for (size_t i = 0; i < out.size(); i += topk) draws.distinct(experts, out.subspan(i, topk));
  };
}

/// Slot s of the batch goes to rank s mod R and there to expert (s / R) mod L: a row holds topk <= R L
/// consecutive s.
RowMaker balanced_rows(const Shape& shape) {
  require_whole_ranks(shape, RoutingKind::balanced);
  return [first = first_tokens(shape), topk = shape.topk, ranks = shape.ranks, local = shape.local_experts()](
             Rank r, Draws&, std::span<int32_t> out) {
    const int64_t slot = first[static_cast<size_t>(r)] * topk;
    auto rank = static_cast<int32_t>(slot % ranks);
    auto expert = static_cast<int32_t>(slot / ranks % local);
    for (int32_t& choice : out) {
      choice = rank * local + expert;
      if (++rank < ranks) continue;
      rank = 0;
      if (++expert == local) expert = 0;
    }
  };
}

/// The experts of one token by falling score, all orders equally likely: one in a new group opens it while
/// fewer than group_topk are open, and is passed over afterwards.
void draw_in_best_groups(const RoutingSpec& spec, int32_t group_experts, Draws& draws,
                         std::span<int32_t> row) {
  std::array<int32_t, kMaxTopk> open{};
  int32_t num_open = 0;
  for (size_t k = 0; k < row.size();) {
    const bool may_open = num_open < spec.group_topk;
    const int32_t pool = (may_open ? spec.groups : num_open) * group_experts;
    int32_t expert = static_cast<int32_t>(draws.below(static_cast<uint32_t>(pool)));
    if (!may_open)
      expert = open[static_cast<size_t>(expert / group_experts)] * group_experts + expert % group_experts;
    if (std::find(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(k), expert) !=
        row.begin() + static_cast<std::ptrdiff_t>(k))
      continue;
    row[k++] = expert;
    const auto last = open.begin() + num_open;
    if (std::find(open.begin(), last, expert / group_experts) == last)
      open[static_cast<size_t>(num_open++)] = expert / group_experts;
  }
}

RowMaker group_limited_rows(const Shape& shape, const RoutingSpec& spec) {
  if (spec.groups < 1 || shape.experts % spec.groups != 0)
    fail_usage("routing group_limited: groups is {}; allowed: divisors of experts {}", spec.groups,
               shape.experts);
  const int32_t group_experts = shape.experts / spec.groups;
  const int32_t least = static_cast<int32_t>(ceil_div(shape.topk, group_experts));
  if (spec.group_topk < least || spec.group_topk > std::min(spec.groups, kMaxTopk))
    fail_usage(
        "routing group_limited: group_topk is {}; allowed: {} .. {} (topk is {}, a group has {} experts)",
        spec.group_topk, least, std::min(spec.groups, kMaxTopk), shape.topk, group_experts);
  return [spec, group_experts, topk = static_cast<size_t>(shape.topk)](Rank, Draws& draws,
                                                                       std::span<int32_t> out) {
    for (size_t i = 0; i < out.size(); i += topk)
      draw_in_best_groups(spec, group_experts, draws, out.subspan(i, topk));
  };
}

RowMaker zipf_rows(const Shape& shape, const RoutingSpec& spec) {
  require_range("zipf", "exponent", spec.exponent, 0, 16);
  return [table = detail::ZipfTable(shape.experts, spec.exponent, spec.seed),
          topk = static_cast<size_t>(shape.topk)](Rank, Draws& draws, std::span<int32_t> out) {
    for (size_t i = 0; i < out.size(); i += topk) table.distinct(draws.random(), out.subspan(i, topk));
  };
}

RowMaker hot_expert_rows(const Shape& shape, const RoutingSpec& spec) {
  require_range("hot_expert", "hot_index", spec.hot_index, 0, shape.experts - 1);
  require_range("hot_expert", "hot_fraction", spec.hot_fraction, 0, 1);
  if (shape.topk == shape.experts && spec.hot_fraction < 1)
    fail_usage("routing hot_expert: hot_fraction is {}; allowed: 1, as each token chooses all {} experts",
               spec.hot_fraction, shape.experts);
  return [spec, others = shape.experts - 1, topk = static_cast<size_t>(shape.topk)](Rank, Draws& draws,
                                                                                    std::span<int32_t> out) {
    const auto tokens = static_cast<int64_t>(out.size() / topk);
    detail::Subset hot_tokens(std::llround(spec.hot_fraction * static_cast<double>(tokens)), tokens);
    for (size_t i = 0; i < out.size(); i += topk) {
      const std::span<int32_t> row = out.subspan(i, topk);
      const bool is_hot = hot_tokens.next(draws.random());
      const std::span<int32_t> rest = row.first(topk - (is_hot ? 1 : 0));
      draws.distinct(others, rest);
      for (int32_t& choice : rest) choice += choice >= spec.hot_index ? 1 : 0;
      if (!is_hot) continue;
      row.back() = spec.hot_index;
      std::swap(row.back(), row[draws.below(static_cast<uint32_t>(topk))]);
    }
  };
}

RowMaker quota_rows(const Shape& shape, const RoutingSpec& spec) {
  const std::string_view kind = to_string(spec.kind);
  require_whole_ranks(shape, spec.kind);
  require_range(kind, "hot_index", spec.hot_index, 0, shape.ranks - 1);
  const int32_t most = std::min(shape.topk, shape.local_experts());  // slots of a token on one rank
  const int32_t least = std::max(0, shape.topk - (shape.ranks - 1) * shape.local_experts());
  const double unit = static_cast<double>(shape.ranks) / shape.topk;  // ratio of one slot per token
  const bool is_ramp = spec.kind == RoutingKind::unbalanced;
  const double low = is_ramp ? 1 : least * unit;
  const double high = most * unit;
  const int64_t tokens = shape.total_tokens();
  const int64_t total = tokens * shape.topk;
  constexpr double kRounding = 1e-9;  // of a ratio that is written or computed as one of the borders
  if (!(spec.hot_ratio >= low - kRounding && spec.hot_ratio <= high + kRounding))
    fail_usage(
        "routing {}: hot_ratio is {}; reachable: {} .. {} (a token has {} slots, at most {} on one of {} "
        "ranks with {} experts each)",
        kind, spec.hot_ratio, low, high, shape.topk, most, shape.ranks, shape.local_experts());
  const int64_t even = is_ramp ? ceil_div(total, shape.ranks) : tokens * least;
  const int64_t peak = std::clamp<int64_t>(
      std::llround(spec.hot_ratio * static_cast<double>(total) / shape.ranks), even, tokens * most);
  const std::vector<int64_t> quota = is_ramp ? detail::ramp_quota(total, shape.ranks, spec.hot_index, peak)
                                             : detail::hot_quota(total, shape.ranks, spec.hot_index, peak);
  return [table = detail::QuotaTable(shape, quota), first = first_tokens(shape)](Rank r, Draws& draws,
                                                                                 std::span<int32_t> out) {
    table.rows(first[static_cast<size_t>(r)], draws, out);
  };
}

RowMaker row_maker(const Shape& shape, const RoutingSpec& spec) {
  switch (spec.kind) {
    case RoutingKind::uniform:
      return uniform_rows(shape);
    case RoutingKind::balanced:
      return balanced_rows(shape);
    case RoutingKind::group_limited:
      return group_limited_rows(shape, spec);
    case RoutingKind::zipf:
      return zipf_rows(shape, spec);
    case RoutingKind::hot_expert:
      return hot_expert_rows(shape, spec);
    case RoutingKind::hot_rank:
    case RoutingKind::unbalanced:
      return quota_rows(shape, spec);
    case RoutingKind::replay:
      break;
  }
  throw LogicError(fmt::format("routing kind {} has no generator", static_cast<int>(spec.kind)));
}

void mask(const RoutingSpec& spec, Rank r, std::span<int32_t> rows) {
  if (spec.masked_ratio == 0) return;
  Random random(spec.seed, RandomStream::routing, detail::kMaskIndex + static_cast<uint64_t>(r));
  const auto places = static_cast<int64_t>(rows.size());
  detail::Subset masked(std::llround(spec.masked_ratio * static_cast<double>(places)), places);
  for (int32_t& choice : rows)
    if (masked.next(random)) choice = kNone;
}

/// Refuses ids out of range and repeated experts of one token.
void check_row(const Shape& shape, Rank rank, int64_t token, std::span<const int32_t> row) {
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] < kNone || row[i] >= shape.experts)
      fail_usage(
          "routing table: rank {}, token {}, position {}: expert {}; allowed: 0 .. {}, or -1 for no choice",
          rank, token, i, row[i], shape.experts - 1);
    const auto earlier = std::find(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(i), row[i]);
    if (row[i] != kNone && static_cast<size_t>(earlier - row.begin()) < i)
      fail_usage(
          "routing table: rank {}, token {}, position {}: expert {} stands at position {} already; the "
          "experts of a token must differ",
          rank, token, i, row[i], earlier - row.begin());
  }
}

/// Probability that a draw of `topk` out of `pool` experts hits at least one of `marked` of them:
/// 1 - C(pool - marked, topk) / C(pool, topk). By logarithms, as 1 - product would cancel for small
/// probabilities.
double hit_probability(int32_t pool, int32_t marked, int32_t topk) {
  if (topk > pool - marked) return marked == 0 ? 0 : 1;
  double log_miss = 0;
  for (int32_t i = 0; i < topk; ++i) log_miss += std::log1p(-static_cast<double>(marked) / (pool - i));
  return -std::expm1(log_miss);
}

/// Probability of each way in which the choices of a token fall on gate groups (counts of the groups hit,
/// ascending), for a gate that draw_in_best_groups() describes: an exact chain over the choices.
std::map<std::vector<int32_t>, double> gate_group_counts(int32_t gate_experts, int32_t gate_groups,
                                                         int32_t group_topk, int32_t topk) {
  std::map<std::vector<int32_t>, double> states = {{{}, 1.0}};
  for (int32_t k = 0; k < topk; ++k) {
    std::map<std::vector<int32_t>, double> next;
    const auto move = [&](std::vector<int32_t> to, double probability) {
      if (probability == 0) return;
      std::sort(to.begin(), to.end());
      next[to] += probability;
    };
    for (const auto& [counts, probability] : states) {
      const auto num_open = static_cast<int32_t>(counts.size());
      const double fresh = num_open < group_topk ? double(gate_groups - num_open) * gate_experts : 0;
      const double total = fresh + double(num_open) * gate_experts - k;
      for (size_t i = 0; i < counts.size(); ++i) {
        std::vector<int32_t> to = counts;
        ++to[i];
        move(std::move(to), probability * (gate_experts - counts[i]) / total);
      }
      std::vector<int32_t> opened = counts;
      opened.push_back(1);
      move(std::move(opened), probability * fresh / total);
    }
    states = std::move(next);
  }
  return states;
}

void require_groups(std::string_view what, int32_t experts, int32_t groups) {
  if (experts < 1 || groups < 1 || experts % groups != 0)
    fail_usage("expected fan-out: {} is {}; allowed: divisors of experts {}", what, groups, experts);
}

void require_topk(int32_t topk, int32_t pool) {
  if (topk < 0 || topk > pool) fail_usage("expected fan-out: topk is {}; allowed: 0 .. {}", topk, pool);
}

}  // namespace

std::string_view to_string(RoutingKind kind) {
  switch (kind) {
    case RoutingKind::uniform:
      return "uniform";
    case RoutingKind::balanced:
      return "balanced";
    case RoutingKind::group_limited:
      return "group_limited";
    case RoutingKind::zipf:
      return "zipf";
    case RoutingKind::hot_expert:
      return "hot_expert";
    case RoutingKind::hot_rank:
      return "hot_rank";
    case RoutingKind::unbalanced:
      return "unbalanced";
    case RoutingKind::replay:
      return "replay";
  }
  return "unknown";
}

Routing Routing::generate(const Shape& shape, const RoutingSpec& spec) {
  validate_gate(shape);
  if (spec.kind == RoutingKind::replay) {
    if (spec.file.empty()) fail_usage("routing replay: file is empty; it names the trace file to read");
    if (spec.masked_ratio != 0)
      fail_usage("routing replay: masked_ratio is {}; allowed: 0, as the file says what is masked",
                 spec.masked_ratio);
    return from_table(shape, read_routing_file(spec.file, shape));
  }
  require_range(to_string(spec.kind), "masked_ratio", spec.masked_ratio, 0, 1);
  return from_function(shape.topk, [spec, make = row_maker(shape, spec), topk = shape.topk,
                                    tokens = shape.tokens](Rank r, std::vector<int32_t>& out) {
    PLUMB_CHECK(r >= 0 && static_cast<size_t>(r) < tokens.size(), "rank {} of {}", r, tokens.size());
    out.resize(static_cast<size_t>(int64_t{tokens[static_cast<size_t>(r)]} * topk));
    Draws draws(spec.seed, static_cast<uint64_t>(r));
    make(r, draws, out);
    mask(spec, r, out);
  });
}

Routing Routing::from_table(const Shape& shape, std::vector<int32_t> table) {
  validate_gate(shape);
  std::vector<int64_t> first = first_tokens(shape);
  const int64_t topk = shape.topk;
  if (static_cast<int64_t>(table.size()) != first.back() * topk)
    fail_usage("routing table: {} entries; allowed: tokens {} * topk {} = {}", table.size(), first.back(),
               topk, first.back() * topk);
  const std::span<const int32_t> all(table);
  for (Rank r = 0; r < shape.ranks; ++r) {
    const int64_t begin = first[static_cast<size_t>(r)];
    for (int64_t t = 0; t < shape.tokens[static_cast<size_t>(r)]; ++t)
      check_row(shape, r, t, all.subspan(static_cast<size_t>((begin + t) * topk), static_cast<size_t>(topk)));
  }
  return from_function(shape.topk, [shared = std::make_shared<const std::vector<int32_t>>(std::move(table)),
                                    first = std::move(first), topk](Rank r, std::vector<int32_t>& out) {
    PLUMB_CHECK(r >= 0 && static_cast<size_t>(r) + 1 < first.size(), "rank {} of {}", r, first.size() - 1);
    const auto i = static_cast<size_t>(r);
    out.assign(shared->begin() + first[i] * topk, shared->begin() + first[i + 1] * topk);
  });
}

Routing Routing::from_function(int32_t topk, std::function<void(Rank, std::vector<int32_t>&)> fill) {
  Routing routing;
  routing.topk_ = topk;
  routing.fill_ = std::move(fill);
  return routing;
}

void Routing::rows(Rank r, std::vector<int32_t>& out) const { fill_(r, out); }

std::vector<int32_t> Routing::rows(Rank r) const {
  std::vector<int32_t> out;
  rows(r, out);
  return out;
}

void destinations(const Shape& shape, std::span<const int32_t> row, std::vector<Rank>& out) {
  out.clear();
  const int32_t local_experts = shape.local_experts();
  for (const int32_t expert : row) {
    if (expert == kNone) continue;
    const Rank rank = expert / local_experts;
    const auto at = std::lower_bound(out.begin(), out.end(), rank);
    if (at == out.end() || *at != rank) out.insert(at, rank);
  }
}

double expected_distinct(int32_t experts, int32_t groups, int32_t topk) {
  require_groups("groups", experts, groups);
  require_topk(topk, experts);
  return groups * hit_probability(experts, experts / groups, topk);
}

double expected_distinct_limit(int32_t groups, int32_t topk) {
  require_groups("groups", groups, groups);
  if (groups == 1) return topk > 0 ? 1 : 0;
  return -groups * std::expm1(topk * std::log1p(-1.0 / groups));
}

double expected_distinct_group_limited(int32_t experts, int32_t groups, int32_t topk, int32_t gate_groups,
                                       int32_t group_topk) {
  require_groups("groups", experts, groups);
  require_groups("gate_groups", experts, gate_groups);
  if (groups % gate_groups != 0 && gate_groups % groups != 0)
    fail_usage("expected fan-out: groups is {}; allowed: divisors and multiples of gate_groups {}", groups,
               gate_groups);
  if (group_topk < 1 || group_topk > gate_groups)
    fail_usage("expected fan-out: group_topk is {}; allowed: 1 .. {}", group_topk, gate_groups);
  const int32_t gate_experts = experts / gate_groups;
  require_topk(topk, gate_experts * group_topk);
  double expected = 0;
  for (const auto& [counts, probability] : gate_group_counts(gate_experts, gate_groups, group_topk, topk)) {
    const auto chosen = static_cast<int32_t>(counts.size());
    if (groups % gate_groups == 0) {
      // Groups inside gate groups: the choices in a gate group fall on its parts as those of a plain gate.
      for (const int32_t count : counts)
        expected += probability * expected_distinct(gate_experts, groups / gate_groups, count);
    } else {
      // A group spans several gate groups; the chosen ones are any of them, equally likely.
      expected += probability * groups * hit_probability(gate_groups, gate_groups / groups, chosen);
    }
  }
  return expected;
}

}  // namespace plumb

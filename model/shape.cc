// Sizes that follow from a shape, and the check of its limits.
#include "model/shape.h"

#include <algorithm>

#include "model/error.h"

namespace plumb {
namespace {

constexpr int64_t kRowAlignment = 16;  // bytes of a vector access and of a bulk copy (TMA)
constexpr int kMaxNamedRanks = 3;      // ranks named in full in one message; the rest are counted

int64_t element_bytes(DType type) { return type == DType::bf16 ? 2 : 1; }

void check_ranks(const Shape& shape, std::vector<std::string>& problems) {
  if (shape.ranks < 1 || shape.ranks > kMaxRanks)
    problems.push_back(fmt::format("ranks is {}; allowed: 1 .. {}", shape.ranks, kMaxRanks));
  else if (shape.tokens.size() != static_cast<size_t>(shape.ranks))
    problems.push_back(fmt::format("tokens has {} entries; it needs one for each of the {} ranks",
                                   shape.tokens.size(), shape.ranks));
}

void check_experts(const Shape& shape, std::vector<std::string>& problems) {
  if (shape.experts < 1 || shape.experts > kMaxExperts)
    problems.push_back(fmt::format("experts is {}; allowed: 1 .. {}", shape.experts, kMaxExperts));
  const int32_t topk_limit = std::clamp(shape.experts, 1, kMaxTopk);
  if (shape.topk < 1 || shape.topk > topk_limit)
    problems.push_back(
        fmt::format("topk is {}; allowed: 1 .. {} (at most {} and at most the number of experts)", shape.topk,
                    topk_limit, kMaxTopk));
}

void check_divisible(const Shape& shape, std::vector<std::string>& problems) {
  if (shape.ranks < 1 || shape.experts < 1 || shape.experts % shape.ranks == 0) return;
  problems.push_back(fmt::format("experts is {}, not a multiple of ranks {}; nearest allowed: {}",
                                 shape.experts, shape.ranks, nearest_multiples(shape.experts, shape.ranks)));
}

/// Names the first ranks whose token count `is_bad`, and counts the rest.
template <class Predicate>
void check_tokens(const Shape& shape, Predicate is_bad, const std::string& rule,
                  std::vector<std::string>& problems) {
  int64_t found = 0;
  for (size_t r = 0; r < shape.tokens.size(); ++r) {
    if (!is_bad(shape.tokens[r])) continue;
    if (++found <= kMaxNamedRanks)
      problems.push_back(fmt::format("rank {} has {} tokens; {}", r, shape.tokens[r], rule));
  }
  if (found > kMaxNamedRanks)
    problems.push_back(fmt::format("{} more ranks have such a token count", found - kMaxNamedRanks));
}

void check_max_tokens(const Shape& shape, std::vector<std::string>& problems) {
  if (shape.max_tokens < 0) {
    problems.push_back(fmt::format("max_tokens is {}; allowed: 0 or more", shape.max_tokens));
    return;
  }
  check_tokens(
      shape, [&](int32_t count) { return count > shape.max_tokens; },
      fmt::format("the cap max_tokens is {}", shape.max_tokens), problems);
  const int64_t sources = int64_t{shape.ranks} * shape.max_tokens;
  if (shape.ranks >= 1 && shape.ranks <= kMaxRanks && sources > INT32_MAX)
    problems.push_back(fmt::format(
        "ranks {} * max_tokens {} = {} does not fit the 32 bits of a source id; allowed: max_tokens up to {}",
        shape.ranks, shape.max_tokens, sources, INT32_MAX / shape.ranks));
}

/// Of the dispatched row alone: a combined row is bf16, so it is as long or twice as long.
void check_hidden(const Shape& shape, std::vector<std::string>& problems) {
  const int64_t element = element_bytes(shape.dispatch_type);
  if (shape.hidden < 1)
    problems.push_back(fmt::format("hidden is {}; allowed: 1 or more elements", shape.hidden));
  else if (shape.hidden * element % kRowAlignment != 0)
    problems.push_back(fmt::format(
        "hidden is {}, {} bytes a row in {}; row bytes must be a multiple of {}; nearest allowed hidden: {}",
        shape.hidden, shape.hidden * element, to_string(shape.dispatch_type), kRowAlignment,
        nearest_multiples(shape.hidden, kRowAlignment / element)));
  if (shape.dispatch_type == DType::fp8_e4m3 && shape.scale_block < 1)
    problems.push_back(fmt::format("scale_block is {}; allowed: 1 or more elements", shape.scale_block));
}

void throw_if_any(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  std::string text = "the shape breaks these limits:";
  for (const std::string& problem : problems) text += "\n  " + problem;
  throw Error(ErrorKind::usage, text);
}

std::vector<std::string> gate_problems(const Shape& shape) {
  std::vector<std::string> problems;
  check_ranks(shape, problems);
  check_experts(shape, problems);
  check_tokens(
      shape, [](int32_t count) { return count < 0; }, "allowed: 0 or more", problems);
  if (problems.empty() && shape.total_tokens() > INT32_MAX)
    problems.push_back(
        fmt::format("the tokens of all ranks are {}; allowed: at most {}, so that 32 bits number them",
                    shape.total_tokens(), INT32_MAX));
  return problems;
}

}  // namespace

std::string_view to_string(DType type) { return type == DType::bf16 ? "bf16" : "fp8_e4m3"; }

std::string_view to_string(ScaleFormat format) { return format == ScaleFormat::fp32 ? "fp32" : "ue8m0"; }

int64_t Shape::total_tokens() const { return first_token(static_cast<Rank>(tokens.size())); }

int64_t Shape::first_token(Rank r) const {
  PLUMB_CHECK(r >= 0 && static_cast<size_t>(r) <= tokens.size(), "rank {}, {} token counts", r,
              tokens.size());
  int64_t sum = 0;
  for (Rank i = 0; i < r; ++i) sum += tokens[static_cast<size_t>(i)];
  return sum;
}

int64_t Shape::dispatch_row_bytes() const { return hidden * element_bytes(dispatch_type); }

int32_t Shape::scale_packs() const {
  if (dispatch_type == DType::bf16) return 0;
  const int64_t factors = ceil_div(hidden, scale_block);
  return static_cast<int32_t>(scale_format == ScaleFormat::fp32 ? factors : ceil_div(factors, 4));
}

TokenLayout Shape::dispatch_layout() const {
  return token_layout({.hidden_bytes = dispatch_row_bytes(),
                       .scale_packs = scale_packs(),
                       .topk = topk,
                       .is_dispatch = true});
}

TokenLayout Shape::combine_layout() const {
  return token_layout({.hidden_bytes = hidden * element_bytes(DType::bf16),
                       .scale_packs = 0,
                       .topk = topk,
                       .is_dispatch = false});
}

void validate(const Shape& shape) {
  std::vector<std::string> problems = gate_problems(shape);
  check_divisible(shape, problems);
  check_max_tokens(shape, problems);
  check_hidden(shape, problems);
  if (shape.alignment < 1)
    problems.push_back(fmt::format("alignment is {}; allowed: 1 or more", shape.alignment));
  throw_if_any(problems);
}

void validate_gate(const Shape& shape) { throw_if_any(gate_problems(shape)); }

std::string nearest_multiples(int64_t value, int64_t unit) {
  const int64_t above = round_up(std::max<int64_t>(value, 1), unit);
  const int64_t below = above - unit;
  return below > 0 ? fmt::format("{} or {}", below, above) : fmt::format("{}", above);
}

Shape uniform_shape(int32_t ranks, int32_t experts, int32_t topk, int32_t tokens_per_rank, int32_t hidden) {
  Shape shape;
  shape.ranks = ranks;
  shape.experts = experts;
  shape.topk = topk;
  shape.hidden = hidden;
  shape.tokens.assign(static_cast<size_t>(std::max(ranks, 0)), tokens_per_rank);
  shape.max_tokens = tokens_per_rank;
  return shape;
}

}  // namespace plumb

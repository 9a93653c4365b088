// plumb buffers: sizes of communication buffers part by part, and the largest batch that fits.
#include <cstdio>
#include <memory>

#include "model/buffers.h"
#include "model/error.h"
#include "model/experiment.h"
#include "model/sm_model.h"
#include "tools/command.h"
#include "tools/point.h"
#include "tools/table.h"

namespace plumb {
namespace {

struct Options {
  int32_t ranks = 8;
  int32_t scaleup = 8;
  int32_t experts = 256;
  int32_t topk = 8;
  int32_t hidden = 7168;
  int32_t tokens = 4096;
  std::string dtype = "fp8";
  std::string mode = "direct";
  bool single_reduction = false;
  double margin = 0.25;
  std::string limit;
  bool json = false;
};

struct Entry {
  std::string key;
  BufferOfTokens size;
};

/// Our window for the worst case or for what a uniform gate sends plus the margin.
BufferPlan our_window(const Options& options, int32_t tokens, Sizing sizing) {
  Shape shape = uniform_shape(options.ranks, options.experts, options.topk, tokens, options.hidden);
  shape.dispatch_type = options.dtype == "bf16" ? DType::bf16 : DType::fp8_e4m3;
  validate(shape);
  const int32_t scaleup = std::min(options.ranks, options.scaleup);
  const bool is_hybrid = options.mode == "hybrid" && options.ranks > scaleup;
  ExactWindowSpec spec{.scaleout = is_hybrid ? options.ranks / scaleup : 1,
                       .scaleup = is_hybrid ? scaleup : options.ranks,
                       .nvlink_ranks = scaleup,
                       .max_tokens = tokens,
                       .topk = options.topk,
                       .dispatch_row_bytes = shape.dispatch_layout().record_bytes,
                       .combine_row_bytes = shape.combine_layout().record_bytes,
                       .multiple_reduction = !options.single_reduction,
                       .sizing = sizing};
  if (sizing == Sizing::expected) {
    const GateCopies copies =
        expected_copies(shape, RoutingSpec{}, {.ranks = options.ranks, .scaleup = scaleup});
    spec.expected_ranks = copies.ranks;
    spec.expected_nodes = copies.nodes;
    spec.margin = options.margin;
  }
  return exact_window(spec);
}

std::vector<Entry> entries_of(const Options& options) {
  const int32_t scaleup = std::min(options.ranks, options.scaleup);
  const bool is_hybrid = options.mode == "hybrid" && options.ranks > scaleup;
  const auto deepep = [options, scaleup, is_hybrid](int32_t tokens) {
    return deepep_buffer({.scaleout = is_hybrid ? options.ranks / scaleup : 1,
                          .scaleup = is_hybrid ? scaleup : options.ranks,
                          .nvlink_ranks = scaleup,
                          .max_tokens = tokens,
                          .hidden = options.hidden,
                          .topk = options.topk,
                          .is_fp8 = options.dtype == "fp8",
                          .multiple_reduction = !options.single_reduction});
  };
  std::vector<Entry> entries = {{"deepep_v2", deepep}};
  if (options.hidden % 128 == 0)
    entries.push_back({"deepep_v1_low_latency", [options](int32_t tokens) {
                         return low_latency_buffer(
                             {.max_tokens = tokens, .hidden = options.hidden, .experts = options.experts});
                       }});
  entries.push_back({"deepep_v1_normal", [options](int32_t) {
                       return v1_normal_buffer({.ranks = options.ranks, .hidden_bytes = 2 * options.hidden});
                     }});
  for (const Sizing sizing : {Sizing::worst_case, Sizing::expected})
    entries.push_back({sizing == Sizing::expected ? "ours_expected" : "ours_worst_case",
                       [options, sizing](int32_t tokens) { return our_window(options, tokens, sizing); }});
  return entries;
}

Json to_json(const BufferPlan& plan) {
  Json uses = Json::array();
  for (const BufferUse& use : plan.uses) {
    Json parts = Json::array();
    for (const BufferPart& part : use.parts)
      parts.push_back({{"name", part.name}, {"bytes", part.bytes.count}, {"formula", part.formula}});
    uses.push_back({{"name", use.name}, {"bytes", use.total.count}, {"parts", parts}});
  }
  return {
      {"name", plan.name}, {"bytes", plan.total.count}, {"largest_use", plan.largest().name}, {"uses", uses}};
}

int run(const Options& options) {
  if (options.ranks > options.scaleup && options.ranks % options.scaleup != 0)
    fail_usage("{} ranks do not fill scale-up domains of {}", options.ranks, options.scaleup);
  std::optional<Bytes> limit;
  if (!options.limit.empty()) {
    limit = parse_bytes(options.limit);
    if (!limit)
      fail_usage("--limit is '{}', expected a size with a unit such as 4 GiB, below 2^63 bytes",
                 options.limit);
  }
  Json out = {{"schema", "plumb.buffers/1"}, {"ranks", options.ranks}, {"tokens", options.tokens}};
  for (const Entry& entry : entries_of(options)) {
    // A library that does not take this shape is named with its reason; the others are still of use.
    std::optional<BufferPlan> plan;
    try {
      plan = entry.size(options.tokens);
    } catch (const Error& error) {
      out["buffers"][entry.key] = {{"error", error.what()}};
      continue;
    }
    out["buffers"][entry.key] = to_json(*plan);
    const bool grows = entry.key != "deepep_v1_normal";  // its queues do not depend on the batch
    if (limit && grows) out["buffers"][entry.key]["largest_tokens"] = largest_tokens(entry.size, *limit);
    if (!options.json) std::printf("%s\n", to_string(*plan).c_str());
  }
  if (options.json) {
    std::printf("%s\n", out.dump(2).c_str());
    return 0;
  }
  Table table({"buffer", "size", "bytes", "largest batch"});
  for (const auto& [key, buffer] : out["buffers"].items())
    if (buffer.contains("error"))
      table.add({key, "-", "-", buffer["error"].get<std::string>()});
    else
      table.add({key, to_string(Bytes{buffer["bytes"].get<int64_t>()}), buffer["bytes"].dump(),
                 buffer.contains("largest_tokens") ? buffer["largest_tokens"].dump() : "-"});
  std::printf("%s", table.text().c_str());
  return 0;
}

}  // namespace

Action configure_buffers(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("--ranks", options->ranks, "ranks")->check(CLI::Range(1, 1 << 20));
  app.add_option("--scaleup", options->scaleup, "ranks per scale-up domain")->check(CLI::Range(1, 1 << 20));
  app.add_option("--experts", options->experts, "physical experts")->check(CLI::Range(1, 1 << 24));
  app.add_option("--topk", options->topk, "experts per token")->check(CLI::Range(1, 32));
  app.add_option("--hidden", options->hidden, "hidden size")->check(CLI::Range(1, 1 << 24));
  app.add_option("--tokens", options->tokens, "largest number of tokens per rank")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--dtype", options->dtype, "fp8 or bf16 dispatch")->check(CLI::IsMember({"fp8", "bf16"}));
  app.add_option("--mode", options->mode, "direct or hybrid")->check(CLI::IsMember({"direct", "hybrid"}));
  app.add_flag("--single-reduction", options->single_reduction, "combine sums once, at the source");
  app.add_option("--margin", options->margin, "of our expected window")->check(CLI::Range(0.0, 100.0));
  app.add_option("--limit", options->limit, "memory to fit into, e.g. 4 GiB: prints the largest batch");
  app.add_flag("--json", options->json, "print as JSON");
  return [options] { return run(*options); };
}

}  // namespace plumb

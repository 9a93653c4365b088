// Names, text form and consistency checks of Program.
#include "model/program.h"

#include <array>

#include "model/error.h"

namespace plumb {

std::string_view to_string(ProgramKind kind) {
  constexpr std::array<std::string_view, 13> kNames = {
      "dispatch",    "combine",    "round_trip",           "all_to_all",
      "v1_dispatch", "v1_combine", "low_latency_dispatch", "low_latency_combine",
      "send_recv",   "all_gather", "reduce_scatter",       "engram",
      "background"};
  const auto index = static_cast<size_t>(kind);
  PLUMB_CHECK(index < kNames.size(), "program kind {}", index);
  return kNames[index];
}

std::string_view to_string(Mode mode) { return mode == Mode::direct ? "direct" : "hybrid"; }
std::string_view to_string(RowPlacement placement) {
  return placement == RowPlacement::staged ? "staged" : "direct";
}
std::string_view to_string(Pattern pattern) {
  return pattern == Pattern::incast        ? "incast"
         : pattern == Pattern::permutation ? "permutation"
                                           : "all_to_all";
}

std::string to_string(const Program& program) {
  const Program standard;
  std::string out = fmt::format("kind={} mode={}", to_string(program.kind), to_string(program.mode));
  const auto field = [&out](bool differs, std::string_view name, const auto& value) {
    if (differs) out += fmt::format(" {}={}", name, value);
  };
  field(program.placement != standard.placement, "placement", to_string(program.placement));
  field(program.cached != standard.cached, "cached", program.cached);
  field(program.host_sync != standard.host_sync, "host_sync", program.host_sync);
  field(program.expand != standard.expand, "expand", program.expand);
  field(program.zero_padding != standard.zero_padding, "zero_padding", program.zero_padding);
  field(program.multiple_reduction != standard.multiple_reduction, "multiple_reduction",
        program.multiple_reduction);
  field(program.num_biases != standard.num_biases, "num_biases", program.num_biases);
  field(program.rdma_only != standard.rdma_only, "rdma_only", program.rdma_only);
  field(program.num_sms != standard.num_sms, "num_sms", program.num_sms);
  field(program.num_qps != standard.num_qps, "num_qps", program.num_qps);
  field(program.chunk_rows != standard.chunk_rows, "chunk_rows", program.chunk_rows);
  field(program.traffic_class != standard.traffic_class, "traffic_class", int{program.traffic_class});
  field(program.message != standard.message, "message_bytes", program.message.count);
  field(program.pattern != standard.pattern, "pattern", to_string(program.pattern));
  field(program.fetches != standard.fetches, "fetches", program.fetches);
  field(program.table_rows != standard.table_rows, "table_rows", program.table_rows);
  field(program.seed != standard.seed, "seed", program.seed);
  return out;
}

void validate(const Program& program) {
  std::string problems;
  const auto refuse = [&problems](bool wrong, std::string text) {
    if (wrong) problems += fmt::format("{}{}", problems.empty() ? "" : "; ", text);
  };
  refuse(program.zero_padding && !program.expand, "zero_padding needs expand: only that layout has gaps");
  refuse(program.num_biases < 0 || program.num_biases > 2,
         fmt::format("num_biases is {}, allowed 0 .. 2", program.num_biases));
  refuse(program.num_sms < 0, fmt::format("num_sms is {}, allowed 0 (automatic) or more", program.num_sms));
  refuse(program.num_qps < 0, fmt::format("num_qps is {}, allowed 0 (automatic) or more", program.num_qps));
  refuse(program.chunk_rows < 1, fmt::format("chunk_rows is {}, allowed 1 or more", program.chunk_rows));
  refuse(program.traffic_class > 15,
         fmt::format("traffic_class is {}, allowed 0 .. 15 (service levels)", program.traffic_class));
  const bool is_low_latency =
      program.kind == ProgramKind::low_latency_dispatch || program.kind == ProgramKind::low_latency_combine;
  refuse(program.cached && program.host_sync, "cached needs no host_sync: the counts are known");
  refuse(is_low_latency && (program.cached || program.expand || program.host_sync ||
                            program.placement == RowPlacement::direct),
         "low latency knows no cached, expand, host_sync or direct placement");
  refuse(program.rdma_only && !is_low_latency, "rdma_only belongs to the low-latency programs");
  refuse(program.kind == ProgramKind::all_to_all && program.cached, "all_to_all always exchanges its counts");
  const bool needs_message =
      program.kind == ProgramKind::send_recv || program.kind == ProgramKind::all_gather ||
      program.kind == ProgramKind::reduce_scatter || program.kind == ProgramKind::background;
  refuse(needs_message && program.message.count <= 0,
         fmt::format("{} needs message_bytes above 0, found {}", to_string(program.kind),
                     program.message.count));
  refuse(program.kind == ProgramKind::reduce_scatter && program.message.count % 2 != 0,
         fmt::format("reduce_scatter sums bf16: message_bytes {} must be even", program.message.count));
  refuse(program.kind == ProgramKind::engram && (program.fetches < 1 || program.table_rows < 1),
         fmt::format("engram needs fetches and table_rows above 0, found {} and {}", program.fetches,
                     program.table_rows));
  if (!problems.empty()) fail_usage("program: {}", problems);
}

}  // namespace plumb

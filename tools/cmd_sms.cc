// plumb sms: how many SMs and queue pairs, by DeepEP's model and by ours, with every term.
#include <cstdio>
#include <memory>

#include "model/error.h"
#include "model/sm_choice.h"
#include "tools/command.h"
#include "tools/point.h"
#include "tools/table.h"

namespace plumb {
namespace {

struct Options {
  std::string machine;
  int32_t ranks = 0;
  int32_t experts = 256;
  int32_t topk = 8;
  int32_t hidden = 7168;
  int32_t tokens = 4096;
  std::string mode = "direct";
  std::string dtype = "fp8";
  double rdma_gbs = 0;
  double nvlink_gbs = 0;
  int32_t allocated_qps = 0;
  bool no_overlap = false;
  bool json = false;
};

/// The machine with as many nodes as the ranks need.
Machine machine_for(const Options& options) {
  const Machine probe = read_machine(options.machine);
  const int32_t per_node = probe.ranks_per_node();
  const int32_t nodes = std::max(1, (options.ranks + per_node - 1) / per_node);
  if (options.ranks > per_node && options.ranks % per_node != 0)
    fail_usage("{} ranks do not fill nodes of {} of '{}'; allowed: up to {}, or multiples of it",
               options.ranks, per_node, probe.name, per_node);
  if (nodes > probe.max_nodes)
    fail_usage("{} ranks need {} nodes, '{}' has up to {}", options.ranks, nodes, probe.name,
               probe.max_nodes);
  return read_machine(options.machine, std::max(nodes, probe.min_nodes));
}

Json deepep_json(const DeepepSmInput& in, const DeepepSmTerms& t) {
  return {{"sms", t.num_sms},
          {"qps", t.num_qps},
          {"terms",
           {{"expected_ranks", t.expected_ranks},
            {"expected_scaleout", t.expected_scaleout},
            {"sm_read", t.sm_read},
            {"sm_write", t.sm_write},
            {"rdma_traffic", t.rdma_traffic},
            {"nvlink_traffic", t.nvlink_traffic},
            {"bound", to_string(t.bound)},
            {"bounded_traffic", t.bounded_traffic},
            {"bounded_gbs", t.bounded_gbs},
            {"read_need", t.read_need},
            {"write_need", t.write_need},
            {"raw", t.raw},
            {"before_floor_and_cap", t.before_floor_and_cap}}},
          {"inputs",
           {{"rdma_gbs", in.rdma_gbs},
            {"nvlink_gbs", in.nvlink_gbs},
            {"sm_read_gbs", in.sm_read_gbs},
            {"sm_write_gbs", in.sm_write_gbs},
            {"device_sms", in.device_sms},
            {"allocated_qps", in.allocated_qps}}}};
}

Json ours_json(const SmPrediction& p) {
  return {{"sms", p.num_sms},
          {"keeps_up", p.keeps_up},
          {"pace", to_string(p.pace)},
          {"time_us", microseconds(p.total_time)},
          {"terms",
           {{"rdma_bytes", p.rdma_bytes},
            {"nvlink_bytes", p.nvlink_bytes},
            {"sm_read_bytes", p.sm_read_bytes},
            {"sm_write_bytes", p.sm_write_bytes},
            {"epilogue_bytes", p.epilogue_bytes},
            {"rdma_us", microseconds(p.rdma_time)},
            {"nvlink_us", microseconds(p.nvlink_time)},
            {"link_us", microseconds(p.link_time)},
            {"bound", to_string(p.bound)},
            {"sm_need", p.sm_need},
            {"sm_us", microseconds(p.sm_time)},
            {"main_us", microseconds(p.main_time)},
            {"epilogue_us", microseconds(p.epilogue_time)}}}};
}

void print(const Json& out) {
  Table table({"term", "deepep", "ours dispatch", "ours combine"});
  const auto cell = [](const Json& value) {
    if (value.is_null()) return std::string("-");
    if (value.is_string()) return value.get<std::string>();
    return value.is_number_integer() ? value.dump() : number(value.get<double>());
  };
  for (const char* key : {"sms", "qps"})
    table.add({key, cell(out["deepep"][key]), cell(out["ours"].value(key, Json())),
               cell(out["ours_combine"].value(key, Json()))});
  for (const auto& [key, value] : out["deepep"]["terms"].items()) table.add({key, cell(value), "-", "-"});
  for (const auto& [key, value] : out["deepep"]["inputs"].items())
    table.add({"input " + key, cell(value), "-", "-"});
  for (const auto& [key, value] : out["ours"]["terms"].items())
    table.add({key, "-", cell(value), cell(out["ours_combine"]["terms"][key])});
  table.add({"time_us", "-", cell(out["ours"]["time_us"]), cell(out["ours_combine"]["time_us"])});
  std::printf("%s", table.text().c_str());
}

int run(const Options& options) {
  const Machine machine = machine_for(options);
  Shape shape = uniform_shape(options.ranks, options.experts, options.topk, options.tokens, options.hidden);
  shape.dispatch_type = options.dtype == "bf16" ? DType::bf16 : DType::fp8_e4m3;
  validate(shape);
  const Mode mode = options.mode == "hybrid" ? Mode::hybrid : Mode::direct;
  const RoutingSpec routing;
  const SmChoiceInput in{
      machine,
      shape,
      routing,
      {.ranks = options.ranks, .scaleup = std::min(options.ranks, machine.ranks_per_node())}};
  DeepepSmInput deepep = deepep_input(in, mode);
  if (options.rdma_gbs > 0) deepep.rdma_gbs = options.rdma_gbs;
  if (options.nvlink_gbs > 0) deepep.nvlink_gbs = options.nvlink_gbs;
  if (options.allocated_qps > 0) deepep.allocated_qps = options.allocated_qps;
  deepep.prefers_overlap = !options.no_overlap;

  SmMachine ours = sm_machine(in);
  if (options.rdma_gbs > 0) ours.rdma = gigabytes_per_second(options.rdma_gbs);
  if (options.nvlink_gbs > 0) ours.nvlink = gigabytes_per_second(options.nvlink_gbs);
  Program program{.kind = ProgramKind::dispatch, .mode = mode, .placement = RowPlacement::direct};
  const SmPrediction dispatch = corrected_sms(sm_work(in, program, Direction::dispatch), ours);
  program.kind = ProgramKind::combine;
  const SmPrediction combine = corrected_sms(sm_work(in, program, Direction::combine), ours);
  program.kind = ProgramKind::dispatch;
  program.num_sms = dispatch.num_sms;

  Json out = {{"schema", "plumb.sms/1"},
              {"machine", machine.name},
              {"ranks", options.ranks},
              {"experts", options.experts},
              {"topk", options.topk},
              {"mode", options.mode},
              {"deepep", deepep_json(deepep, deepep_sms(deepep))},
              {"ours", ours_json(dispatch)},
              {"ours_combine", ours_json(combine)}};
  out["ours"]["qps"] = choose_sms_and_qps(in, program).num_qps;
  if (options.json)
    std::printf("%s\n", out.dump(2).c_str());
  else
    print(out);
  return 0;
}

}  // namespace

Action configure_sms(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("--machine", options->machine, "machine file")->required();
  app.add_option("--ranks", options->ranks, "ranks of the expert-parallel group")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--experts", options->experts, "experts")->check(CLI::Range(1, 1 << 24));
  app.add_option("--topk", options->topk, "experts per token")->check(CLI::Range(1, 32));
  app.add_option("--mode", options->mode, "direct or hybrid")->check(CLI::IsMember({"direct", "hybrid"}));
  app.add_option("--tokens", options->tokens, "tokens per rank")->check(CLI::Range(0, 1 << 24));
  app.add_option("--hidden", options->hidden, "hidden size");
  app.add_option("--dtype", options->dtype, "fp8 or bf16 dispatch")->check(CLI::IsMember({"fp8", "bf16"}));
  app.add_option("--rdma-gbs", options->rdma_gbs,
                 "GB/s of one GPU over the network, instead of the machine's")
      ->check(CLI::PositiveNumber);
  app.add_option("--nvlink-gbs", options->nvlink_gbs, "GB/s of one GPU over NVLink, instead of the machine's")
      ->check(CLI::PositiveNumber);
  app.add_option("--allocated-qps", options->allocated_qps, "queue pairs that DeepEP may use")
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--no-overlap", options->no_overlap,
               "DeepEP: overlap with compute is not preferred (at least 64 SMs)");
  app.add_flag("--json", options->json, "print as JSON");
  return [options] { return run(*options); };
}

}  // namespace plumb

// plumb topo: a machine's fabric, or the routes between two ranks.
#include <cstdio>
#include <map>
#include <memory>

#include "model/error.h"
#include "model/machine.h"
#include "tools/command.h"
#include "tools/point.h"
#include "tools/table.h"

namespace plumb {
namespace {

struct Options {
  std::string machine;
  std::vector<int32_t> ranks;
  int32_t nodes = 0;
  bool json = false;
};

std::string_view name_of(NodeKind kind) {
  constexpr std::string_view kNames[] = {"gpu", "nic", "scale_up_switch", "scale_out_switch"};
  return kNames[static_cast<size_t>(kind)];
}

Json routes_json(const Fabric& fabric, Rank a, Rank b) {
  Json out = Json::array();
  for (const Link network : {Link::scale_up, Link::scale_out}) {
    if (fabric.distance(network, a, b) < 0) continue;
    for (const Path& path : fabric.routes(network, a, b)) {
      Json hops = Json::array();
      for (const LinkId link : path.links)
        hops.push_back(
            fabric.nodes()[static_cast<size_t>(fabric.links()[static_cast<size_t>(link)].to)].name);
      out.push_back({{"network", to_string(network)}, {"share", path.share}, {"via", hops}});
    }
  }
  return out;
}

Json summary_json(const Machine& machine, const Fabric& fabric) {
  std::map<std::string, int64_t> nodes;
  for (const FabricNode& node : fabric.nodes()) ++nodes[std::string(name_of(node.kind))];
  std::map<std::string, std::pair<int64_t, double>> links;
  for (const FabricLink& link : fabric.links()) {
    auto& [count, rate] = links[std::string(to_string(link.network))];
    count += link.cables;
    rate += link.rate.value;
  }
  Json out = {{"machine", machine.name},
              {"description", machine.description},
              {"ranks", machine.ranks()},
              {"nodes_in_use", machine.nodes},
              {"ranks_per_node", machine.ranks_per_node()},
              {"gpu", machine.gpu.name},
              {"scale_up_rate", to_string(machine.scale_up.rate.value)},
              {"scale_out_rate_per_gpu", to_string(machine.scale_out_rate())}};
  for (const auto& [kind, count] : nodes) out["nodes"][kind] = count;
  for (const auto& [network, sums] : links)
    out["links"][network] = {{"directed_cables", sums.first},
                             {"total_rate", to_string(BytesPerSecond{sums.second})}};
  for (const Link network : {Link::scale_up, Link::scale_out}) {
    const std::string pair = fabric.unreachable(network);
    out["connects_all"][std::string(to_string(network))] = pair.empty() ? "yes" : "no: " + pair;
  }
  return out;
}

int run(const Options& options) {
  const Machine machine = read_machine(options.machine, options.nodes);
  const Fabric fabric = build_fabric(machine);
  if (!options.ranks.empty()) {
    if (options.ranks.size() != 2)
      fail_usage("routes go from one rank to another: give two ranks, found {}", options.ranks.size());
    for (const int32_t r : options.ranks)
      if (r < 0 || r >= fabric.ranks())
        fail_usage("rank {} is not in '{}', allowed 0 .. {}", r, machine.name, fabric.ranks() - 1);
    const Json routes = routes_json(fabric, options.ranks[0], options.ranks[1]);
    if (options.json) {
      std::printf("%s\n", routes.dump(2).c_str());
      return 0;
    }
    Table table({"network", "share", "via"});
    for (const Json& route : routes) {
      std::string via;
      for (const Json& hop : route["via"]) via += (via.empty() ? "" : " > ") + hop.get<std::string>();
      table.add({route["network"], number(route["share"]), via});
    }
    std::printf("%s", table.text().c_str());
    return 0;
  }
  const Json summary = summary_json(machine, fabric);
  if (options.json) {
    std::printf("%s\n", summary.dump(2).c_str());
    return 0;
  }
  Table table({"what", "value"});
  for (const auto& [key, value] : summary.items()) {
    if (!value.is_object()) {
      table.add({key, value.is_string() ? value.get<std::string>() : value.dump()});
      continue;
    }
    for (const auto& [inner, content] : value.items()) {
      const std::string text = content.is_object()
                                   ? fmt::format("{} cables, {}", content["directed_cables"].dump(),
                                                 content["total_rate"].get<std::string>())
                               : content.is_string() ? content.get<std::string>()
                                                     : content.dump();
      table.add({key + " " + inner, text});
    }
  }
  std::printf("%s", table.text().c_str());
  return 0;
}

}  // namespace

Action configure_topo(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("machine", options->machine, "machine file")->required();
  app.add_option("ranks", options->ranks, "two ranks: print the routes between them");
  app.add_option("--nodes", options->nodes, "number of nodes, 0 = the file's default")
      ->check(CLI::Range(0, 1 << 20));
  app.add_flag("--json", options->json, "print as JSON");
  return [options] { return run(*options); };
}

}  // namespace plumb

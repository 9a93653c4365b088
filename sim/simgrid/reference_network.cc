// A host at each end of each part of a flow, the fabric's links, and one actor per part.
#include "sim/simgrid/reference_network.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "model/error.h"
#include "sim/simgrid/child.h"
#include "sim/simgrid/compat.h"

namespace plumb::sim {

namespace {

namespace s4u = simgrid::s4u;

struct Part {
  size_t flow = 0;
  std::vector<size_t> links;
  double start = 0;  // after the latency of its path
  double bytes = 0;
};

/// Runs the parts in this process, which must have no engine yet. Returns the end date of each.
std::vector<double> run_parts(std::span<const double> rates, std::span<const Part> parts,
                              const std::vector<std::string>& keys) {
  static_cast<void>(new s4u::Engine("plumb reference"));
  for (const std::string& key : keys) s4u::Engine::set_config(key);
  s4u::NetZone* zone = compat::full_zone("reference");
  std::vector<s4u::Link*> links(rates.size(), nullptr);
  std::vector<std::pair<s4u::Host*, s4u::Host*>> ends;
  for (size_t i = 0; i < parts.size(); ++i) {
    s4u::Host* from = compat::add_host(zone, fmt::format("from {}", i), 1);
    s4u::Host* to = compat::add_host(zone, fmt::format("to {}", i), 1);
    std::vector<s4u::Link*> route;
    for (size_t l : parts[i].links) {
      if (links[l] == nullptr) {
        links[l] = compat::add_link(zone, fmt::format("link {}", l), rates[l]);
        links[l]->seal();
      }
      route.push_back(links[l]);
    }
    compat::add_route(zone, from, to, route);
    std::reverse(route.begin(), route.end());
    compat::add_route(zone, to, from, route);  // looked up with cross traffic only
    ends.emplace_back(from, to);
  }
  zone->seal();
  std::vector<double> result(parts.size(), -1);
  for (size_t i = 0; i < parts.size(); ++i)
    compat::add_actor(fmt::format("part {}", i), ends[i].first, [&, i] {
      s4u::this_actor::sleep_until(parts[i].start);
      s4u::CommPtr transfer = s4u::Comm::sendto_init(ends[i].first, ends[i].second);
      transfer->set_payload_size(static_cast<uint64_t>(std::llround(parts[i].bytes)));
      transfer->start();
      transfer->wait();
      result[i] = s4u::Engine::get_clock();
    });
  s4u::Engine::get_instance()->run();
  return result;
}

std::vector<double> run_apart(std::span<const double> rates, std::span<const Part> parts,
                              const std::vector<std::string>& keys) {
  if (parts.empty()) return {};
  const std::string bytes = run_in_child([&] {
    const std::vector<double> ends = run_parts(rates, parts, keys);
    return std::string(reinterpret_cast<const char*>(ends.data()), ends.size() * sizeof(double));
  });
  std::vector<double> result(parts.size());
  PLUMB_CHECK(bytes.size() == result.size() * sizeof(double), "{} bytes for {} flows", bytes.size(),
              result.size());
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

void check(const Fabric& fabric, const ReferenceFlow& flow, const ReferenceSettings& settings) {
  if (flow.src < 0 || flow.src >= fabric.ranks() || flow.dst < 0 || flow.dst >= fabric.ranks())
    fail_usage("reference network: a flow from rank {} to rank {} of {}", flow.src, flow.dst, fabric.ranks());
  if (flow.bytes < 0 || !(flow.start.value >= 0))
    fail_usage("reference network: a flow of {} bytes at {} s", flow.bytes, flow.start.value);
  if (flow.src == flow.dst && !(settings.local_rate.value > 0))
    fail_usage("reference network: rank {} sends to itself, and no local rate is given", flow.src);
  if (flow.src != flow.dst && flow.network == Link::local)
    fail_usage("reference network: a local flow from rank {} to rank {}", flow.src, flow.dst);
}

std::vector<Path> paths_of(const Fabric& fabric, const ReferenceFlow& flow, int32_t count) {
  if (count > 1) return fabric.routes(flow.network, flow.src, flow.dst, count);
  std::vector<Path> all = fabric.routes(flow.network, flow.src, flow.dst);
  Path chosen = std::move(all[static_cast<size_t>(flow.dst) % all.size()]);
  chosen.share = 1;
  return {std::move(chosen)};
}

}  // namespace

std::vector<std::string> reference_keys() {
  return {
      "network/model:CM02",               // no TCP start-up
      "network/crosstraffic:0",           // acknowledgements take nothing of the other direction
      "network/latency-factor:1",         // 13.01 in SimGrid's default model
      "network/bandwidth-factor:1",       // 0.97 there
      "network/weight-S:0",               // no penalty per hop
      "network/TCP-gamma:0",              // no window
      "network/loopback-bw:1e15",         // never used: flows to oneself are not given to SimGrid
      compat::timing_precision("1e-12"),  // default: 1 ns, as long as a small packet
  };
}

Seconds check_reference_network(const std::vector<std::string>& keys) {
  const std::vector<std::string> used = keys.empty() ? reference_keys() : keys;
  constexpr double kRate = 50e9, kLatency = 1e-6, kBytes = 1e6;
  constexpr double kRight = kBytes / kRate + kLatency;  // 21 us
  const std::vector<double> rates = {kRate, kRate};
  // One flow each way: cross traffic would show.
  const std::vector<Part> parts = {{0, {0}, kLatency, kBytes}, {1, {1}, kLatency, kBytes}};
  const std::vector<double> ends = run_apart(rates, parts, used);
  const double end = *std::max_element(ends.begin(), ends.end());
  if (!(std::abs(end - kRight) <= 1e-3 * kRight)) {
    std::string list;
    for (const std::string& key : used) list += ' ' + key;
    throw Error(
        ErrorKind::environment,
        fmt::format("SimGrid's network fails its self-check: 1 MB over 50 GB/s and 1 us takes {:.2f} us "
                    "instead of 21.00 us +- 0.1 %, with{}",
                    end * 1e6, list));
  }
  return {end};
}

std::vector<Seconds> run_reference_network(const Fabric& fabric, std::span<const ReferenceFlow> flows,
                                           const ReferenceSettings& settings) {
  const std::vector<std::string> keys = settings.keys.empty() ? reference_keys() : settings.keys;
  if (settings.paths < 1) fail_usage("reference network: {} paths per flow", settings.paths);
  std::vector<double> rates;
  for (const FabricLink& link : fabric.links()) rates.push_back(link.rate.value);
  std::vector<Seconds> ends(flows.size());
  std::vector<Part> parts;
  for (size_t i = 0; i < flows.size(); ++i) {
    const ReferenceFlow& flow = flows[i];
    check(fabric, flow, settings);
    if (flow.src == flow.dst) {
      ends[i] = flow.start + settings.local_latency + Bytes{flow.bytes} / settings.local_rate;
      continue;
    }
    for (const Path& path : paths_of(fabric, flow, settings.paths)) {
      const double bytes = static_cast<double>(flow.bytes) * path.share;
      Part part{.flow = i, .links = {}, .start = flow.start.value, .bytes = bytes};
      for (LinkId link : path.links) {
        part.links.push_back(static_cast<size_t>(link));
        part.start += fabric.links()[static_cast<size_t>(link)].latency.value;
      }
      ends[i] = {std::max(ends[i].value, part.start)};
      if (std::llround(part.bytes) > 0) parts.push_back(std::move(part));
    }
    if (parts.size() > kMaxReferenceFlows)
      fail_usage(
          "reference network: more than {} flows; SimGrid's own network is for small cases, use packets "
          "or flows of plumb::sim",
          kMaxReferenceFlows);
  }
  check_reference_network(keys);
  const std::vector<double> dates = run_apart(rates, parts, keys);
  for (size_t i = 0; i < parts.size(); ++i) {
    Seconds& end = ends[parts[i].flow];
    end = {std::max(end.value, dates[i])};
  }
  return ends;
}

}  // namespace plumb::sim

// Reader of the `sim` section of an experiment.
#include "model/sim_options.h"

namespace plumb {
namespace {

using PolicyNames = std::vector<std::pair<std::string_view, RoutePolicy>>;

const PolicyNames& policy_names() {
  static const PolicyNames names = {
      {"adaptive", RoutePolicy::adaptive}, {"by_destination", RoutePolicy::by_destination},
      {"by_flow", RoutePolicy::by_flow},   {"spread", RoutePolicy::spread},
      {"valiant", RoutePolicy::valiant},   {"ugal", RoutePolicy::ugal}};
  return names;
}

/// `even` keeps a record for each pair of ranks, which only small networks can afford.
PolicyNames scale_up_policy_names() {
  PolicyNames names = policy_names();
  names.emplace_back("even", RoutePolicy::even);
  return names;
}

void read_infiniband(ConfigMap& map, InfinibandCongestion& cc) {
  cc.threshold_bytes =
      map.quantity<Bytes>("threshold", {Bytes{1}, Bytes{int64_t{1} << 40}}, Bytes{cc.threshold_bytes}).count;
  cc.mark_victims = map.flag("mark_victims", cc.mark_victims);
  cc.ccti_increase = static_cast<int32_t>(map.integer("ccti_increase", {0, 127}, cc.ccti_increase));
  cc.ccti_limit = static_cast<int32_t>(map.integer("ccti_limit", {1, 127}, cc.ccti_limit));
  cc.ccti_timer = map.quantity<Seconds>("ccti_timer", {nanoseconds(1), Seconds{1}}, cc.ccti_timer);
  cc.gap_per_step = map.number("gap_per_step", {0, 1024}, cc.gap_per_step);
}

void read_dcqcn(ConfigMap& map, Dcqcn& cc) {
  const Range<Bytes> sizes{Bytes{1}, Bytes{int64_t{1} << 40}};
  cc.min_bytes = map.quantity<Bytes>("min", sizes, Bytes{cc.min_bytes}).count;
  cc.max_bytes = map.quantity<Bytes>("max", sizes, Bytes{cc.max_bytes}).count;
  cc.max_probability = map.number("max_probability", {0, 1}, cc.max_probability);
  cc.gain = map.number("gain", {0, 1}, cc.gain);
  const Range<Seconds> times{nanoseconds(1), Seconds{1}};
  cc.alpha_timer = map.quantity<Seconds>("alpha_timer", times, cc.alpha_timer);
  cc.increase_timer = map.quantity<Seconds>("increase_timer", times, cc.increase_timer);
}

void read_caqm(ConfigMap& map, Caqm& cc) {
  cc.alpha = map.number("alpha", {0, 64}, cc.alpha);
  cc.beta = map.number("beta", {0, 64}, cc.beta);
  cc.target_queue_mtu = static_cast<int32_t>(map.integer("target_queue_mtu", {1, 4096}, cc.target_queue_mtu));
  cc.initial_window_mtu =
      static_cast<int32_t>(map.integer("initial_window_mtu", {1, 65536}, cc.initial_window_mtu));
}

CongestionSettings read_congestion(ConfigMap map) {
  CongestionSettings cc;
  cc.kind = map.choice<CongestionKind>("kind", {{"none", CongestionKind::none},
                                                {"infiniband", CongestionKind::infiniband},
                                                {"dcqcn", CongestionKind::dcqcn},
                                                {"caqm", CongestionKind::caqm}});
  if (cc.kind == CongestionKind::infiniband) read_infiniband(map, cc.infiniband);
  if (cc.kind == CongestionKind::dcqcn) read_dcqcn(map, cc.dcqcn);
  if (cc.kind == CongestionKind::caqm) read_caqm(map, cc.caqm);
  return cc;
}

SimEvent read_event(ConfigMap map) {
  using Kind = SimEvent::Kind;
  SimEvent e;
  e.kind = map.choice<Kind>("kind", {{"link_down", Kind::link_down},
                                     {"link_up", Kind::link_up},
                                     {"link_rate", Kind::link_rate},
                                     {"node_down", Kind::node_down},
                                     {"node_up", Kind::node_up},
                                     {"rank_speed", Kind::rank_speed},
                                     {"rank_dead", Kind::rank_dead}});
  e.at = map.quantity<Seconds>("at", {Seconds{0}, Seconds{9e6}}, Seconds{0});
  const bool is_rank = e.kind == Kind::rank_speed || e.kind == Kind::rank_dead;
  const bool is_node = e.kind == Kind::node_down || e.kind == Kind::node_up;
  if (is_rank)
    e.rank = static_cast<Rank>(map.integer("rank", {0, (1 << 20) - 1}));
  else
    e.target = map.text(is_node ? "node" : "link");
  if (e.kind == Kind::link_rate || e.kind == Kind::rank_speed) e.factor = map.number("factor", {1e-6, 1});
  return e;
}

}  // namespace

std::string_view to_string(Fidelity fidelity) { return fidelity == Fidelity::packet ? "packet" : "flow"; }

std::string_view to_string(RoutePolicy policy) {
  for (const auto& [name, value] : scale_up_policy_names())
    if (value == policy) return name;
  return "?";
}

SimOptions read_sim_options(ConfigMap map) {
  SimOptions o;
  o.fidelity =
      map.choice<Fidelity>("fidelity", {{"packet", Fidelity::packet}, {"flow", Fidelity::flow}}, o.fidelity);
  o.clock = map.choice<SimClock>("clock", {{"own", SimClock::own}, {"simgrid", SimClock::simgrid}}, o.clock);
  if (map.has("packet") && map.raw("packet") == "row")
    o.packet_per_row = true;
  else
    o.packet = map.quantity<Bytes>("packet", {Bytes{64}, Bytes{1 << 24}}, o.packet);
  o.queue_pairs = static_cast<int32_t>(map.integer("queue_pairs", {1, 1 << 16}, o.queue_pairs));
  o.routing[0] = map.choice("scale_up_routing", scale_up_policy_names(), o.routing[0]);
  o.routing[1] = map.choice("routing", policy_names(), o.routing[1]);
  o.input_queues = map.choice<InputQueues>(
      "input_queues", {{"per_output", InputQueues::per_output}, {"fifo", InputQueues::fifo}}, o.input_queues);
  o.signals = map.choice<SignalOrder>(
      "signals",
      {{"racing", SignalOrder::racing}, {"counted", SignalOrder::counted}, {"fenced", SignalOrder::fenced}},
      o.signals);
  if (auto congestion = map.optional_map("congestion")) o.congestion = read_congestion(*congestion);
  if (auto lanes = map.optional_map("lanes")) o.lanes = read_lanes(*lanes);
  if (auto events = map.optional_list("events"))
    for (size_t i = 0; i < events->size(); ++i) o.events.push_back(read_event(events->map(i)));
  o.time_limit = map.quantity<Seconds>("time_limit", {Seconds{0}, Seconds{9e6}}, o.time_limit);
  o.max_events = map.integer("max_events", {1, int64_t{1} << 60}, o.max_events);
  o.seed = static_cast<uint64_t>(map.integer("seed", {0, INT64_MAX}, static_cast<int64_t>(o.seed)));
  return o;
}

}  // namespace plumb

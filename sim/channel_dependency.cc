// Follows all routes, collects which buffer a packet holds while it waits for which, and looks for a circle.
#include "sim/channel_dependency.h"

#include <algorithm>

#include "model/error.h"

namespace plumb::sim {

namespace {

constexpr int32_t kMostClasses = 16;

/// Dependencies between buffers, numbered channel x classes + class.
class DependencyGraph {
 public:
  DependencyGraph(const ChannelGraph& graph, const ClassRule& rule)
      : graph_(graph), rule_(rule), next_(graph.channels().size() * rule.count) {}

  void follow(const RouteTable& table);
  std::vector<ClassedChannel> cycle() const;

 private:
  uint32_t number(Channel channel, int32_t hop_class) const {
    return channel * static_cast<uint32_t>(rule_.count) + static_cast<uint32_t>(hop_class);
  }
  int32_t class_after(uint32_t buffer) const {
    const int32_t hop_class = static_cast<int32_t>(buffer % rule_.count);
    return std::min(hop_class + rule_.raising[buffer / rule_.count], rule_.count - 1);
  }
  Vertex end_of(uint32_t buffer) const { return graph_[buffer / rule_.count].to; }
  void spread(const RouteTable& table, Rank dst, std::vector<uint32_t> buffers,
              std::vector<uint32_t>* reached);
  void step(const RouteTable& table, Rank dst, uint32_t buffer, std::vector<uint32_t>& found);
  void add(uint32_t from, uint32_t to);

  const ChannelGraph& graph_;
  const ClassRule& rule_;
  std::vector<std::vector<uint32_t>> next_;
  std::vector<uint8_t> seen_;
};

void DependencyGraph::add(uint32_t from, uint32_t to) {
  const ChannelInfo& channel = graph_[from / rule_.count];
  if (graph_.is_endpoint(channel.from) && !channel.between_nodes)
    return;  // nothing ever waits for an injection
  auto& next = next_[from];
  if (std::find(next.begin(), next.end(), to) == next.end()) next.push_back(to);
}

void DependencyGraph::step(const RouteTable& table, Rank dst, uint32_t buffer, std::vector<uint32_t>& found) {
  if (end_of(buffer) == static_cast<Vertex>(dst)) return;  // landed
  for (Channel c : table.candidates(end_of(buffer), dst)) {
    const uint32_t to = number(c, class_after(buffer));
    add(buffer, to);
    if (seen_[to]) continue;
    seen_[to] = 1;
    found.push_back(to);
  }
}

/// Follows the routes to dst from some buffers; `reached` gets those that end where dst hangs.
void DependencyGraph::spread(const RouteTable& table, Rank dst, std::vector<uint32_t> buffers,
                             std::vector<uint32_t>* reached) {
  seen_.assign(next_.size(), 0);
  for (uint32_t b : buffers) seen_[b] = 1;
  while (!buffers.empty()) {
    const uint32_t buffer = buffers.back();
    buffers.pop_back();
    if (reached != nullptr && table.is_last(end_of(buffer), dst)) {
      reached->push_back(buffer);
    } else {
      step(table, dst, buffer, buffers);
    }
  }
}

void DependencyGraph::follow(const RouteTable& table) {
  auto first_hops = [&](Rank dst) {
    std::vector<uint32_t> result;
    for (Rank src = 0; src < graph_.ranks(); ++src)
      if (src != dst)
        for (Channel c : table.candidates(static_cast<Vertex>(src), dst)) result.push_back(number(c, 0));
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return result;
  };
  std::vector<uint32_t> turning;  // buffers in which packets are given their real destination
  if (rule_.detours) {
    for (uint32_t g = 0; g < table.num_groups(); ++g)
      spread(table, table.member(g), first_hops(table.member(g)), &turning);
    std::sort(turning.begin(), turning.end());
    turning.erase(std::unique(turning.begin(), turning.end()), turning.end());
  }
  for (uint32_t g = 0; g < table.num_groups(); ++g) {
    std::vector<uint32_t> from = first_hops(table.member(g));
    from.insert(from.end(), turning.begin(), turning.end());
    spread(table, table.member(g), std::move(from), nullptr);
  }
}

/// Depth-first search; a buffer met again on the current path closes a cycle.
std::vector<ClassedChannel> DependencyGraph::cycle() const {
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> state(next_.size(), kNew);
  std::vector<std::pair<uint32_t, size_t>> path;  // buffer, next edge
  for (uint32_t start = 0; start < next_.size(); ++start) {
    if (state[start] != kNew) continue;
    path.assign(1, {start, 0});
    state[start] = kOpen;
    while (!path.empty()) {
      const uint32_t at = path.back().first;
      if (path.back().second == next_[at].size()) {
        state[at] = kDone;
        path.pop_back();
        continue;
      }
      const uint32_t to = next_[at][path.back().second++];
      if (state[to] == kNew) {
        state[to] = kOpen;
        path.emplace_back(to, 0);
      } else if (state[to] == kOpen) {
        std::vector<ClassedChannel> result;
        auto it =
            std::find_if(path.begin(), path.end(), [to](const auto& entry) { return entry.first == to; });
        for (; it != path.end(); ++it)
          result.push_back({it->first / static_cast<uint32_t>(rule_.count),
                            static_cast<int32_t>(it->first % static_cast<uint32_t>(rule_.count))});
        return result;
      }
    }
  }
  return {};
}

}  // namespace

std::vector<uint8_t> raising_channels(const ChannelGraph& graph, std::span<const LinkId> datelines) {
  std::vector<uint8_t> result(graph.channels().size(), 0);
  if (datelines.empty()) {
    for (Channel c = 0; c < result.size(); ++c) result[c] = graph[c].between_nodes;
    return result;
  }
  for (LinkId link : datelines) {
    if (link < 0 || graph.of(link) == kNil) fail_usage("dateline: there is no link {}", link);
    result[graph.of(link)] = 1;
  }
  return result;
}

std::vector<ClassedChannel> find_cycle(const ChannelGraph& graph, std::span<const RouteTable> tables,
                                       const ClassRule& rule) {
  DependencyGraph dependencies(graph, rule);
  for (const RouteTable& table : tables) dependencies.follow(table);
  return dependencies.cycle();
}

int32_t fewest_classes(const ChannelGraph& graph, std::span<const RouteTable> tables, ClassRule rule) {
  std::vector<ClassedChannel> cycle;
  for (rule.count = 1; rule.count <= kMostClasses; ++rule.count) {
    cycle = find_cycle(graph, tables, rule);
    if (cycle.empty()) return rule.count;
  }
  fail_usage(
      "no number of hop classes up to {} makes these routes free of deadlock; these channels wait for each "
      "other:\n{}hint: datelines must cut every circle",
      kMostClasses, to_string(cycle, graph));
}

std::string to_string(std::span<const ClassedChannel> cycle, const ChannelGraph& graph) {
  std::string result;
  for (const ClassedChannel& entry : cycle)
    result += fmt::format("  {} class {}\n", graph.name_of_channel(entry.channel), entry.hop_class);
  return result;
}

}  // namespace plumb::sim

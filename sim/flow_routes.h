// What a flow takes of the links between two ranks: shares when it is split over all minimal paths, one path
// when a hash picks it. Links that always carry the same are one resource to the solver.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/channels.h"
#include "sim/max_min.h"
#include "sim/route_table.h"
#include "sim/traffic.h"

namespace plumb::sim {

/// How a flow uses several next hops.
enum class FlowPolicy : uint8_t {
  split,  // in equal parts at each hop, as Fabric::loads(): ideal adaptive or per-packet routing
  hash,   // one path for all messages of a flow: the same as RoutePolicy::by_flow takes
};

/// Routes are grouped where no GPU forwards and no policy is hash: ranks on the same switches share the inner
/// part of their routes, links that carry the same share of every flow are merged, and links that the ranks
/// before or behind them cannot fill are left out. All of that leaves the rates as they are. Otherwise each
/// flow lists its links.
class FlowRoutes {
 public:
  /// `fabric` and `graph` must outlive the routes.
  FlowRoutes(const Fabric& fabric, const ChannelGraph& graph, std::array<FlowPolicy, 2> policies,
             uint64_t seed);

  /// Of each resource, bytes per ps.
  std::vector<double> capacities() const;

  struct Way {
    Ps latency = -1;       // -1: no way
    uint32_t pair = kNil;  // of groups, where routes are grouped
    bool exists() const { return latency >= 0; }
  };
  /// Fills `uses` with what the message takes.
  Way find(const Message& message, std::vector<ResourceUse>& uses);

  /// Adds bytes that a flow has moved to the links of its way. `uses`: as find() gave them, times `weight`.
  void account(const Message& message, const Way& way, double bytes, std::span<const ResourceUse> uses,
               double weight);
  /// Bytes on each channel [channels].
  std::vector<double> channel_bytes();

  void set_down(Channel channel, bool down);
  /// Makes the rate of a channel `factor` of its own.
  void set_factor(Channel channel, double factor);
  bool is_down(Channel channel) const { return down_[channel] != 0; }
  bool any_down() const;
  /// New tables without the channels that are down for the networks of a policy, and new resources. All that
  /// flows have moved must be accounted before; ways found before are void, also after the setters.
  void rebuild(FlowPolicy policy);
  bool has(FlowPolicy policy) const { return policies_[0] == policy || policies_[1] == policy; }

  /// Bytes per ps of the first link of a message's way.
  double source_rate(const Message& message) const;
  /// Whether pairs of groups, not of ranks, have lists.
  bool is_grouped() const { return is_grouped_; }
  int64_t memory_bytes() const;

 private:
  enum class Side : uint8_t { inner, source, destination };
  struct Share {
    double share = 1;
    uint32_t index = 0;  // inner: resource; source, destination: place among the rank's channels
    Side side = Side::inner;
  };
  struct Pair {
    Ps latency = -1;
    uint32_t begin = 0, middle = 0, end = 0;  // in shares_: [begin, middle) uses, [middle, end) end links
    double bytes = 0;
  };
  struct Group {
    Rank first = kNone, second = kNone;  // two members
    int32_t members = 0;
  };
  /// Ranks of one network with equal links.
  struct Grouping {
    std::vector<Group> groups;
    std::vector<uint32_t> of;                   // [ranks]
    std::vector<Pair> pairs;                    // [groups][groups]
    std::vector<Channel> out, in;               // by rank
    std::vector<uint32_t> out_begin, in_begin;  // [ranks + 1]
  };
  struct ChannelShare {
    Channel channel = 0;
    double share = 1;
  };

  void regroup();
  double capacity(Channel c) const;
  bool may_group() const;
  void find_groups(size_t network);
  void merge();
  void sign(size_t network);
  void bound(size_t network);
  void fill_pairs(size_t network);
  bool is_dominated(Channel c) const;
  Ps spread(size_t network, Rank src, Rank dst);
  Ps pick(const Message& message);
  void take(Channel channel, double share);
  Ps spread_pair(const Grouping& grouping, size_t network, size_t from, size_t to);
  void flush();

  const Fabric& fabric_;
  const ChannelGraph& graph_;
  std::array<FlowPolicy, 2> policies_;
  uint64_t seed_;
  std::vector<RouteTable> tables_;
  std::vector<uint8_t> down_;    // [channels]
  std::vector<double> factors_;  // [channels]
  bool is_grouped_ = false;
  std::array<Grouping, 2> groupings_;
  std::vector<Share> shares_;
  std::vector<uint32_t> resource_of_;  // [channels] kNil: never used, or left out
  std::vector<Channel> leader_;        // [resources] the channel that stands for it
  std::vector<double> bytes_;          // [channels] but for what stands in Pair::bytes

  // While resources are made: what identifies equal channels, and what can reach them. [channels]
  std::vector<uint64_t> signatures_;
  std::vector<double> from_sources_, to_destinations_;
  // Of the last spread() or pick().
  std::vector<ChannelShare> found_;
  std::vector<uint32_t> place_;  // [channels] in found_
};

}  // namespace plumb::sim

// Hybrid dispatch: over the network once per destination node, to the GPU of the same index ("rail"), which
// forwards inside its node. Phases, edges and regions: docs/plan.md.
#include <algorithm>
#include <array>

#include "model/error.h"
#include "model/plans/dispatch_rows.h"

namespace plumb {
namespace {

/// A row that waits at a forwarder for its last hop.
struct Forwarded {
  int32_t slot = 0;  // in the forwarder's rail_receive
  Rank dst = 0;
  int8_t lane = 0;
  int32_t first_row = 0;  // in the final tensor (direct placement)
};

class HybridBuilder {
 public:
  HybridBuilder(const BuildInput& input, const Protocol& protocol)
      : in_(input),
        protocol_(protocol),
        record_bytes_(input.shape.dispatch_layout().record_bytes),
        notify_row_(notify_bytes(input.shape.local_experts())),
        places_directly_(input.program.placement == RowPlacement::direct),
        rows_(input),
        plan_(input.program, input.grouping),
        node_rows_(at(input.grouping.nodes())),
        by_node_(at(input.grouping.nodes())),
        rail_(at(ranks())),
        rail_rows_(at(ranks())),
        forward_count_(at(ranks()) * at(input.grouping.scaleup)),
        forwarded_(at(input.items ? ranks() : 0)),
        final_rows_(at(input.items ? ranks() : 0)) {}

  Plan build() {
    add_phases();
    if (protocol_.enter_barrier) enter_ = add_barrier_ops(plan_, enter_phase_, false, [](Rank, auto&) {});
    if (!in_.program.cached) notify();
    send_to_rails();
    forward();
    if (protocol_.flush_barrier)
      flush_ = add_barrier_ops(plan_, flush_phase_, true, [this](Rank r, std::vector<Dep>& deps) {
        for (OpId id = first_forward_[at(r)]; id < first_forward_[at(r) + 1]; ++id)
          deps.push_back({id, On::sent});
      });
    place_rows();
    add_regions();
    return std::move(plan_);
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  const Grouping& grouping() const { return in_.grouping; }
  int32_t ranks() const { return in_.shape.ranks; }
  bool gates_rail() const { return !in_.program.cached && protocol_.rows_wait_for_counts; }
  bool gates_forward() const { return !in_.program.cached && places_directly_; }

  void add_phases() {
    const int32_t sms = in_.program.num_sms;
    const int32_t chunk = in_.program.chunk_rows;
    const auto rows_phase = [&](std::string name, RegionId from, RegionId to) {
      return plan_.add_phase({.name = std::move(name),
                              .engine = Engine::sm,
                              .sms = sms,
                              .qps = in_.program.num_qps,
                              .chunk_rows = chunk,
                              .row_bytes = record_bytes_,
                              .from = from,
                              .to = to});
    };
    const auto count_phase = [&](std::string name, RegionId from, RegionId to) {
      return plan_.add_phase({.name = std::move(name),
                              .engine = Engine::sm,
                              .sms = sms,
                              .row_bytes = notify_row_,
                              .from = from,
                              .to = to});
    };
    if (protocol_.enter_barrier) enter_phase_ = plan_.add_phase({.name = "enter"});
    if (!in_.program.cached) {
      notify_phase_ = count_phase("notify", kCountsOut, kCountsRail);
      counts_rail_phase_ = plan_.add_phase({.name = "counts_rail"});
      notify_node_phase_ = count_phase("notify_node", kCountsRail, kCountsIn);
      counts_phase_ =
          plan_.add_phase({.name = "counts", .engine = in_.program.host_sync ? Engine::host : Engine::none});
      if (gates_forward()) {
        offsets_phase_ = count_phase("offsets", kOffsetsOut, kOffsetsIn);
        placed_phase_ = plan_.add_phase({.name = "placed"});
      }
    }
    stage_phase_ = rows_phase("stage", kInput, kSend);
    bypass_phase_ = rows_phase("bypass", kInput, kRailReceive);
    rail_phase_ = rows_phase("rail", kSend, kRailReceive);
    const RegionId landing = places_directly_ ? kReceived : kReceive;
    forward_phase_ = rows_phase("forward", kRailReceive, landing);
    if (protocol_.flush_barrier) flush_phase_ = plan_.add_phase({.name = "flush"});
    add_copy_phases(plan_, in_,
                    {.name = "copy",
                     .engine = Engine::sm,
                     .sms = protocol_.copy_streams ? sms : 0,
                     .chunk_rows = chunk,
                     .row_bytes = record_bytes_,
                     .from = landing,
                     .to = kReceived});
  }

  /// An op that carries `count` rows of counts in one message; slots(i) are the slots of row i.
  template <class Slots>
  OpId add_counts_op(PhaseId phase, Rank src, Rank dst, int32_t count, std::span<const Dep> deps,
                     Slots slots) {
    Op op = row_op(plan_, phase, src, dst, count);
    op.messages = src == dst ? 0 : 1;
    for (int32_t i = 0; in_.items && i < count; ++i) {
      const int32_t item = plan_.add_item(slots(i));
      if (i == 0) op.first_item = item;
    }
    return plan_.add(op, deps);
  }

  /// Counts take the way of the rows: to the rail peer of each node, then to each rank of that node.
  void notify() {
    const int32_t nodes = grouping().nodes();
    const int32_t scaleup = grouping().scaleup;
    std::vector<Dep> deps;
    std::vector<std::vector<Dep>> arrivals(at(ranks()));
    for (Rank s = 0; s < ranks(); ++s) {
      deps.clear();
      if (!enter_.empty()) deps.push_back({enter_[at(s)], On::arrived});
      for (int32_t n = 0; n < nodes; ++n) {
        const Rank f = grouping().rank(n, grouping().local(s));
        const OpId id = add_counts_op(notify_phase_, s, f, scaleup, deps, [&](int32_t i) {
          return Item{.src_slot = n * scaleup + i, .dst_slot = grouping().node(s) * scaleup + i};
        });
        arrivals[at(f)].push_back({id, On::arrived});
      }
    }
    const auto counts_rail = take_arrivals(counts_rail_phase_, arrivals);
    for (Rank f = 0; f < ranks(); ++f)
      for (int32_t j = 0; j < scaleup; ++j) {
        const Rank d = grouping().rank(grouping().node(f), j);
        const OpId id = add_counts_op(notify_node_phase_, f, d, nodes,
                                      std::array{Dep{counts_rail[at(f)], On::arrived}}, [&](int32_t i) {
                                        return Item{.src_slot = i * scaleup + j,
                                                    .dst_slot = grouping().local(f) * nodes + i};
                                      });
        arrivals[at(d)].push_back({id, On::arrived});
      }
    counts_ = take_arrivals(counts_phase_, arrivals);
    if (gates_forward()) send_offsets(arrivals);
  }

  std::vector<OpId> take_arrivals(PhaseId phase, std::vector<std::vector<Dep>>& arrivals) {
    auto ops =
        add_wait_ops(plan_, phase, [&](Rank r, std::vector<Dep>& deps) { deps.swap(arrivals[at(r)]); });
    for (auto& list : arrivals) list.clear();
    return ops;
  }

  /// Each rank tells its forwarders where the rows of each of their sources go.
  void send_offsets(std::vector<std::vector<Dep>>& arrivals) {
    const int32_t nodes = grouping().nodes();
    for (Rank d = 0; d < ranks(); ++d)
      for (int32_t j = 0; j < grouping().scaleup; ++j) {
        const Rank f = grouping().rank(grouping().node(d), j);
        const OpId id = add_counts_op(
            offsets_phase_, d, f, nodes, std::array{Dep{counts_[at(d)], On::arrived}}, [&](int32_t i) {
              return Item{.src_slot = j * nodes + i, .dst_slot = grouping().local(d) * nodes + i};
            });
        arrivals[at(f)].push_back({id, On::arrived});
      }
    placed_ = take_arrivals(placed_phase_, arrivals);
  }

  void send_to_rails() {
    std::vector<int32_t> table;
    std::vector<Copy> copies;
    for (Rank s = 0; s < ranks(); ++s) {
      const int32_t own_node = grouping().node(s);
      in_.routing.rows(s, table);
      list_copies(in_.shape, table, copies);
      std::fill(node_rows_.begin(), node_rows_.end(), 0);
      for (auto& rows : by_node_) rows.clear();
      int32_t staged = 0;
      int32_t last_staged = kNone;
      for (size_t begin = 0; begin < copies.size();) {
        size_t end = begin;  // copies of one token to one node
        const int32_t node = grouping().node(copies[begin].dst);
        const Rank node_end = grouping().rank(node + 1, 0);
        int8_t lane = 0;
        while (end < copies.size() && copies[end].token == copies[begin].token && copies[end].dst < node_end)
          lane = std::max(lane, copies[end++].lane);
        ++node_rows_[at(node)];
        if (in_.items) by_node_[at(node)].push_back({copies[begin].token, lane});
        if (node != own_node && last_staged != copies[begin].token) {
          ++staged;
          last_staged = copies[begin].token;
        }
        arrive_at_forwarder(grouping().rank(node, grouping().local(s)),
                            std::span(copies).subspan(begin, end - begin), table);
        begin = end;
      }
      add_rail_ops(s, staged);
    }
  }

  void arrive_at_forwarder(Rank f, std::span<const Copy> copies, const std::vector<int32_t>& table) {
    const auto topk = at(in_.shape.topk);
    const int32_t slot = rail_rows_[at(f)]++;
    for (const Copy& copy : copies) {
      ++forward_count_[at(f) * at(grouping().scaleup) + at(grouping().local(copy.dst))];
      const auto final_rows = rows_.next(copy, std::span(table).subspan(at(copy.token) * topk, topk));
      if (!in_.items) continue;
      forwarded_[at(f)].push_back({.slot = slot,
                                   .dst = copy.dst,
                                   .lane = places_directly_ ? final_rows[0].lane : copy.lane,
                                   .first_row = final_rows[0].row});
      // Kept under (forwarder, order of arrival) until the landing slot is known.
      final_rows_[at(f)].emplace_back(final_rows.begin(), final_rows.end());
    }
  }

  void add_rail_ops(Rank s, int32_t staged) {
    std::vector<Dep> gate;
    if (gates_rail())
      gate.push_back({counts_[at(s)], On::arrived});
    else if (!enter_.empty())
      gate.push_back({enter_[at(s)], On::arrived});
    OpId stage = kNone;
    if (staged > 0) {
      Op op = row_op(plan_, stage_phase_, s, s, staged);
      if (in_.items) op.first_item = add_stage_items(s);
      stage = plan_.add(op, gate);
    }
    for (int32_t n = 0; n < grouping().nodes(); ++n) {
      if (node_rows_[at(n)] == 0) continue;
      const auto& rows = by_node_[at(n)];
      const bool is_own = n == grouping().node(s);
      const Rank f = grouping().rank(n, grouping().local(s));
      Op op = row_op(plan_, is_own ? bypass_phase_ : rail_phase_, s, f, node_rows_[at(n)]);
      int32_t slot = rail_rows_[at(f)] - op.rows;
      for (size_t i = 0; i < rows.size(); ++i) {
        const int32_t item = plan_.add_item({.src_slot = rows[i].first, .dst_slot = slot++}, rows[i].second);
        if (i == 0) op.first_item = item;
      }
      const OpId id = is_own ? plan_.add(op, gate) : plan_.add(op, {{stage, On::stream}});
      rail_[at(f)].push_back({id, On::stream});
    }
  }

  int32_t add_stage_items(Rank s) {
    std::vector<int32_t> tokens;
    for (int32_t n = 0; n < grouping().nodes(); ++n)
      if (n != grouping().node(s))
        for (const auto& [token, lane] : by_node_[at(n)]) tokens.push_back(token);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    int32_t first = kNone;
    for (const int32_t token : tokens) {
      const int32_t item = plan_.add_item({.src_slot = token, .dst_slot = token});
      if (first == kNone) first = item;
    }
    return first;
  }

  void forward() {
    const auto scaleup = at(grouping().scaleup);
    std::vector<int32_t> landed(at(ranks()));
    copy_items_.resize(at(ranks()));
    arrivals_.resize(at(ranks()));
    std::vector<Dep> deps;
    for (Rank f = 0; f < ranks(); ++f) {
      first_forward_.push_back(static_cast<OpId>(plan_.ops().size()));
      deps = rail_[at(f)];
      if (gates_forward()) deps.push_back({placed_[at(f)], On::arrived});
      for (size_t j = 0; j < scaleup; ++j) {
        const int32_t count = forward_count_[at(f) * scaleup + j];
        if (count == 0) continue;
        const Rank d = grouping().rank(grouping().node(f), static_cast<int32_t>(j));
        Op op = row_op(plan_, forward_phase_, f, d, count);
        if (in_.items) op.first_item = add_forward_items(f, d, landed[at(d)]);
        arrivals_[at(d)].push_back({plan_.add(op, deps), On::stream});
      }
    }
    first_forward_.push_back(static_cast<OpId>(plan_.ops().size()));
  }

  int32_t add_forward_items(Rank f, Rank d, int32_t& landed) {
    int32_t first = kNone;
    for (size_t i = 0; i < forwarded_[at(f)].size(); ++i) {
      const Forwarded& row = forwarded_[at(f)][i];
      if (row.dst != d) continue;
      const int32_t landing = places_directly_ ? row.first_row : landed++;
      const int32_t item = plan_.add_item({.src_slot = row.slot, .dst_slot = landing}, row.lane);
      if (first == kNone) first = item;
      const auto& final_rows = final_rows_[at(f)][i];
      for (size_t k = places_directly_ ? 1 : 0; k < final_rows.size(); ++k)
        copy_items_[at(d)].push_back(
            {{.src_slot = landing, .dst_slot = final_rows[k].row}, final_rows[k].lane});
    }
    return first;
  }

  void place_rows() {
    std::vector<Dep> deps;
    for (Rank r = 0; r < ranks(); ++r) {
      deps.clear();
      if (!flush_.empty()) deps.push_back({flush_[at(r)], On::arrived});
      if (protocol_.copy_streams) deps = arrivals_[at(r)];
      if (!counts_.empty()) deps.push_back({counts_[at(r)], On::arrived});
      add_copy_ops(plan_, r, rows_, in_, copy_items_[at(r)], deps);
    }
  }

  void add_regions() {
    const int64_t scaleup = grouping().scaleup;
    const int64_t nodes = grouping().nodes();
    const auto add = [&](std::string name, int64_t row_bytes, auto rows) {
      Region region{.name = std::move(name), .row_bytes = row_bytes, .layout = {}, .rows = {}};
      if (row_bytes == record_bytes_) region.layout = in_.shape.dispatch_layout();
      if (in_.items)
        for (Rank r = 0; r < ranks(); ++r) region.rows.push_back(rows(r));
      plan_.add_region(std::move(region));
    };
    const auto tokens = [this](Rank r) { return int64_t{in_.shape.tokens[at(r)]}; };
    const auto all = [this](Rank) { return int64_t{ranks()}; };
    add("input", record_bytes_, tokens);
    add("counts_out", notify_row_, all);
    add("counts_rail", notify_row_, [&](Rank) { return nodes * scaleup; });
    add("counts_in", notify_row_, [&](Rank) { return nodes * scaleup; });
    add("offsets_out", notify_row_, all);
    add("offsets_in", notify_row_, all);
    add("send", record_bytes_, tokens);
    add("rail_receive", record_bytes_, [this](Rank r) { return int64_t{rail_rows_[at(r)]}; });
    add("receive", record_bytes_,
        [this](Rank r) { return int64_t{places_directly_ ? 0 : rows_.received(r)}; });
    add("received", record_bytes_, [this](Rank r) { return rows_.tensor_rows(r); });
  }

  static constexpr RegionId kInput = 0, kCountsOut = 1, kCountsRail = 2, kCountsIn = 3, kOffsetsOut = 4,
                            kOffsetsIn = 5, kSend = 6, kRailReceive = 7, kReceive = 8, kReceived = 9;

  const BuildInput& in_;
  const Protocol protocol_;
  const int64_t record_bytes_;
  const int64_t notify_row_;
  const bool places_directly_;
  FinalRows rows_;
  Plan plan_;
  PhaseId enter_phase_{}, notify_phase_{}, counts_rail_phase_{}, notify_node_phase_{}, counts_phase_{},
      offsets_phase_{}, placed_phase_{}, stage_phase_{}, bypass_phase_{}, rail_phase_{}, forward_phase_{},
      flush_phase_{};
  std::vector<OpId> enter_, counts_, placed_, flush_;  // [ranks], empty when the protocol has no such step
  std::vector<int32_t> node_rows_;                     // [node]: rows of the current source
  std::vector<std::vector<std::pair<int32_t, int8_t>>> by_node_;  // [node]: its tokens and lanes; items only
  std::vector<std::vector<Dep>> rail_;                            // [forwarder]: its arrivals
  std::vector<int32_t> rail_rows_;                                // [forwarder]: rows in rail_receive so far
  std::vector<int32_t> forward_count_;                            // [forwarder][scaleup]
  std::vector<std::vector<Forwarded>> forwarded_;  // [forwarder], in order of arrival; items only
  std::vector<std::vector<std::vector<FinalRow>>> final_rows_;  // beside forwarded_
  std::vector<OpId> first_forward_;                             // [ranks + 1]
  std::vector<std::vector<Dep>> arrivals_;                      // [destination]: its forward ops
  std::vector<std::vector<LanedItem>> copy_items_;              // [destination]
};

}  // namespace

Plan build_hybrid(const BuildInput& input, const Protocol& protocol) {
  return HybridBuilder(input, protocol).build();
}

Plan build_dispatch_hybrid(const BuildInput& input) { return build_hybrid(input, Protocol{}); }

}  // namespace plumb

// Direct dispatch: every copy goes from its source straight to its destination rank, over NVLink inside a
// node and over the network between nodes. Phases, edges and regions: docs/plan.md.
#include <algorithm>

#include "model/error.h"
#include "model/plans/dispatch_rows.h"
#include "model/schedule.h"

namespace plumb {
namespace {

class DirectBuilder {
 public:
  DirectBuilder(const BuildInput& input, const Protocol& protocol)
      : in_(input),
        protocol_(protocol),
        record_bytes_(input.shape.dispatch_layout().record_bytes),
        notify_row_(notify_bytes(input.shape.local_experts())),
        places_directly_(input.program.placement == RowPlacement::direct),
        gates_rows_(!input.program.cached && (protocol.rows_wait_for_counts || places_directly_)),
        shares_table_(places_directly_ && input.grouping.nodes() == 1),
        copies_follow_(shares_table_ && input.program.expand &&
                       copies_follow(input.shape.ranks, input.program.num_sms)),
        rows_(input),
        plan_(input.program, input.grouping),
        copy_items_(at(input.shape.ranks)),
        rows_to_copy_(at(input.shape.ranks)) {}

  Plan build() {
    reserve();
    add_phases();
    if (protocol_.enter_barrier) enter_ = add_barrier_ops(plan_, enter_phase_, false, [](Rank, auto&) {});
    if (!in_.program.cached) notify();
    send_rows();
    if (protocol_.flush_barrier)
      flush_ = add_barrier_ops(plan_, flush_phase_, false, [this](Rank r, std::vector<Dep>& deps) {
        for (OpId id = first_put_[at(r)]; id < first_put_[at(r) + 1]; ++id)
          if (issuer(plan_.ops()[at(id)]) == r) deps.push_back({id, On::sent});
      });
    place_rows();
    add_regions();
    return std::move(plan_);
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  int32_t ranks() const { return in_.shape.ranks; }

  /// Room for an op of counts and an op of rows per pair, and for their edges; pages that stay empty cost
  /// nothing.
  void reserve() {
    const int64_t pairs = int64_t{ranks()} * ranks();
    const int64_t exchanges = in_.program.cached ? 0 : places_directly_ && !shares_table_ ? 2 : 1;
    plan_.reserve((1 + exchanges) * pairs + 8 * ranks(), (2 + 2 * exchanges) * pairs + 8 * ranks(), 0);
  }

  void add_phases() {
    const int32_t sms = in_.program.num_sms;
    const int32_t qps = in_.program.num_qps;
    const int32_t chunk = in_.program.chunk_rows;
    if (protocol_.enter_barrier) enter_phase_ = plan_.add_phase({.name = "enter"});
    if (!in_.program.cached) {
      notify_phase_ = plan_.add_phase({.name = "notify",
                                       .engine = Engine::sm,
                                       .sms = sms,
                                       .row_bytes = notify_row_,
                                       .from = kCountsOut,
                                       .to = kCountsIn});
      counts_phase_ =
          plan_.add_phase({.name = "counts", .engine = in_.program.host_sync ? Engine::host : Engine::none});
      if (places_directly_ && !shares_table_) {
        offsets_phase_ = plan_.add_phase({.name = "offsets",
                                          .engine = Engine::sm,
                                          .sms = sms,
                                          .row_bytes = notify_row_,
                                          .from = kOffsetsOut,
                                          .to = kOffsetsIn});
        placed_phase_ = plan_.add_phase({.name = "placed"});
      }
    }
    const RegionId landing = places_directly_ ? kReceived : kReceive;
    const auto rows_phase = [&](std::string name, RegionId from, RegionId to) {
      return plan_.add_phase({.name = std::move(name),
                              .engine = Engine::sm,
                              .sms = sms,
                              .qps = qps,
                              .chunk_rows = chunk,
                              .row_bytes = record_bytes_,
                              .from = from,
                              .to = to});
    };
    if (in_.grouping.nodes() > 1) {
      stage_phase_ = rows_phase("stage", kInput, kSend);
      remote_phase_ = rows_phase("remote", kSend, landing);
    }
    dispatch_phase_ = rows_phase("dispatch", kInput, landing);
    if (protocol_.flush_barrier) flush_phase_ = plan_.add_phase({.name = "flush"});
    add_copy_phases(plan_, in_,
                    {.name = "copy",
                     .engine = Engine::sm,
                     .sms = protocol_.copy_streams || places_directly_ ? sms : 0,  // else a kernel of its own
                     .chunk_rows = chunk,
                     .row_bytes = record_bytes_,
                     .from = landing,
                     .to = kReceived});
  }

  void add_edge_on_enter(Rank r, std::vector<Dep>& deps) const {
    if (!enter_.empty()) deps.push_back({enter_[at(r)], On::arrived});
  }

  /// One op per pair that carries counts; a rank's own counts are a local copy.
  void exchange(PhaseId phase, int32_t rows_per_op, bool to_all, const EdgesOf& edges,
                std::vector<OpId>& first) {
    std::vector<Dep> deps;
    for (Rank s = 0; s < ranks(); ++s) {
      first.push_back(static_cast<OpId>(plan_.ops().size()));
      deps.clear();
      edges(s, deps);
      for (Rank d = 0; d < ranks(); ++d) {
        Op op = row_op(plan_, phase, s, d, rows_per_op);
        op.messages = s == d ? 0 : 1;
        if (in_.items)
          for (int32_t i = 0; i < rows_per_op; ++i) {
            const int32_t item =
                plan_.add_item({.src_slot = to_all ? i : d, .dst_slot = to_all ? s * ranks() + i : s});
            if (i == 0) op.first_item = item;
          }
        plan_.add(op, deps);
      }
    }
  }

  /// Edges on the op of every source that leads to rank r; ops of source s start at first[s], in order of
  /// destination.
  void add_edges_on_arrivals(Rank r, const std::vector<OpId>& first, std::vector<Dep>& deps) const {
    for (Rank s = 0; s < ranks(); ++s) deps.push_back({first[at(s)] + r, On::arrived});
  }

  void notify() {
    std::vector<OpId> first;
    exchange(
        notify_phase_, shares_table_ ? ranks() : 1, shares_table_,
        [this](Rank r, auto& deps) { add_edge_on_enter(r, deps); }, first);
    counts_ = add_wait_ops(plan_, counts_phase_,
                           [&](Rank r, auto& deps) { add_edges_on_arrivals(r, first, deps); });
    if (!places_directly_ || shares_table_) return;
    first.clear();
    exchange(
        offsets_phase_, 1, false,
        [this](Rank r, auto& deps) {
          deps.push_back({counts_[at(r)], On::arrived});
        },
        first);
    placed_ = add_wait_ops(plan_, placed_phase_,
                           [&](Rank r, auto& deps) { add_edges_on_arrivals(r, first, deps); });
  }

  /// The rows of one source; lists only when items are materialised.
  struct Outgoing {
    explicit Outgoing(size_t ranks) : count(ranks), landing(ranks), by_destination(ranks) {}
    void clear(Rank next_source) {
      source = next_source;
      std::fill(count.begin(), count.end(), 0);
      for (auto& list : landing) list.clear();
      for (auto& list : by_destination) list.clear();
      further = 0;
      further_items.clear();
    }

    Rank source = 0;
    std::vector<int32_t> count;                     // [ranks]
    std::vector<std::vector<FinalRow>> landing;     // [ranks], by token
    std::vector<std::vector<Copy>> by_destination;  // [ranks], by token
    int32_t further = 0;                            // own rows beyond the first of each token
    std::vector<LanedItem> further_items;
  };

  void send_rows() {
    std::vector<int32_t> table;
    std::vector<Copy> copies;
    Outgoing out(at(ranks()));
    for (Rank s = 0; s < ranks(); ++s) {
      in_.routing.rows(s, table);
      list_copies(in_.shape, table, copies);
      out.clear(s);
      for (const Copy& copy : copies) place(copy, table, out);
      first_put_.push_back(static_cast<OpId>(plan_.ops().size()));
      add_ops_of(copies, out);
    }
    first_put_.push_back(static_cast<OpId>(plan_.ops().size()));
  }

  /// Placed rows land in the first of their final rows. A source writes the others too where they are its
  /// own; those of a peer are copied there.
  void place(const Copy& copy, const std::vector<int32_t>& table, Outgoing& out) {
    const auto topk = at(in_.shape.topk);
    const bool is_own = places_directly_ && copy.dst == out.source;
    const int32_t received_row = rows_.received(copy.dst);
    const int32_t selections = rows_.selections(copy.dst);
    const auto final_rows = rows_.next(copy, std::span(table).subspan(at(copy.token) * topk, topk));
    const int32_t num_final = in_.program.expand ? rows_.selections(copy.dst) - selections : 1;
    ++out.count[at(copy.dst)];
    (is_own ? out.further : rows_to_copy_[at(copy.dst)]) += num_final - (places_directly_ ? 1 : 0);
    if (!in_.items) return;
    out.by_destination[at(copy.dst)].push_back(copy);
    // Staged rows land in order of arrival.
    const FinalRow landing = places_directly_ ? final_rows[0] : FinalRow{received_row, copy.lane};
    out.landing[at(copy.dst)].push_back(landing);
    auto& items = is_own ? out.further_items : copy_items_[at(copy.dst)];
    for (size_t i = places_directly_ ? 1 : 0; i < final_rows.size(); ++i)
      items.push_back({{.src_slot = is_own ? copy.token : landing.row, .dst_slot = final_rows[i].row},
                       final_rows[i].lane});
  }

  void add_ops_of(const std::vector<Copy>& copies, const Outgoing& out) {
    const Rank s = out.source;
    std::vector<Dep> gate;
    if (gates_rows_)
      gate.push_back({(placed_.empty() ? counts_ : placed_)[at(s)], On::arrived});
    else
      add_edge_on_enter(s, gate);
    OpId stage = kNone;
    if (stage_phase_ != kNoPhase) stage = add_stage_op(s, copies, gate);
    for (Rank d = 0; d < ranks(); ++d) {
      if (out.count[at(d)] == 0) continue;
      const bool is_remote = !in_.grouping.is_local(s, d);
      Op op = row_op(plan_, is_remote ? remote_phase_ : dispatch_phase_, s, d, out.count[at(d)]);
      for (size_t i = 0; i < out.by_destination[at(d)].size(); ++i) {
        const FinalRow& landing = out.landing[at(d)][i];
        const int32_t item = plan_.add_item(
            {.src_slot = out.by_destination[at(d)][i].token, .dst_slot = landing.row}, landing.lane);
        if (i == 0) op.first_item = item;
      }
      if (is_remote)
        plan_.add(op, {{stage, On::stream}});
      else
        plan_.add(op, gate);
      if (d == s && out.further > 0) add_further_op(out, gate);
    }
  }

  /// Own rows beyond the first of each token: an op behind that of the first ones, so that combine knows
  /// both.
  void add_further_op(const Outgoing& out, std::span<const Dep> gate) {
    Op op = row_op(plan_, dispatch_phase_, out.source, out.source, out.further);
    for (const auto& [item, lane] : out.further_items) {
      const int32_t index = plan_.add_item(item, lane);
      if (op.first_item == kNone) op.first_item = index;
    }
    plan_.add(op, gate);
  }

  /// Rows that leave the node are first copied into the registered send buffer, once each.
  OpId add_stage_op(Rank s, const std::vector<Copy>& copies, std::span<const Dep> gate) {
    Op op = row_op(plan_, stage_phase_, s, s, 0);
    int32_t last_token = kNone;
    for (const Copy& copy : copies) {
      if (copy.token == last_token || in_.grouping.is_local(s, copy.dst)) continue;
      last_token = copy.token;
      ++op.rows;
      if (!in_.items) continue;
      const int32_t item = plan_.add_item({.src_slot = copy.token, .dst_slot = copy.token}, copy.lane);
      if (op.rows == 1) op.first_item = item;
    }
    op.bytes = op.rows * record_bytes_;
    return op.rows == 0 ? kNone : plan_.add(op, gate);
  }

  void place_rows() {
    const bool streams = protocol_.copy_streams || copies_follow_;
    const std::vector<std::vector<Dep>> arrivals = streams ? stream_edges() : std::vector<std::vector<Dep>>();
    std::vector<Dep> deps, copy_deps;
    for (Rank r = 0; r < ranks(); ++r) {
      deps.clear();
      if (!flush_.empty()) deps.push_back({flush_[at(r)], On::arrived});
      if (!counts_.empty()) deps.push_back({counts_[at(r)], On::arrived});
      copy_deps = deps;
      if (streams) {
        copy_deps = arrivals[at(r)];
        if (!counts_.empty()) copy_deps.push_back({counts_[at(r)], On::arrived});
      }
      add_copy_op(plan_, r, rows_to_copy_[at(r)], copy_items_[at(r)], copy_deps);
      add_pad_op(plan_, r, rows_, in_.items, deps);
    }
  }

  /// Of all rows that a rank copies.
  std::vector<std::vector<Dep>> stream_edges() const {
    std::vector<std::vector<Dep>> edges(at(ranks()));
    for (OpId id = first_put_.front(); id < first_put_.back(); ++id) {
      const Op& op = plan_.ops()[at(id)];
      if (op.phase == dispatch_phase_ && (op.src != op.dst || !places_directly_))
        edges[at(op.dst)].push_back({id, On::stream});
    }
    return edges;
  }

  void add_regions() {
    const auto rows_of = [this](auto rows) {
      std::vector<int64_t> result;
      if (in_.items)
        for (Rank r = 0; r < ranks(); ++r) result.push_back(rows(r));
      return result;
    };
    const int64_t table_rows = shares_table_ ? int64_t{ranks()} * ranks() : ranks();
    const auto tokens = rows_of([this](Rank r) { return int64_t{in_.shape.tokens[at(r)]}; });
    const auto pairs = rows_of([this](Rank) { return int64_t{ranks()}; });
    const TokenLayout record = in_.shape.dispatch_layout();
    plan_.add_region({.name = "input", .row_bytes = record_bytes_, .layout = record, .rows = tokens});
    plan_.add_region({.name = "counts_out", .row_bytes = notify_row_, .rows = pairs});
    plan_.add_region(
        {.name = "counts_in", .row_bytes = notify_row_, .rows = rows_of([&](Rank) { return table_rows; })});
    plan_.add_region({.name = "offsets_out", .row_bytes = notify_row_, .rows = pairs});
    plan_.add_region({.name = "offsets_in", .row_bytes = notify_row_, .rows = pairs});
    plan_.add_region({.name = "send", .row_bytes = record_bytes_, .layout = record, .rows = tokens});
    plan_.add_region(
        {.name = "receive",
         .row_bytes = record_bytes_,
         .layout = record,
         .rows = rows_of([this](Rank r) { return int64_t{places_directly_ ? 0 : rows_.received(r)}; })});
    plan_.add_region(
        {.name = "received", .row_bytes = record_bytes_, .layout = record, .rows = rows_of([this](Rank r) {
                                                                             return rows_.tensor_rows(r);
                                                                           })});
  }

  static constexpr RegionId kInput = 0, kCountsOut = 1, kCountsIn = 2, kOffsetsOut = 3, kOffsetsIn = 4,
                            kSend = 5, kReceive = 6, kReceived = 7;
  static constexpr PhaseId kNoPhase = 255;

  const BuildInput& in_;
  const Protocol protocol_;
  const int64_t record_bytes_;
  const int64_t notify_row_;
  const bool places_directly_;
  const bool gates_rows_;  // rows leave only after the counts are known
  const bool
      shares_table_;  // one node: everybody learns all counts in one step, instead of counts and offsets
  const bool copies_follow_;  // expand: rows are copied as they land, not after the flush
  FinalRows rows_;
  Plan plan_;
  PhaseId enter_phase_ = kNoPhase, remote_phase_ = kNoPhase, notify_phase_ = kNoPhase,
          counts_phase_ = kNoPhase, offsets_phase_ = kNoPhase, placed_phase_ = kNoPhase,
          stage_phase_ = kNoPhase, dispatch_phase_ = kNoPhase, flush_phase_ = kNoPhase;
  std::vector<OpId> enter_, counts_, placed_, flush_;  // [ranks], empty when the protocol has no such step
  std::vector<OpId> first_put_;  // [ranks + 1]: first op of the rank's stage and dispatch ops
  std::vector<std::vector<LanedItem>> copy_items_;  // [ranks]
  std::vector<int32_t> rows_to_copy_;               // [ranks]
};

}  // namespace

Plan build_direct(const BuildInput& input, const Protocol& protocol) {
  return DirectBuilder(input, protocol).build();
}

Plan build_dispatch_direct(const BuildInput& input) { return build_direct(input, Protocol{}); }

}  // namespace plumb

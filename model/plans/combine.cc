// reverse(): the combine of a dispatch plan. Rows go back the way they came, summed where branches met.
// Phases: docs/plan.md.
#include "model/plans/derive.h"

#include <algorithm>
#include <tuple>

#include "model/error.h"
#include "model/plans/dispatch_rows.h"

namespace plumb {
namespace {

/// A row that waits for a sum: its place in the order of summation and where it lies.
struct Addend {
  int32_t group = 0;  // which sum: token at the source, slot at a forwarder
  int8_t lane = 0;
  int32_t slot = 0;
  bool operator<(const Addend& o) const {
    return std::tie(group, lane, slot) < std::tie(o.group, o.lane, o.slot);
  }
};

class CombineBuilder {
 public:
  CombineBuilder(const Plan& dispatch, const Shape& shape, const Program& program)
      : dispatch_(dispatch),
        shape_(shape),
        program_(program),
        hybrid_(dispatch.find_phase("forward").has_value()),
        streams_(program.kind == ProgramKind::v1_combine),
        low_latency_(program.kind == ProgramKind::low_latency_combine),
        sums_locally_(dispatch.program().expand && program.multiple_reduction && !low_latency_),
        items_(dispatch.has_items()),
        plan_(program, dispatch.grouping()),
        landed_(at(shape.ranks)),
        addends_(at(shape.ranks)),
        node_addends_(at(shape.ranks)),
        arrivals_(at(shape.ranks)),
        returned_rows_(at(shape.ranks)),
        up_rows_(at(shape.ranks)),
        local_sums_(at(shape.ranks)) {}

  Plan build() {
    check_rows_known();
    add_phases();
    if (!low_latency_) enter_ = add_barrier_ops(plan_, enter_phase_, false, [](Rank, auto&) {});
    if (items_) find_final_rows();
    if (sums_locally_) sum_locally();
    if (hybrid_) {
      send_to_forwarders();
      if (program_.multiple_reduction) sum_at_forwarders();
      send_to_sources_by_rail();
    } else {
      stage_remote_rows();
      send_to_sources();
    }
    sum_at_sources();
    add_regions();
    return std::move(plan_);
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  int32_t ranks() const { return shape_.ranks; }
  bool is_phase(const Op& op, std::string_view name) const {
    return dispatch_.phases()[op.phase].name == name;
  }
  bool keeps_every_row() const { return !program_.multiple_reduction; }

  TokenLayout combine_row_layout() const {
    return low_latency_ ? low_latency_combine_layout(shape_.hidden) : shape_.combine_layout();
  }

  void check_rows_known() const {
    const bool rows_differ = keeps_every_row() && (hybrid_ || dispatch_.program().expand) && !low_latency_;
    if (rows_differ && !items_)
      fail_usage("single reduction with {} needs a plan with rows: build the dispatch with items",
                 hybrid_ ? "hybrid mode" : "the expand layout");
  }

  void add_phases() {
    const int64_t record = combine_row_layout().record_bytes;
    const auto add = [&](std::string name, RegionId from, RegionId to, int32_t sms) {
      return plan_.add_phase({.name = std::move(name),
                              .engine = Engine::sm,
                              .sms = sms,
                              .qps = program_.num_qps,
                              .chunk_rows = program_.chunk_rows,
                              .row_bytes = record,
                              .from = from,
                              .to = to});
    };
    const int32_t sms = program_.num_sms;
    if (!low_latency_) enter_phase_ = plan_.add_phase({.name = "combine_enter"});
    if (sums_locally_) local_phase_ = add("combine_local", kExpertOut, kPartial, sms);
    const RegionId first = sums_locally_ ? kPartial : kExpertOut;
    if (hybrid_) {
      up_phase_ = add("combine_up", first, kReturnedUp, sms);
      if (program_.multiple_reduction) node_phase_ = add("combine_node", kReturnedUp, kNodeSum, sms);
      const RegionId at_forwarder = program_.multiple_reduction ? kNodeSum : kReturnedUp;
      bypass_phase_ = add("combine_bypass", at_forwarder, kReturned, sms);
      rail_phase_ = add("combine_rail", at_forwarder, kReturned, sms);
    } else {
      if (dispatch_.find_phase("remote")) {
        stage_phase_ = add("combine_stage", first, kSendBack, sms);
        remote_phase_ = add("combine_remote", kSendBack, kReturned, sms);
      }
      up_phase_ = add("combine_up", first, kReturned, sms);
      if (low_latency_) {
        signal_phase_ = plan_.add_phase(
            {.name = "combine_signal", .engine = Engine::sm, .sms = sms, .row_bytes = kSignalBytes});
        arrived_phase_ = plan_.add_phase({.name = "combine_arrived"});
      } else if (!streams_) {
        flush_phase_ = plan_.add_phase({.name = "combine_flush"});
      }
    }
    reduce_phase_ = plan_.add_phase({.name = "combine_reduce",
                                     .engine = Engine::sm,
                                     .sms = streams_ ? sms : 0,
                                     .chunk_rows = program_.chunk_rows,
                                     .row_bytes = record,
                                     .from = kReturned,
                                     .also_from = program_.num_biases > 0 ? kBias : kNoRegion,
                                     .to = kCombined});
  }

  /// Ops of the dispatch that end a row's way at its destination, in order. A second op of a phase and rank
  /// holds further rows of the tokens of the one before it (expand layout): `use_further` takes both.
  template <class F, class G>
  void for_each_last_hop(F use, G use_further) const {
    const Op* before = nullptr;
    for (const Op& op : dispatch_.ops()) {
      if (hybrid_ ? !is_phase(op, "forward") : !is_phase(op, "dispatch") && !is_phase(op, "remote")) continue;
      const bool is_further = before != nullptr && op.kind == OpKind::copy && before->phase == op.phase &&
                              before->dst == op.dst && before->src == op.src;
      if (is_further)
        use_further(*before, op);
      else
        use(op);
      before = &op;
    }
  }
  template <class F>
  void for_each_last_hop(F use) const {
    for_each_last_hop(use, [](const Op&, const Op&) {});
  }

  /// final_[d][landing slot]: the rows of the final tensor made of it.
  void find_final_rows() {
    final_.resize(at(ranks()));
    const bool is_placed = dispatch_.program().placement == RowPlacement::direct || low_latency_;
    const auto add_first = [&](const Op& op) {
      const auto items = dispatch_.items(op);
      for (size_t i = 0; i < items.size(); ++i) {
        auto& rows = final_[at(op.dst)];
        if (rows.size() <= at(items[i].dst_slot)) rows.resize(at(items[i].dst_slot) + 1);
        if (is_placed) rows[at(items[i].dst_slot)].push_back({items[i].dst_slot, dispatch_.lanes(op)[i]});
      }
    };
    for_each_last_hop(add_first, [&](const Op& first, const Op& further) {
      const auto landed = dispatch_.items(first), items = dispatch_.items(further);
      size_t k = 0;  // of the token's first row; both stand in the order of tokens
      for (size_t i = 0; i < items.size(); ++i) {
        while (landed[k].src_slot != items[i].src_slot) ++k;
        final_[at(first.dst)][at(landed[k].dst_slot)].push_back(
            {items[i].dst_slot, dispatch_.lanes(further)[i]});
      }
    });
    for (const Op& op : dispatch_.ops()) {
      if (!is_phase(op, "copy")) continue;
      const auto items = dispatch_.items(op);
      const auto lanes = dispatch_.lanes(op);
      for (size_t i = 0; i < items.size(); ++i)
        final_[at(op.dst)][at(items[i].src_slot)].push_back({items[i].dst_slot, lanes[i]});
    }
  }

  /// Rows of the same token on a rank (expand layout) become one, in ascending top-k order.
  void sum_locally() {
    local_ops_.assign(at(ranks()), kNone);
    std::vector<int32_t> reads(at(ranks()));
    for (const Op& op : dispatch_.ops())
      if (is_phase(op, "copy")) reads[at(op.dst)] += op.rows;
    const auto add_first = [&](const Op& op) {
      local_sums_[at(op.dst)] += op.rows;
      if (dispatch_.program().placement == RowPlacement::direct) reads[at(op.dst)] += op.rows;
    };
    for_each_last_hop(add_first,
                      [&](const Op&, const Op& further) { reads[at(further.dst)] += further.rows; });
    for (Rank d = 0; d < ranks(); ++d) {
      if (reads[at(d)] == 0) continue;
      Op op = row_op(plan_, local_phase_, d, d, reads[at(d)]);
      op.kind = OpKind::reduce;
      op.messages = local_sums_[at(d)];
      if (items_) op.first_item = add_local_items(d);
      local_ops_[at(d)] = plan_.add(op);
    }
  }

  int32_t add_local_items(Rank d) {
    int32_t first = kNone;
    int32_t sum = 0;
    for_each_last_hop([&](const Op& op) {
      if (op.dst != d) return;
      for (const Item& arrived : dispatch_.items(op)) {
        for (const FinalRow& row : final_[at(d)][at(arrived.dst_slot)]) {
          const int32_t item = plan_.add_item({.src_slot = row.row, .dst_slot = sum}, row.lane);
          if (first == kNone) first = item;
        }
        ++sum;
      }
    });
    return first;
  }

  /// Rows with which item `i` of a last hop answers, with their lanes. A local sum counts as its last member
  /// and is the next one of its rank.
  void answers(const Op& op, size_t i, std::vector<FinalRow>& out) {
    out = final_[at(op.dst)][at(dispatch_.items(op)[i].dst_slot)];
    if (!sums_locally_) return;
    int8_t lane = 0;
    for (const FinalRow& row : out) lane = std::max(lane, row.lane);
    out.assign(1, {landed_[at(op.dst)]++, lane});
  }

  std::vector<Dep> gate(Rank r) const {
    std::vector<Dep> deps;
    deps.reserve(2);
    if (!enter_.empty()) deps.push_back({enter_[at(r)], On::arrived});
    if (sums_locally_ && local_ops_[at(r)] != kNone) deps.push_back({local_ops_[at(r)], On::stream});
    return deps;
  }

  /// The answer to op: rows that start at its destination and end at its source.
  Op answer_op(PhaseId phase, const Op& op, int32_t rows) const {
    Op out = row_op(plan_, phase, op.dst, op.src, rows);
    out.link = op.link;  // low latency may use the network inside a node
    return out;
  }

  void send_to_forwarders() {
    std::vector<FinalRow> rows;
    for_each_last_hop([&](const Op& op) {
      Op out = answer_op(up_phase_, op, op.rows);
      if (items_) {
        out.rows = 0;
        for (size_t i = 0; i < dispatch_.items(op).size(); ++i) {
          answers(op, i, rows);
          for (const FinalRow& row : rows) {
            const int32_t slot = up_rows_[at(op.src)]++;
            const int32_t item = plan_.add_item({.src_slot = row.row, .dst_slot = slot}, row.lane);
            if (out.rows++ == 0) out.first_item = item;
            node_addends_[at(op.src)].push_back({dispatch_.items(op)[i].src_slot, row.lane, slot});
          }
        }
        out = with_rows(out);
      } else {
        up_rows_[at(op.src)] += op.rows;
      }
      arrivals_[at(op.src)].push_back({plan_.add(out, gate(op.dst)), On::stream});
    });
    for (auto& list : node_addends_) std::sort(list.begin(), list.end());
  }

  /// Recomputes messages and bytes after `rows` changed.
  Op with_rows(Op op) const {
    op.messages = op.kind == OpKind::copy ? 0 : op.rows;
    op.bytes = op.rows * plan_.phases()[op.phase].row_bytes;
    return op;
  }

  void sum_at_forwarders() {
    node_ops_.assign(at(ranks()), kNone);
    std::vector<int32_t> sums(at(ranks()));
    for (const Op& op : dispatch_.ops())
      if (is_phase(op, "rail") || is_phase(op, "bypass")) sums[at(op.dst)] += op.rows;
    for (Rank f = 0; f < ranks(); ++f) {
      if (up_rows_[at(f)] == 0) continue;
      Op op = row_op(plan_, node_phase_, f, f, up_rows_[at(f)]);
      op.kind = OpKind::reduce;
      op.messages = sums[at(f)];
      for (const Addend& addend : node_addends_[at(f)]) {
        const int32_t item = plan_.add_item({.src_slot = addend.slot, .dst_slot = addend.group}, addend.lane);
        if (op.first_item == kNone) op.first_item = item;
      }
      node_ops_[at(f)] = plan_.add(op, arrivals_[at(f)]);
    }
    node_rows_ = std::move(sums);
  }

  void send_to_sources_by_rail() {
    std::vector<std::vector<Dep>> at_forwarder(at(ranks()));
    for (Rank f = 0; f < ranks(); ++f)
      at_forwarder[at(f)] =
          program_.multiple_reduction ? std::vector<Dep>{{node_ops_[at(f)], On::stream}} : arrivals_[at(f)];
    for (auto& list : arrivals_) list.clear();
    for (const Op& op : dispatch_.ops()) {
      const bool is_bypass = is_phase(op, "bypass");
      if (!is_bypass && !is_phase(op, "rail")) continue;
      Op out = answer_op(is_bypass ? bypass_phase_ : rail_phase_, op, op.rows);
      if (items_) {
        out.rows = 0;
        for (size_t i = 0; i < dispatch_.items(op).size(); ++i) answer_rail_row(op, i, out);
        out = with_rows(out);
      } else {
        returned_rows_[at(op.src)] += op.rows;
      }
      arrivals_[at(op.src)].push_back({plan_.add(out, at_forwarder[at(op.dst)]), reduce_event()});
    }
  }

  void answer_rail_row(const Op& op, size_t i, Op& out) {
    const Item& item = dispatch_.items(op)[i];
    const auto add = [&](int32_t src_slot, int8_t lane) {
      const int32_t slot = returned_rows_[at(op.src)]++;
      const int32_t index = plan_.add_item({.src_slot = src_slot, .dst_slot = slot}, lane);
      if (out.rows++ == 0) out.first_item = index;
      addends_[at(op.src)].push_back({item.src_slot, lane, slot});
    };
    if (program_.multiple_reduction) {
      add(item.dst_slot, dispatch_.lanes(op)[i]);
      return;
    }
    const auto& waiting = node_addends_[at(op.dst)];
    auto it = std::lower_bound(waiting.begin(), waiting.end(), Addend{item.dst_slot, kFirstLane, 0});
    for (; it != waiting.end() && it->group == item.dst_slot; ++it) add(it->slot, it->lane);
  }

  On reduce_event() const { return streams_ ? On::stream : On::arrived; }

  /// Direct mode: rows for another node go through the registered send buffer.
  void stage_remote_rows() {
    stage_ops_.assign(at(ranks()), kNone);
    if (stage_phase_ == kNoPhase) return;
    std::vector<std::vector<int32_t>> slots(at(ranks()));
    std::vector<int32_t> counts(at(ranks()));
    std::vector<FinalRow> rows;
    for_each_last_hop([&](const Op& op) {
      if (!items_) {
        counts[at(op.dst)] += is_phase(op, "remote") ? op.rows : 0;
        return;
      }
      for (size_t i = 0; i < dispatch_.items(op).size(); ++i) {
        answers(op, i, rows);
        for (const FinalRow& row : rows)
          if (is_phase(op, "remote")) slots[at(op.dst)].push_back(row.row);
      }
    });
    landed_.assign(at(ranks()), 0);  // the puts count their local sums anew
    for (Rank d = 0; d < ranks(); ++d) {
      const int32_t count = items_ ? static_cast<int32_t>(slots[at(d)].size()) : counts[at(d)];
      if (count == 0) continue;
      Op op = row_op(plan_, stage_phase_, d, d, count);
      for (const int32_t slot : slots[at(d)]) {
        const int32_t item = plan_.add_item({.src_slot = slot, .dst_slot = slot});
        if (op.first_item == kNone) op.first_item = item;
      }
      stage_ops_[at(d)] = plan_.add(op, gate(d));
    }
  }

  void send_to_sources() {
    std::vector<FinalRow> rows;
    for_each_last_hop([&](const Op& op) {
      Op out = answer_op(is_phase(op, "remote") ? remote_phase_ : up_phase_, op, op.rows);
      if (items_) {
        out.rows = 0;
        for (size_t i = 0; i < dispatch_.items(op).size(); ++i) {
          answers(op, i, rows);
          for (const FinalRow& row : rows) {
            const int32_t slot = returned_rows_[at(op.src)]++;
            const int32_t item = plan_.add_item({.src_slot = row.row, .dst_slot = slot}, row.lane);
            if (out.rows++ == 0) out.first_item = item;
            addends_[at(op.src)].push_back({dispatch_.items(op)[i].src_slot, row.lane, slot});
          }
        }
        out = with_rows(out);
      } else {
        returned_rows_[at(op.src)] += op.rows;
      }
      const OpId id = out.phase == remote_phase_ ? plan_.add(out, {{stage_ops_[at(op.dst)], On::stream}})
                                                 : plan_.add(out, gate(op.dst));
      arrivals_[at(op.src)].push_back({id, reduce_event()});
    });
    if (low_latency_) return signal_sources();
    if (!streams_) flush();
  }

  void flush() {
    std::vector<std::vector<Dep>> sent(at(ranks()));
    for (OpId id = 0; id < static_cast<OpId>(plan_.ops().size()); ++id)
      if (plan_.ops()[at(id)].phase == up_phase_ || plan_.ops()[at(id)].phase == remote_phase_)
        sent[at(issuer(plan_.ops()[at(id)]))].push_back({id, On::sent});
    const auto flushed = add_barrier_ops(plan_, flush_phase_, false,
                                         [&](Rank r, std::vector<Dep>& deps) { deps.swap(sent[at(r)]); });
    for (Rank r = 0; r < ranks(); ++r) arrivals_[at(r)] = {{flushed[at(r)], On::arrived}};
  }

  /// Low latency: every rank tells every source that its rows are there, one flag per local expert.
  void signal_sources() {
    arrivals_ = add_signals(plan_, signal_phase_, up_phase_, shape_.local_experts());
    const auto arrived = add_wait_ops(plan_, arrived_phase_,
                                      [&](Rank r, std::vector<Dep>& deps) { deps.swap(arrivals_[at(r)]); });
    for (Rank r = 0; r < ranks(); ++r) arrivals_[at(r)] = {{arrived[at(r)], On::arrived}};
  }

  void sum_at_sources() {
    for (Rank s = 0; s < ranks(); ++s) {
      const int32_t tokens = shape_.tokens[at(s)];
      const int32_t biases = program_.num_biases * tokens;
      if (tokens == 0) continue;
      Op op = row_op(plan_, reduce_phase_, s, s, returned_rows_[at(s)] + biases);
      op.kind = OpKind::reduce;
      op.messages = tokens;
      if (items_ && op.rows > 0) op.first_item = add_source_items(s, tokens);
      plan_.add(op, arrivals_[at(s)]);
    }
  }

  int32_t add_source_items(Rank s, int32_t tokens) {
    auto& addends = addends_[at(s)];
    std::sort(addends.begin(), addends.end());
    int32_t first = kNone;
    size_t next = 0;
    const auto add = [&](Item item, int8_t lane) {
      const int32_t index = plan_.add_item(item, lane);
      if (first == kNone) first = index;
    };
    for (int32_t t = 0; t < tokens; ++t) {
      for (int32_t b = 0; b < program_.num_biases; ++b)
        add({.src_slot = returned_rows_[at(s)] + b * tokens + t, .dst_slot = t}, kFirstLane);
      for (; next < addends.size() && addends[next].group == t; ++next)
        add({.src_slot = addends[next].slot, .dst_slot = t}, addends[next].lane);
    }
    return first;
  }

  void add_regions() {
    const TokenLayout layout = combine_row_layout();
    const int64_t record = layout.record_bytes;
    const auto add = [&](std::string name, auto rows) {
      Region region{.name = std::move(name), .row_bytes = record, .layout = layout, .rows = {}};
      if (items_)
        for (Rank r = 0; r < ranks(); ++r) region.rows.push_back(rows(r));
      plan_.add_region(std::move(region));
    };
    const auto received = dispatch_.find_region("received");
    PLUMB_CHECK(received.has_value(), "the plan to reverse has no region 'received'");
    const auto expert_rows = [&](Rank r) { return dispatch_.regions()[*received].rows[at(r)]; };
    const auto tokens = [&](Rank r) { return int64_t{shape_.tokens[at(r)]}; };
    add("expert_out", expert_rows);
    add("partial", [&](Rank r) { return int64_t{local_sums_[at(r)]}; });
    add("send_back", [&](Rank r) { return sums_locally_ ? int64_t{local_sums_[at(r)]} : expert_rows(r); });
    add("returned_up", [&](Rank r) { return hybrid_ ? int64_t{up_rows_[at(r)]} : 0; });
    add("node_sum", [&](Rank r) { return node_rows_.empty() ? 0 : int64_t{node_rows_[at(r)]}; });
    add("returned", [&](Rank r) { return int64_t{returned_rows_[at(r)]}; });
    add("bias", [&](Rank r) { return program_.num_biases * tokens(r); });
    add("combined", tokens);
  }

  static constexpr RegionId kExpertOut = 0, kPartial = 1, kSendBack = 2, kReturnedUp = 3, kNodeSum = 4,
                            kReturned = 5, kBias = 6, kCombined = 7;
  static constexpr PhaseId kNoPhase = 255;
  static constexpr int8_t kFirstLane = -1;  // before every top-k position

  const Plan& dispatch_;
  const Shape& shape_;
  const Program& program_;
  const bool hybrid_;
  const bool streams_;  // V1: sums run while rows arrive
  const bool low_latency_;
  const bool sums_locally_;
  const bool items_;
  Plan plan_;
  PhaseId enter_phase_ = kNoPhase, local_phase_ = kNoPhase, stage_phase_ = kNoPhase, up_phase_ = kNoPhase,
          node_phase_ = kNoPhase, bypass_phase_ = kNoPhase, rail_phase_ = kNoPhase, remote_phase_ = kNoPhase,
          signal_phase_ = kNoPhase, arrived_phase_ = kNoPhase, flush_phase_ = kNoPhase,
          reduce_phase_ = kNoPhase;
  std::vector<OpId> enter_, local_ops_, stage_ops_, node_ops_;  // [ranks], kNone = no such op
  std::vector<std::vector<std::vector<FinalRow>>> final_;       // [rank][landing slot]
  std::vector<int32_t> landed_;                                 // [rank]: rows answered so far
  std::vector<std::vector<Addend>> addends_;                    // [source]
  std::vector<std::vector<Addend>> node_addends_;               // [forwarder], sorted
  std::vector<std::vector<Dep>> arrivals_;                      // [rank]: what its next step waits for
  std::vector<int32_t> returned_rows_, up_rows_, local_sums_, node_rows_;  // [rank]
};

}  // namespace

Plan reverse(const Plan& dispatch, const Shape& shape, const Program& program) {
  return CombineBuilder(dispatch, shape, program).build();
}

}  // namespace plumb

// The naive exchange over send/recv: counts first, then rows packed by destination and one message per pair.
// Phases: docs/plan.md.
#include <algorithm>

#include "model/error.h"
#include "model/plans/dispatch_rows.h"

namespace plumb {
namespace {

constexpr RegionId kInput = 0, kCountsOut = 1, kCountsIn = 2, kSend = 3, kReceive = 4, kReceived = 5;

size_t at(int64_t i) { return static_cast<size_t>(i); }

class AllToAllBuilder {
 public:
  explicit AllToAllBuilder(const BuildInput& input)
      : in_(input),
        record_(input.shape.dispatch_layout()),
        rows_(input),
        plan_(input.program, input.grouping),
        received_(at(input.shape.ranks)),
        expanded_(at(input.shape.ranks)),
        sent_rows_(at(input.shape.ranks)) {}

  Plan build() {
    add_phases();
    exchange_counts();
    std::vector<std::vector<Dep>> arrivals(at(in_.shape.ranks));
    for (Rank s = 0; s < in_.shape.ranks; ++s) send_rows_of(s, arrivals);
    if (in_.program.expand)
      for (Rank r = 0; r < in_.shape.ranks; ++r)
        add_copy_ops(plan_, r, rows_, in_, expanded_[at(r)], arrivals[at(r)]);
    else
      add_wait_ops(plan_, *plan_.find_phase("exchanged"),
                   [&](Rank r, std::vector<Dep>& deps) { deps.swap(arrivals[at(r)]); });
    add_regions();
    return std::move(plan_);
  }

 private:
  void add_phases() {
    const int64_t row = record_.record_bytes;
    counts_phase_ = plan_.add_phase({.name = "notify",
                                     .engine = Engine::sm,
                                     .row_bytes = notify_bytes(in_.shape.local_experts()),
                                     .from = kCountsOut,
                                     .to = kCountsIn});
    known_phase_ = plan_.add_phase({.name = "counts", .engine = Engine::host});  // sizes are host arguments
    pack_phase_ = plan_.add_phase(
        {.name = "pack", .engine = Engine::sm, .row_bytes = row, .from = kInput, .to = kSend});
    exchange_phase_ = plan_.add_phase({.name = "exchange",
                                       .engine = Engine::sm,
                                       .sms = in_.program.num_sms,
                                       .qps = in_.program.num_qps,
                                       .row_bytes = row,
                                       .from = kSend,
                                       .to = in_.program.expand ? kReceive : kReceived});
    if (in_.program.expand)
      add_copy_phases(
          plan_, in_,
          {.name = "copy", .engine = Engine::sm, .row_bytes = row, .from = kReceive, .to = kReceived});
    else
      plan_.add_phase({.name = "exchanged"});
  }

  void exchange_counts() {
    std::vector<std::vector<Dep>> arrivals(at(in_.shape.ranks));
    for (Rank s = 0; s < in_.shape.ranks; ++s)
      for (Rank d = 0; d < in_.shape.ranks; ++d) {
        Op op = row_op(plan_, counts_phase_, s, d, 1);
        if (in_.items) op.first_item = plan_.add_item({.src_slot = d, .dst_slot = s});
        arrivals[at(d)].push_back({plan_.add(op), On::arrived});
      }
    known_ = add_wait_ops(plan_, known_phase_,
                          [&](Rank r, std::vector<Dep>& deps) { deps.swap(arrivals[at(r)]); });
  }

  void send_rows_of(Rank s, std::vector<std::vector<Dep>>& arrivals) {
    std::vector<int32_t> table;
    std::vector<Copy> copies;
    in_.routing.rows(s, table);
    list_copies(in_.shape, table, copies);
    std::stable_sort(copies.begin(), copies.end(),
                     [](const Copy& a, const Copy& b) { return a.dst < b.dst; });
    sent_rows_[at(s)] = static_cast<int32_t>(copies.size());
    if (copies.empty()) return;
    Op pack = row_op(plan_, pack_phase_, s, s, static_cast<int32_t>(copies.size()));
    for (size_t i = 0; in_.items && i < copies.size(); ++i) {
      const int32_t item = plan_.add_item({.src_slot = copies[i].token, .dst_slot = static_cast<int32_t>(i)});
      if (i == 0) pack.first_item = item;
    }
    const OpId packed = plan_.add(pack);
    const auto topk = at(in_.shape.topk);
    for (size_t begin = 0; begin < copies.size();) {
      size_t end = begin;
      const Rank d = copies[begin].dst;
      while (end < copies.size() && copies[end].dst == d) ++end;
      Op op = row_op(plan_, exchange_phase_, s, d, static_cast<int32_t>(end - begin));
      op.messages = s == d ? 0 : 1;
      for (size_t i = begin; i < end; ++i) {
        const int32_t landing = received_[at(d)]++;
        const auto final_rows =
            rows_.next(copies[i], std::span(table).subspan(at(copies[i].token) * topk, topk));
        if (!in_.items) continue;
        const int32_t item =
            plan_.add_item({.src_slot = static_cast<int32_t>(i), .dst_slot = landing}, copies[i].lane);
        if (i == begin) op.first_item = item;
        for (const FinalRow& row : final_rows)
          if (in_.program.expand)
            expanded_[at(d)].push_back({{.src_slot = landing, .dst_slot = row.row}, row.lane});
      }
      arrivals[at(d)].push_back(
          {plan_.add(op, {{packed, On::arrived}, {known_[at(s)], On::arrived}}), On::arrived});
      begin = end;
    }
  }

  void add_regions() {
    const auto add = [&](std::string name, int64_t row_bytes, auto rows) {
      Region region{.name = std::move(name), .row_bytes = row_bytes, .layout = {}, .rows = {}};
      if (row_bytes == record_.record_bytes) region.layout = record_;
      if (in_.items)
        for (Rank r = 0; r < in_.shape.ranks; ++r) region.rows.push_back(rows(r));
      plan_.add_region(std::move(region));
    };
    const int64_t counts = notify_bytes(in_.shape.local_experts());
    const auto all = [&](Rank) { return int64_t{in_.shape.ranks}; };
    add("input", record_.record_bytes, [&](Rank r) { return int64_t{in_.shape.tokens[at(r)]}; });
    add("counts_out", counts, all);
    add("counts_in", counts, all);
    add("send", record_.record_bytes, [&](Rank r) { return int64_t{sent_rows_[at(r)]}; });
    add("receive", record_.record_bytes,
        [&](Rank r) { return in_.program.expand ? int64_t{received_[at(r)]} : 0; });
    add("received", record_.record_bytes, [&](Rank r) { return rows_.tensor_rows(r); });
  }

  const BuildInput& in_;
  const TokenLayout record_;
  FinalRows rows_;
  Plan plan_;
  PhaseId counts_phase_{}, known_phase_{}, pack_phase_{}, exchange_phase_{};
  std::vector<OpId> known_;                       // [ranks]
  std::vector<int32_t> received_;                 // [ranks]: rows so far
  std::vector<std::vector<LanedItem>> expanded_;  // [ranks]
  std::vector<int32_t> sent_rows_;                // [ranks]
};

}  // namespace

Plan build_all_to_all(const BuildInput& input) {
  if (input.program.placement != RowPlacement::staged)
    fail_usage("all_to_all packs and unpacks: placement must be staged");
  return AllToAllBuilder(input).build();
}

}  // namespace plumb

// Plan: appending with the checks of the edge rule, and the digest.
#include "model/plan.h"

#include <limits>

#include "model/error.h"

namespace plumb {
namespace {

constexpr int64_t kMaxEntries = std::numeric_limits<int32_t>::max();

void check_capacity(size_t size, const char* what) {
  if (static_cast<int64_t>(size) >= kMaxEntries)
    fail_usage("the plan has more than {} {}; build it for fewer ranks or coarsen it", kMaxEntries, what);
}

std::string describe(OpId id, const Op& op) {
  return fmt::format("op {} ({} {} -> {})", id, to_string(op.kind), op.src, op.dst);
}

bool is_rank_local(OpKind kind) { return kind != OpKind::put && kind != OpKind::get; }

/// Whether the rank that issues `later` can see event `on` of `earlier`.
bool is_visible(const Op& earlier, On on, const Op& later) {
  if (on == On::sent) return earlier.kind != OpKind::get && issuer(later) == issuer(earlier);
  return issuer(later) == target(earlier);
}

}  // namespace

PhaseId Plan::add_phase(Phase phase) {
  PLUMB_CHECK(phases_.size() < 255, "phase '{}' is one too many", phase.name);
  PLUMB_CHECK(!find_phase(phase.name), "phase '{}' exists twice", phase.name);
  phases_.push_back(std::move(phase));
  return static_cast<PhaseId>(phases_.size() - 1);
}

RegionId Plan::add_region(Region region) {
  PLUMB_CHECK(regions_.size() < kNoRegion, "region '{}' is one too many", region.name);
  PLUMB_CHECK(!find_region(region.name), "region '{}' exists twice", region.name);
  regions_.push_back(std::move(region));
  return static_cast<RegionId>(regions_.size() - 1);
}

int32_t Plan::add_barrier(Barrier barrier) {
  barriers_.push_back(barrier);
  return static_cast<int32_t>(barriers_.size() - 1);
}

OpId Plan::add(const Op& op, std::span<const Dep> deps) {
  const auto id = static_cast<OpId>(ops_.size());
  check_capacity(ops_.size(), "ops");
  check_capacity(deps_.size() + deps.size(), "edges");
  PLUMB_CHECK(op.phase < phases_.size(), "{} names phase {} of {}", describe(id, op), op.phase,
              phases_.size());
  PLUMB_CHECK(op.src >= 0 && op.src < grouping_.ranks && op.dst >= 0 && op.dst < grouping_.ranks,
              "{} leaves ranks 0 .. {}", describe(id, op), grouping_.ranks - 1);
  PLUMB_CHECK(op.bytes >= 0 && op.messages >= 0 && op.rows >= 0, "{} has a negative size", describe(id, op));
  const bool is_self = op.src == op.dst;
  PLUMB_CHECK(is_rank_local(op.kind) ? is_self && op.link == Link::local
                                     : op.link != Link::local && (!is_self || ranks_per_op_ > 1),
              "{} does not fit its link {}", describe(id, op), to_string(op.link));
  if (op.kind == OpKind::barrier)
    PLUMB_CHECK(op.rows < static_cast<int32_t>(barriers_.size()), "{} joins barrier {} of {}",
                describe(id, op), op.rows, barriers_.size());
  for (const Dep& dep : deps) {
    PLUMB_CHECK(dep.op >= 0 && dep.op < id, "{} waits for op {}, which is not earlier", describe(id, op),
                dep.op);
    PLUMB_CHECK(is_visible(ops_[dep.op], dep.on, op), "{} cannot see '{}' of {}", describe(id, op),
                to_string(dep.on), describe(dep.op, ops_[dep.op]));
  }
  ops_.push_back(op);
  deps_.insert(deps_.end(), deps.begin(), deps.end());
  dep_begin_.push_back(static_cast<int32_t>(deps_.size()));
  return id;
}

int32_t Plan::add_item(Item item, int8_t lane) {
  check_capacity(items_.size(), "rows");
  items_.push_back(item);
  lanes_.push_back(lane);
  return static_cast<int32_t>(items_.size() - 1);
}

void Plan::set_ranks_per_op(int32_t ranks) {
  PLUMB_CHECK(ops_.empty() && ranks >= 1, "{} ranks per op, {} ops exist", ranks, ops_.size());
  ranks_per_op_ = ranks;
}

void Plan::reserve(int64_t ops, int64_t deps, int64_t items) {
  ops_.reserve(static_cast<size_t>(ops));
  dep_begin_.reserve(static_cast<size_t>(ops + 1));
  deps_.reserve(static_cast<size_t>(deps));
  items_.reserve(static_cast<size_t>(items));
  lanes_.reserve(static_cast<size_t>(items));
}

std::optional<PhaseId> Plan::find_phase(std::string_view name) const {
  for (size_t i = 0; i < phases_.size(); ++i)
    if (phases_[i].name == name) return static_cast<PhaseId>(i);
  return std::nullopt;
}

std::optional<RegionId> Plan::find_region(std::string_view name) const {
  for (size_t i = 0; i < regions_.size(); ++i)
    if (regions_[i].name == name) return static_cast<RegionId>(i);
  return std::nullopt;
}

Digest Plan::digest() const {
  DigestBuilder digest;
  digest.add(to_string(program_)).add(int64_t{grouping_.ranks}).add(int64_t{grouping_.scaleup});
  digest.add(int64_t{ranks_per_op_});
  for (const Phase& p : phases_) {
    digest.add(p.name).add(static_cast<int64_t>(p.engine)).add(int64_t{p.sms}).add(int64_t{p.qps});
    digest.add(int64_t{p.chunk_rows}).add(p.row_bytes).add(p.duration.value);
  }
  for (const Barrier& b : barriers_) digest.add(static_cast<int64_t>(b.link)).add(int64_t{b.members});
  std::vector<int32_t> words;
  for (OpId id = 0; id < static_cast<OpId>(ops_.size()); ++id) {
    const Op& op = ops_[id];
    words.assign({static_cast<int32_t>(op.kind), static_cast<int32_t>(op.link), op.phase, op.traffic_class,
                  op.src, op.dst, op.messages, op.rows, static_cast<int32_t>(op.bytes & 0xffffffff),
                  static_cast<int32_t>(op.bytes >> 32)});
    for (const Dep& dep : deps(id)) {
      words.push_back(dep.op);
      words.push_back(static_cast<int32_t>(dep.on));
    }
    digest.add(words);
  }
  return digest.finish();
}

int64_t Plan::memory_bytes() const {
  return static_cast<int64_t>(ops_.capacity() * sizeof(Op) + deps_.capacity() * sizeof(Dep) +
                              dep_begin_.capacity() * sizeof(int32_t) + items_.capacity() * sizeof(Item) +
                              lanes_.capacity());
}

}  // namespace plumb

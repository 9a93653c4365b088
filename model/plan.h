// The plan: what moves, from where to where, after what. Plain data, 32 bytes an op; one op is all traffic of
// one (source, destination, phase), never one token.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/digest.h"
#include "model/ids.h"
#include "model/layout.h"
#include "model/program.h"
#include "model/units.h"

namespace plumb {

enum class OpKind : uint8_t {
  put,      // src writes rows into dst's memory
  get,      // dst reads rows from src's memory
  copy,     // src == dst: rows move inside a rank
  reduce,   // src == dst: groups of rows are summed in order in fp32 and rounded once
  compute,  // src == dst: a given time of work (the experts)
  wait,     // src == dst: joins its edges
  barrier,  // src == dst: one per member of a team; joined by its row of the barrier table
};

enum class Link : uint8_t { local, scale_up, scale_out };  // class of path; a fabric resolves it to links

/// Which event of an earlier op an edge waits for. `sent`: the source may be reused (seen by the op's
/// issuer); `arrived`: all data is settled at the destination; `stream`: like arrived, chunk by chunk.
enum class On : uint8_t { sent, arrived, stream };

/// What drives a phase on a rank; host: the CPU polls and launches what follows.
enum class Engine : uint8_t { none, sm, copy_engine, nic, host };

using OpId = int32_t;
using PhaseId = uint8_t;
using RegionId = uint8_t;
inline constexpr RegionId kNoRegion = 255;

struct Op {
  OpKind kind = OpKind::put;
  Link link = Link::local;
  PhaseId phase = 0;
  uint8_t traffic_class = 0;
  Rank src = 0;
  Rank dst = 0;
  int32_t messages = 0;  // wire messages folded into this op; a reduce: rows written
  int32_t rows = 0;      // rows moved; a reduce: rows read; a barrier: index of its row in the barrier table
  int32_t first_item = kNone;  // its rows in the item table, kNone when not materialised
  int64_t bytes = 0;           // payload and metadata of all its rows
  bool operator==(const Op&) const = default;
};
static_assert(sizeof(Op) == 32);

/// The rank that issues an op: src of a put, dst of a get, the rank itself otherwise.
constexpr Rank issuer(const Op& op) { return op.kind == OpKind::get ? op.dst : op.src; }
/// The rank at which an op's data settles.
constexpr Rank target(const Op& op) { return op.dst; }

struct Dep {
  OpId op = 0;
  On on = On::arrived;
  bool operator==(const Dep&) const = default;
};

/// One row of one op. src_slot kNone = zeros. Items of a reduce stand in order of summation, equal dst_slot
/// adjacent.
struct Item {
  int32_t src_slot = 0;
  int32_t dst_slot = 0;
};

/// A step of the program, the same on all ranks.
struct Phase {
  std::string name;
  Engine engine = Engine::none;
  int32_t sms = 0;                 // SMs of a rank that drive it, 0 = all of the device
  int32_t qps = 0;                 // queue pairs it is spread over
  int32_t chunk_rows = 0;          // granularity of `stream`
  int64_t row_bytes = 0;           // bytes of one row of its ops
  RegionId from = kNoRegion;       // where rows are read
  RegionId also_from = kNoRegion;  // its slots follow those of `from`: the biases of the last sum
  RegionId to = kNoRegion;         // where rows are written
  Seconds duration{};              // of a compute op
  bool operator==(const Phase&) const = default;
};

/// A memory area that every rank owns, as an array of equal rows. Well-known names: "input", "received",
/// "expert_out", "combined", "bias", "counts_out", "counts_in".
struct Region {
  std::string name;
  int64_t row_bytes = 0;
  TokenLayout layout{};       // what a row holds when it is a token record; all zero otherwise
  std::vector<int64_t> rows;  // [ranks]; empty when items are not materialised
};

/// A synchronisation of a team of ranks: all members' barrier ops with this index end together.
struct Barrier {
  Link link = Link::scale_up;  // slowest class of path inside the team
  int32_t members = 0;
};

/// Ops in topological order with edges to earlier ops. An edge may only use an event that hardware can see at
/// the rank that issues the waiting op; add() refuses any other.
class Plan {
 public:
  Plan(Program program, Grouping grouping) : program_(std::move(program)), grouping_(grouping) {}

  /// Building. add() throws LogicError for an edge on a later op, an invisible event, a phase or rank that
  /// does not exist, or negative sizes; the message names both ops. At most 2^31 - 1 ops, edges and items:
  /// Error(usage) beyond.
  PhaseId add_phase(Phase phase);
  RegionId add_region(Region region);
  int32_t add_barrier(Barrier barrier);
  OpId add(const Op& op, std::span<const Dep> deps = {});
  OpId add(const Op& op, std::initializer_list<Dep> deps) {
    return add(op, std::span(deps.begin(), deps.size()));
  }
  /// Appends a row to the item table; `lane` is the highest top-k position behind the row, the order of
  /// summation when branches merge in combine. Returns its index.
  int32_t add_item(Item item, int8_t lane = 0);
  /// Declares that each op stands for the traffic of groups of this many adjacent ranks, named by their first
  /// ranks (coarsen); a put may then start and end at the same name.
  void set_ranks_per_op(int32_t ranks);
  void reserve(int64_t ops, int64_t deps, int64_t items);

  std::span<const Op> ops() const { return ops_; }
  std::span<const Dep> deps(OpId id) const {
    return std::span(deps_).subspan(dep_begin_[id], dep_begin_[id + 1] - dep_begin_[id]);
  }
  std::span<const Item> items(const Op& op) const {
    return op.first_item < 0 ? std::span<const Item>() : std::span(items_).subspan(op.first_item, op.rows);
  }
  std::span<const int8_t> lanes(const Op& op) const {
    return op.first_item < 0 ? std::span<const int8_t>() : std::span(lanes_).subspan(op.first_item, op.rows);
  }
  const std::vector<Phase>& phases() const { return phases_; }
  const std::vector<Region>& regions() const { return regions_; }
  const std::vector<Barrier>& barriers() const { return barriers_; }
  const Program& program() const { return program_; }
  const Grouping& grouping() const { return grouping_; }
  int32_t ranks_per_op() const { return ranks_per_op_; }
  /// Whether rows are materialised; a plan of an empty batch may have no item and still has region sizes.
  bool has_items() const { return !items_.empty() || (!regions_.empty() && !regions_.front().rows.empty()); }
  /// Index of the phase or region of that name, or nothing.
  std::optional<PhaseId> find_phase(std::string_view name) const;
  std::optional<RegionId> find_region(std::string_view name) const;

  /// Of program, grouping, phases, barriers, ops and edges (not of items, which follow from the routing);
  /// equal plans have equal digests on every machine.
  Digest digest() const;

  /// Bytes of memory held.
  int64_t memory_bytes() const;

 private:
  Program program_;
  Grouping grouping_;
  int32_t ranks_per_op_ = 1;
  std::vector<Phase> phases_;
  std::vector<Region> regions_;
  std::vector<Barrier> barriers_;
  std::vector<Op> ops_;
  std::vector<Dep> deps_;
  std::vector<int32_t> dep_begin_ = {0};
  std::vector<Item> items_;
  std::vector<int8_t> lanes_;
};

std::string_view to_string(OpKind kind);
std::string_view to_string(Link link);
std::string_view to_string(On on);
std::string_view to_string(Engine engine);

/// Text form, docs/plan.md: header lines (program, grouping, phases, barriers), then one line per op:
/// "op 93 put scale_up class 0 phase forward 11 -> 13 messages 12 rows 12 bytes 89856 on 17:stream".
std::string to_text(const Plan& plan);
/// Graphviz form of small plans. Throws Error(usage) above 2000 ops.
std::string to_dot(const Plan& plan);

}  // namespace plumb

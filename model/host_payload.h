// What the ranks hold before the first op: tokens, gate weights, counts, biases, expert outputs, tables. All
// of it follows from shape, routing and seed, so that a result can be checked against it byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/host_memory.h"
#include "model/plan.h"
#include "model/routing.h"
#include "model/shape.h"

namespace plumb {

/// What the experts compute from a row x of their rank, in fp32 and rounded once to bf16. The sums go over
/// the experts of the rank that the token chose, by ascending top-k position; an expanded row has one.
enum class ExpertFunction : uint8_t {
  identity,  // x
  scaled,    // sum of (e + 1) x, e = global expert id
  weighted,  // sum of w_k x
};

std::string_view to_string(ExpertFunction function);

/// Own values instead of the random ones; an empty function keeps those.
struct HostValues {
  /// Fills x of one token: float [hidden], rounded to bf16 or quantised to fp8 afterwards.
  std::function<void(Rank, int32_t token, std::span<float>)> x;
  /// Gate weight of a choice that is not masked.
  std::function<float(Rank, int32_t token, int32_t position)> weight;
  /// Fills one row of bias 0 or 1: float [hidden], rounded to bf16 afterwards.
  std::function<void(int32_t index, Rank, int32_t token, std::span<float>)> bias;
};

/// One batch as the ranks hold it before a dispatch. Random values: x and biases are multiples of 2^-15 in
/// [-1, 1) before rounding, weights lie in [0, 1). Masked choices have the weight NaN.
class HostBatch {
 public:
  HostBatch(const Shape& shape, const Routing& routing, uint64_t seed, HostValues values);

  const Shape& shape() const { return shape_; }
  uint64_t seed() const { return seed_; }
  /// Row of the routing table: int32 [topk].
  std::span<const int32_t> choices(Rank rank, int32_t token) const;
  float weight(Rank rank, int32_t token, int32_t position) const;
  /// x before rounding: float [hidden].
  void x(Rank rank, int32_t token, std::span<float> out) const;
  /// bf16 values of a bias row: float [hidden].
  void bias(int32_t index, Rank rank, int32_t token, std::span<float> out) const;
  /// Writes one record of `format`: x, scales, and whatever metadata the format has. The
  /// weight of a masked choice is written as 0: nobody reads the one that the caller passed.
  void write_row(const RowFormat& format, Rank rank, int32_t token, std::span<std::byte> row) const;
  /// Fills a row that is no record, by (rank, slot): any bytes, or bf16 values where rows will be summed.
  void write_raw(Rank rank, int64_t slot, bool is_bf16, std::span<std::byte> row) const;

 private:
  void fill_random(uint64_t index, std::span<float> out) const;

  Shape shape_;
  uint64_t seed_;
  HostValues values_;
  std::vector<std::vector<int32_t>> table_;  // [ranks][tokens * topk]
  std::vector<std::vector<float>> weights_;  // [ranks][tokens * topk]
};

/// One row of the tensor that a dispatch delivers. source: source rank * T_max + token, kNone for a padding
/// row. position: top-k position behind an expanded row, kNone in the plain layout.
struct Arrival {
  int32_t source = kNone;
  int8_t position = kNone;
  bool operator==(const Arrival&) const = default;
};

/// Which rows a dispatch delivers.
struct ReceivedLayout {
  bool expand = false;
  int32_t alignment = 1;  // of the groups of the expanded layout
};
/// As the plan's program asks for; low latency is expanded without alignment.
ReceivedLayout received_layout(const Plan& plan, const Shape& shape);

/// Rows of each rank in the canonical order, by ascending source. Plain layout: one per (token, rank).
/// Expanded: one per (token, local expert), grouped by expert, each group from a multiple of the alignment.
std::vector<std::vector<Arrival>> canonical_arrivals(const HostBatch& batch, ReceivedLayout layout);

/// Decodes the stored hidden elements of a row; fp8 with its scales. out: float [format.elements()].
void decode_hidden(const RowFormat& format, std::span<const std::byte> row, std::span<float> out);
/// Metadata of a row by its format; the part must be there.
int32_t load_id(const RowFormat& format, std::span<const std::byte> row, int32_t position);
float load_weight(const RowFormat& format, std::span<const std::byte> row, int32_t position);
int32_t load_source(const RowFormat& format, std::span<const std::byte> row);

/// A received row and what its experts are to do with it.
struct ExpertCall {
  const RowFormat& in;
  std::span<const std::byte> row;
  Rank rank;
  int32_t position;  // of the one expert of an expanded row; kNone: all of this rank
  ExpertFunction function;
};
/// Writes the combine record that the experts make of a row.
void run_expert(const HostBatch& batch, const ExpertCall& call, const RowFormat& out,
                std::span<std::byte> out_row);

/// Fills every region that the plan reads and never writes, and marks its rows as written.
void fill_initial(const Plan& plan, const HostBatch& batch, ExpertFunction function, HostMemory& memory);

}  // namespace plumb

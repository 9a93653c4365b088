// A problem for the host executor, given or random, and the decoding of its rows: shared by the tests of the
// executor and of the plans.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "model/host.h"
#include "model/plans/builders.h"
#include "tests/model/brute_force.h"

namespace plumb::test {

/// Everything a run needs; `table` holds the rows of all ranks one after another.
struct HostCase {
  Shape shape;
  std::vector<int32_t> table;
  Program program;
  int32_t scaleup = 1;
  uint64_t seed = 1;
  ExpertFunction expert = ExpertFunction::identity;
  HostValues values;
  HostOptions options;

  Routing routing() const { return Routing::from_table(shape, table); }
  Plan plan() const {
    const Routing choices = routing();
    const Grouping grouping{shape.ranks, scaleup};
    return build_plan(
        {.shape = shape, .routing = choices, .program = program, .grouping = grouping, .items = true});
  }
  HostExecutor executor() const {
    const Routing choices = routing();
    return HostExecutor({.shape = shape,
                         .routing = choices,
                         .seed = seed,
                         .expert = expert,
                         .values = values,
                         .options = options});
  }
  brute::Table rows() const { return brute::table_of(shape, routing()); }
};

/// Numbers in [0, bound) from an engine that is the same everywhere.
class Dice {
 public:
  explicit Dice(uint32_t seed) : engine_(seed) {}
  int32_t below(int32_t bound) { return static_cast<int32_t>(engine_() % static_cast<uint32_t>(bound)); }
  bool coin() { return below(2) == 1; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int32_t>(values.size()))];
  }

 private:
  std::mt19937 engine_;
};

/// Distinct experts per row; each choice masked with probability masked_percent / 100.
inline std::vector<int32_t> random_table(const Shape& shape, int32_t masked_percent, Dice& dice) {
  std::vector<int32_t> table;
  for (int64_t i = 0; i < shape.total_tokens(); ++i) {
    std::set<int32_t> used;
    while (static_cast<int32_t>(used.size()) < shape.topk) {
      const int32_t e = dice.below(shape.experts);
      if (!used.insert(e).second) continue;
      table.push_back(dice.below(100) < masked_percent ? kNone : e);
    }
  }
  return table;
}

/// A small random problem of that kind: 1 to 12 ranks on 1 to 4 nodes, ragged tokens, masks, all formats.
inline HostCase random_case(ProgramKind kind, uint32_t seed) {
  Dice dice(seed);
  HostCase out;
  const int32_t nodes = 1 + dice.below(4);
  out.scaleup = 1 + dice.below(12 / nodes);
  Shape& shape = out.shape;
  shape.ranks = nodes * out.scaleup;
  shape.experts = shape.ranks * (1 + dice.below(4));
  shape.topk = 1 + dice.below(std::min(10, shape.experts));
  shape.hidden = 16 * (1 + dice.below(2));
  shape.max_tokens = 1 + dice.below(5);
  for (int32_t r = 0; r < shape.ranks; ++r) shape.tokens.push_back(dice.below(shape.max_tokens + 1));
  shape.dispatch_type = dice.pick({DType::bf16, DType::fp8_e4m3});
  shape.scale_format = dice.pick({ScaleFormat::fp32, ScaleFormat::ue8m0});
  shape.scale_block = dice.pick({4, 16, 128});
  shape.alignment = dice.pick({1, 2, 3, 16, 128});
  out.table = random_table(shape, dice.pick({0, 0, 20, 100}), dice);
  out.seed = seed;
  out.expert = dice.pick({ExpertFunction::identity, ExpertFunction::scaled, ExpertFunction::weighted});

  Program& program = out.program;
  program.kind = kind;
  const bool is_v2 =
      kind == ProgramKind::dispatch || kind == ProgramKind::combine || kind == ProgramKind::round_trip;
  if (is_v2) {
    program.mode = dice.pick({Mode::direct, Mode::hybrid});
    program.placement = dice.pick({RowPlacement::staged, RowPlacement::direct});
    program.cached = dice.coin();
    program.host_sync = dice.coin() && !program.cached;
    program.multiple_reduction = dice.coin();
  }
  if (is_v2 || kind == ProgramKind::all_to_all) {
    program.expand = dice.coin();
    program.zero_padding = program.expand && dice.coin();
  }
  program.num_biases = dice.below(3);
  if (is_v2) program.num_sms = dice.pick({0, 16, 64});  // from 48 on expanded copies follow their rows
  return out;
}

/// e4m3 by its definition: sign, exponent of bias 7, 3 mantissa bits, subnormals below 2^-6.
inline float decode_e4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const auto mantissa = static_cast<float>(code & 7);
  const float value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
  return (code & 0x80) != 0 ? -value : value;
}

/// One element of a dispatched row as the experts see it, from the bytes of the record.
inline float element(const Shape& shape, std::span<const std::byte> row, int32_t column) {
  const auto load = [&]<class T>(int64_t offset, T) {
    T value;
    std::memcpy(&value, row.data() + offset, sizeof value);
    return value;
  };
  if (shape.dispatch_type == DType::bf16)
    return std::bit_cast<float>(uint32_t{load(2 * int64_t{column}, uint16_t{})} << 16);
  const int32_t block = column / shape.scale_block;
  const int64_t scales = (shape.hidden + 31) / 32 * 32;
  const float scale = shape.scale_format == ScaleFormat::fp32
                          ? load(scales + 4 * block, float{})
                          : std::ldexp(1.0f, load(scales + block, uint8_t{}) - 127);
  return decode_e4m3(load(int64_t{column}, uint8_t{})) * scale;
}

/// x as the records of a dispatch of this batch hold it, decoded here.
inline auto record_elements(const HostCase& c, const HostBatch& batch) {
  const RowFormat format = record_format(c.shape, c.shape.dispatch_layout(), 0);
  return [&c, &batch, format, rank = int32_t{-1}, token = int32_t{-1},
          row = std::vector<std::byte>(static_cast<size_t>(format.row_bytes))](int32_t r, int32_t t,
                                                                               int32_t h) mutable {
    if (r != rank || t != token) batch.write_row(format, r, t, row);
    rank = r;
    token = t;
    return element(c.shape, row, h);
  };
}

}  // namespace plumb::test

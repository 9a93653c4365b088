// Which communication program with which options: all that a plan builder or a GPU launch needs beside Shape
// and Routing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/units.h"

namespace plumb {

enum class ProgramKind : uint8_t {
  dispatch,     // tokens to the ranks of their experts (DeepEP V2 semantics)
  combine,      // expert outputs back, summed
  round_trip,   // dispatch, expert, combine in one plan
  all_to_all,   // naive two-phase exchange: counts, then one packed message per pair (NCCL send/recv)
  v1_dispatch,  // DeepEP V1 normal kernels: channels, two hops, receiver copies
  v1_combine,
  low_latency_dispatch,  // DeepEP V1 low latency: one message per selection, worst-case slots, no notify
  low_latency_combine,
  send_recv,  // pipeline parallel: to the next rank of a ring
  all_gather,
  reduce_scatter,
  engram,      // rows of a table spread over the ranks, fetched by id
  background,  // traffic of others: incast, permutation, all-to-all
};

enum class Mode : uint8_t { direct, hybrid };  // one hop, or rail hop + scale-up hop

/// Where dispatched rows land: in a receive area, copied out afterwards, or in the final tensor at once.
enum class RowPlacement : uint8_t { staged, direct };

enum class Pattern : uint8_t { incast, permutation, all_to_all };  // of background traffic

struct Program {
  ProgramKind kind = ProgramKind::dispatch;
  Mode mode = Mode::direct;
  RowPlacement placement = RowPlacement::staged;
  bool cached = false;        // the routing is known from an earlier call: no notify
  bool host_sync = false;     // the CPU reads the counts before the last step (exact allocation)
  bool expand = false;        // one output row per (token, local expert), grouped by expert
  bool zero_padding = false;  // of alignment gaps; needs expand
  bool multiple_reduction =
      true;                   // combine sums at each stage; false: all copies travel, one sum at the source
  int32_t num_biases = 0;     // 0..2, added first in the last sum of combine
  bool rdma_only = false;     // low latency: use the scale-out network inside a node too
  int32_t num_sms = 0;        // 0 = from the SM model
  int32_t num_qps = 0;        // 0 = from the QP model
  int32_t chunk_rows = 6;     // rows per published chunk of a streamed hop
  uint8_t traffic_class = 0;  // service level of its traffic
  Bytes message{};            // send_recv, all_gather, reduce_scatter, background: bytes per rank or pair
  Pattern pattern = Pattern::all_to_all;  // background
  int32_t fetches = 0;                    // engram: rows fetched per token
  int64_t table_rows = 0;                 // engram: rows of the whole table, spread evenly
  uint64_t seed = 1;                      // engram ids, background permutation

  bool operator==(const Program&) const = default;
};

std::string_view to_string(ProgramKind kind);
std::string_view to_string(Mode mode);
std::string_view to_string(RowPlacement placement);
std::string_view to_string(Pattern pattern);

/// One line, "kind=dispatch mode=hybrid ...", every field that differs from its default; part of the plan's
/// digest.
std::string to_string(const Program& program);

/// Throws Error(usage) for options that contradict each other (zero padding without expand, more than two
/// biases ...).
void validate(const Program& program);

}  // namespace plumb

// Records of a plan that is being played; internal to PlanPlayer.
#pragma once

#include <cstdint>

#include "model/plan.h"
#include "sim/time.h"

namespace plumb::sim {

/// Dates and bytes of one rank in one phase.
struct PhaseUse {
  Ps begin = kNever;
  Ps end = -1;
  int64_t messages = 0;  // issued by the rank, and landed
  int64_t bytes = 0;
};

/// What a rank has that works on chunks one after the other.
enum class EngineKind : uint8_t { sm, copy_engine, memory, nic, feed };  // feed: of scale-up links by SMs
inline constexpr size_t kEngines = 5;

inline constexpr OpId kEnd = -1;  // of a list
inline constexpr OpId kNotListed = -2;
inline constexpr int32_t kNoStream = -1;

/// An op moves in chunks: of the phase's chunk_rows, or of 64 KiB where a phase has none. Counts of chunks:
/// released >= started >= issued >= pulled >= sent, arrived.
struct OpState {
  int32_t waiting = 0;  // edges that have not fired, streams not counted
  int32_t chunks = 1;
  int32_t released = 0;  // by its streams
  int32_t started = 0;   // at its engine
  int32_t issued = 0;    // past all engines
  int32_t pulled = 0;    // by the network
  int32_t sent = 0;
  int32_t arrived = 0;
  int32_t stream = kNoStream;
  OpId next_at_rank = kNotListed;  // in a ring of an engine, at a gate or in a barrier
  OpId next_at_nic = kNotListed;
};
struct Stream {
  int64_t total = 0;
  int64_t arrived = 0;
  int64_t rows = 0;  // of the ops that feed it
};
struct Ring {
  OpId first = kEnd;
  OpId last = kEnd;
};
struct EngineState {
  OpId current = kEnd;
  uint16_t turn = 0;    // the pipeline served last
  uint32_t served = 0;  // chunks
  bool is_idle = true;
  Ps free_at = 0;  // as a second stage behind another engine
  Ps worked = 0;
};
enum class Gate : uint8_t { closed, opening, open };
struct BarrierState {
  int32_t arrived = 0;
  OpId first = kEnd;
};
struct Running {  // a compute op
  OpId op = 0;
  double left = 0;  // seconds at full share
  double share = 0;
  Ps since = 0;
};
enum class Action : uint8_t {
  open_gate,
  engine_done,
  issue,
  request,
  landed,
  end_barrier,
  end_compute,
  rank_event
};
/// What is to be done at a date.
struct Entry {
  Action action{};
  int32_t a = 0;
  int32_t b = 0;
  uint32_t next = kNil;
};

}  // namespace plumb::sim

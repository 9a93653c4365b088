// How the interpreter cuts ops into chunks, so that a follower over a `stream` edge may do a chunk as soon as
// the rows that it reads have landed. Needs no GPU.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "model/plan.h"

namespace plumb::hw {

/// Of a follower's chunk: the whole earlier op must be done.
inline constexpr int32_t kWholeOp = std::numeric_limits<int32_t>::max();

/// What an op reads and writes, by pieces that a block does whole: an item (put, get, copy), a row of sums
/// (reduce), a token (compute).
struct OpPieces {
  struct Row {
    RegionId region = kNoRegion;
    int32_t slot = 0;  // on the op's source rank
  };
  std::vector<Row> reads;         // in order of pieces
  std::vector<int64_t> read_end;  // [pieces] behind the reads of each
  std::vector<int32_t> writes;    // [pieces] slot of the phase's `to` on the op's target rank

  void add(int32_t write) {
    writes.push_back(write);
    read_end.push_back(static_cast<int64_t>(reads.size()));
  }
};

struct OpChunks {
  int32_t pieces = 0;          // of a chunk; the last has the rest
  int32_t chunks = 1;          // at least one, also of an op without pieces
  std::vector<OpId> streams;   // the earlier ops that it follows chunk by chunk, in order of its edges
  std::vector<int32_t> needs;  // [chunks][streams] pieces of that op that must have landed, or kWholeOp
};

/// Goes through the ops of a plan in order and remembers who wrote and read each row.
class StreamChunks {
 public:
  explicit StreamChunks(const Plan& plan);

  /// Chunks of the next op, whose pieces these are. A chunk holds the phase's chunk_rows, all of the op where
  /// the phase has none or no stream edge touches the op. A chunk needs of each streamed op the pieces whose
  /// rows it reads, and those before them; it needs the whole of all streamed ops when it reads a row of
  /// another op that no other edge covers, or writes a row that an earlier op read or wrote; the last chunk
  /// needs them whole, so that the end of an op still means the end of all before it. An edge along which no
  /// row is read is `arrived`.
  OpChunks add(const OpPieces& pieces);

 private:
  struct Writer {
    OpId op = kNone;
    int32_t piece = 0;
  };
  struct RowUse {
    Writer writer;
    bool is_read = false;
  };
  RowUse& use(RegionId region, Rank rank, int32_t slot);
  std::vector<int32_t> needs_of(OpId id, const OpPieces& pieces, int64_t piece, OpChunks& chunks);
  void remember(OpId id, const OpPieces& pieces);
  int32_t published(OpId op, int32_t pieces) const;

  const Plan& plan_;
  OpId next_ = 0;
  std::vector<bool> is_followed_;          // [ops] over a stream edge
  std::vector<std::vector<RowUse>> uses_;  // [regions * ranks][slots]
  std::vector<int32_t> chunk_pieces_;      // [ops] added
  std::vector<int32_t> num_pieces_;        // likewise
};

}  // namespace plumb::hw

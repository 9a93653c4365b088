// Needs of chunks from who wrote which row.
#include "hw/stream_chunks.h"

#include <algorithm>

#include "model/error.h"
#include "model/layout.h"

namespace plumb::hw {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

StreamChunks::StreamChunks(const Plan& plan)
    : plan_(plan), is_followed_(plan.ops().size()), uses_(plan.regions().size() * at(plan.grouping().ranks)) {
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id)
    for (const Dep& dep : plan.deps(id))
      if (dep.on == On::stream) is_followed_[at(dep.op)] = true;
}

StreamChunks::RowUse& StreamChunks::use(RegionId region, Rank rank, int32_t slot) {
  auto& rows = uses_[at(int64_t{region} * plan_.grouping().ranks + rank)];
  if (at(slot) >= rows.size()) rows.resize(at(slot) + 1);
  return rows[at(slot)];
}

/// What a follower must ask for to know that `pieces` pieces have landed: the last chunk is told by the op's
/// end.
int32_t StreamChunks::published(OpId op, int32_t pieces) const {
  if (pieces == 0) return 0;
  const int32_t chunk = chunk_pieces_[at(op)];
  const int32_t last_begin = (std::max(1, num_pieces_[at(op)]) - 1) / chunk * chunk;
  return pieces > last_begin ? kWholeOp : pieces;
}

/// Needs of one piece, [streams].
std::vector<int32_t> StreamChunks::needs_of(OpId id, const OpPieces& pieces, int64_t piece,
                                            OpChunks& chunks) {
  const Op& op = plan_.ops()[at(id)];
  std::vector<int32_t> needs(chunks.streams.size());
  bool needs_all = false;
  const auto is_covered = [&](OpId writer) {
    return std::ranges::any_of(plan_.deps(id),
                               [&](const Dep& dep) { return dep.op == writer && dep.on != On::stream; });
  };
  const int64_t first = piece == 0 ? 0 : pieces.read_end[at(piece - 1)];
  for (int64_t i = first; i < pieces.read_end[at(piece)]; ++i) {
    const OpPieces::Row& row = pieces.reads[at(i)];
    const Writer writer = use(row.region, op.src, row.slot).writer;
    if (writer.op == kNone || is_covered(writer.op)) continue;
    const auto found = std::ranges::find(chunks.streams, writer.op);
    if (found == chunks.streams.end()) {
      needs_all = true;
      continue;
    }
    int32_t& need = needs[at(found - chunks.streams.begin())];
    need = std::max(need, writer.piece + 1);
  }
  const RowUse& target = use(plan_.phases()[op.phase].to, op.dst, pieces.writes[at(piece)]);
  needs_all |= target.is_read || (target.writer.op != kNone && !is_covered(target.writer.op));
  if (needs_all) std::ranges::fill(needs, kWholeOp);
  return needs;
}

void StreamChunks::remember(OpId id, const OpPieces& pieces) {
  const Op& op = plan_.ops()[at(id)];
  for (const OpPieces::Row& row : pieces.reads) use(row.region, op.src, row.slot).is_read = true;
  for (size_t i = 0; i < pieces.writes.size(); ++i)
    use(plan_.phases()[op.phase].to, op.dst, pieces.writes[i]).writer = {id, static_cast<int32_t>(i)};
}

OpChunks StreamChunks::add(const OpPieces& pieces) {
  const OpId id = next_++;
  const auto count = static_cast<int32_t>(pieces.writes.size());
  const Phase& phase = plan_.phases()[plan_.ops()[at(id)].phase];
  OpChunks out;
  for (const Dep& dep : plan_.deps(id))
    if (dep.on == On::stream) out.streams.push_back(dep.op);
  const bool is_cut = phase.chunk_rows > 0 && (is_followed_[at(id)] || !out.streams.empty());
  out.pieces = std::max(1, is_cut ? std::min(phase.chunk_rows, count) : count);
  out.chunks = std::max(1, static_cast<int32_t>(ceil_div(count, out.pieces)));
  chunk_pieces_.push_back(out.pieces);
  num_pieces_.push_back(count);
  if (!out.streams.empty()) {
    const size_t streams = out.streams.size();
    std::vector<int32_t> so_far(streams);  // of this and all earlier pieces
    for (int32_t piece = 0; piece < count; ++piece) {
      const std::vector<int32_t> needs = needs_of(id, pieces, piece, out);
      for (size_t s = 0; s < streams; ++s) so_far[s] = std::max(so_far[s], needs[s]);
      if ((piece + 1) % out.pieces == 0 || piece + 1 == count)
        out.needs.insert(out.needs.end(), so_far.begin(), so_far.end());
    }
    if (count == 0) out.needs.assign(streams, kWholeOp);
    for (size_t s = 0; s < streams; ++s)
      for (size_t i = s; i < out.needs.size(); i += streams)
        out.needs[i] = so_far[s] == 0 || i + streams >= out.needs.size() || out.needs[i] == kWholeOp
                           ? kWholeOp
                           : published(out.streams[s], out.needs[i]);
  }
  remember(id, pieces);
  return out;
}

}  // namespace plumb::hw

// Where ranks run and how they reach each other's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "hw/limits.h"
#include "model/ids.h"

namespace plumb::hw {

/// The windows of all ranks, as the ranks of this process see them. Freed with the object (collective in
/// worlds of several processes).
class Windows {
 public:
  virtual ~Windows() = default;
  /// Own window of an own rank.
  virtual char* base(Rank own) const = 0;
  /// Device memory: [ranks] bases of the peers' windows as `own` addresses them.
  virtual char* const* peers(Rank own) const = 0;
};

class World {
 public:
  virtual ~World() = default;
  virtual std::string_view name() const = 0;
  virtual int32_t ranks() const = 0;
  /// Ranks that this process drives.
  virtual std::vector<Rank> own_ranks() const = 0;
  /// Windows of `bytes` bytes whose first `zero_bytes` are zero. Collective; synchronises.
  virtual std::shared_ptr<Windows> make_windows(int64_t bytes, int64_t zero_bytes) = 0;
  /// A number that no other group of buffers of this process has.
  uint64_t next_group() { return (reinterpret_cast<uint64_t>(this) << 12) + ++groups_; }
  /// What every rank asks for, by rank, from what the own ranks ask for. Collective; synchronises.
  virtual std::vector<BufferLimits> gather(std::span<const BufferLimits> own) = 0;

 private:
  uint64_t groups_ = 0;
};

/// `ranks` virtual ranks on the current device, in this process; 1..16.
std::unique_ptr<World> make_local_world(int32_t ranks);

}  // namespace plumb::hw

// Records with stable indices; the last one freed is the first reused, which keeps them in cache.
#pragma once

#include <cstdint>

#include "sim/large_vector.h"
#include "sim/time.h"

namespace plumb::sim {

/// T has a member `next`, which links the free records.
template <class T>
class Pool {
 public:
  /// Returns the index of a record with its default values.
  uint32_t add() {
    ++in_use_;
    if (free_ == kNil) {
      records_.emplace_back();
      return static_cast<uint32_t>(records_.size()) - 1;
    }
    const uint32_t index = free_;
    free_ = records_[index].next;
    records_[index] = T{};
    return index;
  }
  void remove(uint32_t index) {
    --in_use_;
    records_[index].next = free_;
    free_ = index;
  }
  T& operator[](uint32_t index) { return records_[index]; }
  const T& operator[](uint32_t index) const { return records_[index]; }
  /// For prefetching: the address of a record; of the first one for kNil.
  const T* at(uint32_t index) const { return records_.data() + (index == kNil ? 0 : index); }
  int64_t in_use() const { return in_use_; }
  int64_t memory_bytes() const { return static_cast<int64_t>(records_.capacity() * sizeof(T)); }

 private:
  LargeVector<T> records_;
  uint32_t free_ = kNil;
  int64_t in_use_ = 0;
};

}  // namespace plumb::sim

// The queue of events: a timing wheel whose buckets are chains of cache lines of seven 8-byte events. Exact
// order: by date, then by the order of pushes.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/large_vector.h"
#include "sim/time.h"

namespace plumb::sim {

/// Holds events of 32 bits each. push() and pop() cost amortised O(1) for dates less than
/// 2^(width_bits + bucket_bits) ps ahead; later ones wait unsorted in coarse buckets and move once. A block
/// wheel streams through memory where a wheel of linked nodes or a heap chases pointers; it was the fastest
/// of four queues tried.
class EventQueue {
 public:
  struct Event {
    Ps time = 0;
    uint32_t word = 0;
  };

  /// Buckets of 2^width_bits ps, 2^bucket_bits of them. The defaults fit links of 10 to 1000 GB/s.
  /// `look_ahead`: events that peek() shows when the queue is busy.
  explicit EventQueue(int width_bits = 7, int bucket_bits = 14, size_t look_ahead = 0);

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  /// Requires `time` not before the date of the last event popped.
  void push(Ps time, uint32_t word) {
    ++size_;
    const Ps bucket = time >> width_bits_;
    if (bucket <= base_) {
      insert_open(time, word);
    } else if (bucket < near_end_) {
      insert_near(bucket, time, word);
    } else {
      insert_far(time, word);
    }
  }

  /// Date of the next event; requires !empty().
  Ps next_time() {
    if (next_ == end_) [[unlikely]]
      open_next();
    return next_->time;
  }

  /// Requires !empty().
  Event pop() {
    if (next_ >= end_of_look_) [[unlikely]]
      look_ahead();
    --size_;
    return *next_++;
  }

  /// The event `ahead` places after the next one when it is sorted in already, else nullptr: a hint what to
  /// prefetch. Of a busy queue the next `look_ahead` ones are.
  const Event* peek(size_t ahead) const { return next_ + ahead < end_ ? next_ + ahead : nullptr; }

  int64_t memory_bytes() const;

 private:
  struct Entry {
    uint32_t offset;  // date - start of the bucket
    uint32_t word;
  };
  static constexpr uint32_t kBlockEntries = 7;
  struct alignas(64) Block {
    uint32_t count;
    uint32_t next;
    Entry entries[kBlockEntries];
  };
  static_assert(sizeof(Block) == 64);
  void insert_near(Ps bucket, Ps time, uint32_t word) {
    const uint32_t slot = static_cast<uint32_t>(bucket) & mask_;
    uint32_t& head = heads_[slot];
    if (head == kNil) occupied_[slot / 64] |= uint64_t{1} << (slot % 64);
    append(head, {static_cast<uint32_t>(time - (bucket << width_bits_)), word});
  }
  void append(uint32_t& head, Entry entry) {
    if (head == kNil || blocks_[head].count == kBlockEntries) add_block(head);
    Block& block = blocks_[head];
    block.entries[block.count++] = entry;
  }
  void insert_open(Ps time, uint32_t word);
  void insert_far(Ps time, uint32_t word);
  void add_block(uint32_t& head);
  /// Frees a chain of blocks and calls visit(entry) for its entries, oldest first.
  template <class Visit>
  void empty_chain(uint32_t head, Visit visit);
  void set_next(size_t position);
  void look_ahead();
  void open_next();
  void open_bucket(Ps bucket);
  void move_far_events();
  Ps next_bucket() const;  // of the wheel, kNever when it is empty

  int width_bits_;
  int far_bits_;  // 2^far_bits_ buckets are a coarse one
  uint32_t mask_;
  size_t look_ahead_;
  Ps base_ = -1;     // number of the last bucket that was opened
  Ps near_end_ = 0;  // number of the first bucket that is not in the wheel; it starts a coarse one
  size_t size_ = 0;
  LargeVector<uint32_t> heads_;     // [buckets] newest block of the chain
  std::vector<uint64_t> occupied_;  // [buckets / 64] bitmap
  LargeVector<Block> blocks_;
  uint32_t free_block_ = kNil;
  LargeVector<Event> open_;             // the open buckets in order
  const Event* next_ = nullptr;         // of open_
  const Event* end_ = nullptr;          // of open_
  const Event* end_of_look_ = nullptr;  // from here on fewer than look_ahead_ events follow
  std::vector<uint32_t> chain_;
  std::map<Ps, uint32_t> far_;  // by number of the coarse bucket: newest block of its chain
};

}  // namespace plumb::sim

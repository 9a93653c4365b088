// The slow paths of the timing wheel.
#include "sim/event_queue.h"

#include <algorithm>
#include <bit>
#include <span>

namespace plumb::sim {

namespace {

constexpr size_t kInsertionSortLimit = 32;
constexpr Ps kBucketsAhead = 8;  // more would make of open_ a long sorted list to insert into

/// Stable: events of equal date keep their order.
void sort_by_time(std::span<EventQueue::Event> events) {
  if (events.size() > kInsertionSortLimit) {
    std::stable_sort(events.begin(), events.end(),
                     [](const auto& a, const auto& b) { return a.time < b.time; });
    return;
  }
  for (size_t i = 1; i < events.size(); ++i) {
    const EventQueue::Event event = events[i];
    size_t j = i;
    for (; j > 0 && event.time < events[j - 1].time; --j) events[j] = events[j - 1];
    events[j] = event;
  }
}

}  // namespace

EventQueue::EventQueue(int width_bits, int bucket_bits, size_t look_ahead)
    : width_bits_(width_bits),
      mask_((1u << bucket_bits) - 1),
      look_ahead_(look_ahead),
      heads_(size_t{1} << bucket_bits, kNil),
      occupied_((size_t{1} << bucket_bits) / 64, 0) {
  PLUMB_CHECK(width_bits >= 0 && width_bits < 32 && bucket_bits >= 6 && bucket_bits < 32,
              "wheel of 2^{} x 2^{}", bucket_bits, width_bits);
}

int64_t EventQueue::memory_bytes() const {
  return static_cast<int64_t>(heads_.capacity() * sizeof(uint32_t) + occupied_.capacity() * sizeof(uint64_t) +
                              blocks_.capacity() * sizeof(Block) + open_.capacity() * sizeof(Event) +
                              far_.capacity() * sizeof(Far));
}

void EventQueue::insert_open(Ps time, uint32_t word) {
  size_t i = open_.size();
  open_.push_back({time, word});
  for (; i > position_ && time < open_[i - 1].time; --i) open_[i] = open_[i - 1];
  open_[i] = {time, word};
}

void EventQueue::insert_far(Ps time, uint32_t word) {
  far_.push_back({time, far_sequence_++, word});
  std::push_heap(far_.begin(), far_.end(), Later{});
}

uint32_t EventQueue::add_block(uint32_t slot) {
  uint32_t block = free_block_;
  if (block == kNil) {
    block = static_cast<uint32_t>(blocks_.size());
    blocks_.emplace_back();
  } else {
    free_block_ = blocks_[block].next;
  }
  blocks_[block].count = 0;
  blocks_[block].next = heads_[slot];
  heads_[slot] = block;
  occupied_[slot / 64] |= uint64_t{1} << (slot % 64);
  return block;
}

Ps EventQueue::next_bucket() const {
  const uint32_t first = static_cast<uint32_t>(base_ + 1) & mask_;
  const size_t words = occupied_.size();
  size_t word = first / 64;
  uint64_t bits = occupied_[word] & (~uint64_t{0} << (first % 64));
  for (size_t scanned = 0; scanned <= words; ++scanned) {
    if (bits != 0) {
      const uint32_t slot = static_cast<uint32_t>(word * 64) + static_cast<uint32_t>(std::countr_zero(bits));
      return base_ + 1 + ((slot - first) & mask_);
    }
    word = word + 1 == words ? 0 : word + 1;
    bits = occupied_[word];
  }
  return kNever;
}

void EventQueue::move_far_events() {
  while (!far_.empty() && (far_.front().time >> width_bits_) - base_ <= static_cast<Ps>(mask_)) {
    const Far event = far_.front();
    std::pop_heap(far_.begin(), far_.end(), Later{});
    far_.pop_back();
    insert_near(event.time >> width_bits_, event.time, event.word);
  }
}

/// Opens what comes within a few buckets, as long as fewer than look_ahead_ + 1 events are open.
void EventQueue::look_ahead() {
  if (position_ == open_.size()) open_next();
  const Ps last = (open_[position_].time >> width_bits_) + kBucketsAhead;
  while (base_ < last && position_ + look_ahead_ >= open_.size()) {
    const uint32_t slot = static_cast<uint32_t>(base_ + 1) & mask_;
    const uint64_t bits = occupied_[slot / 64] >> (slot % 64);
    if (bits == 0) return;  // perhaps there are some in the next word: this is a hint only
    const Ps bucket = base_ + 1 + std::countr_zero(bits);
    if (bucket > last) return;
    open_bucket(bucket);
    move_far_events();
  }
}

void EventQueue::open_next() {
  Ps bucket = next_bucket();
  if (bucket == kNever) {
    PLUMB_CHECK(!far_.empty(), "pop from an empty event queue");
    base_ = (far_.front().time >> width_bits_) - 1;
    move_far_events();
    bucket = base_ + 1;
  }
  open_bucket(bucket);
  // Now, not when they are due: an event pushed later for the same date must come after them.
  move_far_events();
}

void EventQueue::open_bucket(Ps bucket) {
  base_ = bucket;
  const Ps start = bucket << width_bits_;
  const uint32_t slot = static_cast<uint32_t>(bucket) & mask_;
  open_.erase(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(position_));
  position_ = 0;
  chain_.clear();
  size_t count = 0;
  for (uint32_t b = heads_[slot]; b != kNil; b = blocks_[b].next) {
    chain_.push_back(b);
    count += blocks_[b].count;
  }
  heads_[slot] = kNil;
  occupied_[slot / 64] &= ~(uint64_t{1} << (slot % 64));
  const size_t before = open_.size();
  open_.resize(before + count);
  Event* out = open_.data() + before;
  for (size_t i = chain_.size(); i-- > 0;) {  // the oldest block is the last of the chain
    Block& block = blocks_[chain_[i]];
    for (uint32_t e = 0; e < block.count; ++e)
      *out++ = {start + block.entries[e].offset, block.entries[e].word};
    block.next = free_block_;
    free_block_ = chain_[i];
  }
  sort_by_time(std::span(open_).subspan(before));
}

}  // namespace plumb::sim

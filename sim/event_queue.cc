// The slow paths of the timing wheel.
#include "sim/event_queue.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>

namespace plumb::sim {

namespace {

constexpr int kRankBits = 4;
constexpr size_t kRanked = size_t{1} << kRankBits;
constexpr size_t kMapNodeBytes = 48;
constexpr Ps kBucketsAhead = 8;  // more would make of open_ a long sorted list to insert into

/// Stable: events of equal date keep their order. Few ones are counted to their places without a branch, as
/// their dates are like dice. `start`: of their bucket.
void sort_by_time(std::span<EventQueue::Event> events, Ps start) {
  if (events.size() > kRanked) {
    std::stable_sort(events.begin(), events.end(),
                     [](const auto& a, const auto& b) { return a.time < b.time; });
    return;
  }
  EventQueue::Event unsorted[kRanked];
  uint32_t keys[kRanked];
  std::fill(std::begin(keys), std::end(keys), std::numeric_limits<uint32_t>::max());
  for (size_t i = 0; i < events.size(); ++i) {
    unsorted[i] = events[i];
    keys[i] = static_cast<uint32_t>(events[i].time - start) << kRankBits | static_cast<uint32_t>(i);
  }
  for (size_t i = 0; i < events.size(); ++i) {
    uint32_t rank = 0;
    for (const uint32_t key : keys) rank += key < keys[i];
    events[rank] = unsorted[i];
  }
}

}  // namespace

EventQueue::EventQueue(int width_bits, int bucket_bits, size_t look_ahead)
    : width_bits_(width_bits),
      far_bits_(std::min(bucket_bits - 3, 32 - width_bits)),  // offsets in a coarse bucket have 32 bits
      mask_((1u << bucket_bits) - 1),
      look_ahead_(look_ahead),
      heads_(size_t{1} << bucket_bits, kNil),
      occupied_((size_t{1} << bucket_bits) / 64, 0) {
  PLUMB_CHECK(width_bits >= 0 && width_bits <= 32 - kRankBits && bucket_bits >= 6 && bucket_bits < 32,
              "wheel of 2^{} x 2^{}", bucket_bits, width_bits);
  move_far_events();
  set_next(0);
}

int64_t EventQueue::memory_bytes() const {
  return static_cast<int64_t>(heads_.capacity() * sizeof(uint32_t) + occupied_.capacity() * sizeof(uint64_t) +
                              blocks_.capacity() * sizeof(Block) + open_.capacity() * sizeof(Event) +
                              far_.size() * kMapNodeBytes);
}

void EventQueue::insert_open(Ps time, uint32_t word) {
  const size_t position = static_cast<size_t>(next_ - open_.data());
  size_t i = open_.size();
  open_.push_back({time, word});
  for (; i > position && time < open_[i - 1].time; --i) open_[i] = open_[i - 1];
  open_[i] = {time, word};
  set_next(position);
}

void EventQueue::set_next(size_t position) {
  next_ = open_.data() + position;
  end_ = open_.data() + open_.size();
  end_of_look_ = std::max(next_, end_ - std::min(look_ahead_, open_.size()));
}

void EventQueue::insert_far(Ps time, uint32_t word) {
  const int bits = width_bits_ + far_bits_;
  const Ps bucket = time >> bits;
  append(far_.try_emplace(bucket, kNil).first->second,
         {static_cast<uint32_t>(time - (bucket << bits)), word});
}

void EventQueue::add_block(uint32_t& head) {
  uint32_t block = free_block_;
  if (block == kNil) {
    block = static_cast<uint32_t>(blocks_.size());
    blocks_.emplace_back();
  } else {
    free_block_ = blocks_[block].next;
  }
  blocks_[block].count = 0;
  blocks_[block].next = head;
  head = block;
}

template <class Visit>
void EventQueue::empty_chain(uint32_t head, Visit visit) {
  chain_.clear();
  for (uint32_t b = head; b != kNil; b = blocks_[b].next) chain_.push_back(b);
  for (size_t i = chain_.size(); i-- > 0;) {  // the oldest block is the last of the chain
    const Block block = blocks_[chain_[i]];
    blocks_[chain_[i]].next = free_block_;
    free_block_ = chain_[i];
    for (uint32_t e = 0; e < block.count; ++e) visit(block.entries[e]);
  }
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

/// Takes the coarse buckets that the wheel has room for into it.
void EventQueue::move_far_events() {
  const Ps end = (base_ + 1 + static_cast<Ps>(mask_)) >> far_bits_;
  near_end_ = end << far_bits_;
  while (!far_.empty() && far_.begin()->first < end) {
    const Ps start = far_.begin()->first << (width_bits_ + far_bits_);
    const uint32_t head = far_.begin()->second;
    far_.erase(far_.begin());
    empty_chain(head, [&](const Entry& e) {
      const Ps time = start + e.offset;
      insert_near(time >> width_bits_, time, e.word);
    });
  }
}

/// Opens what comes within a few buckets, as long as fewer than look_ahead_ + 1 events are open.
void EventQueue::look_ahead() {
  if (next_ == end_) open_next();
  const Ps last = (next_->time >> width_bits_) + kBucketsAhead;
  while (base_ < last && next_ >= end_of_look_) {
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
    base_ = (far_.begin()->first << far_bits_) - 1;
    move_far_events();
    bucket = next_bucket();
  }
  open_bucket(bucket);
  // Now, not when they are due: an event pushed later for the same date must come after them.
  move_far_events();
}

void EventQueue::open_bucket(Ps bucket) {
  base_ = bucket;
  const Ps start = bucket << width_bits_;
  const uint32_t slot = static_cast<uint32_t>(bucket) & mask_;
  open_.erase(open_.begin(), open_.begin() + (next_ - open_.data()));
  const uint32_t head = heads_[slot];
  heads_[slot] = kNil;
  occupied_[slot / 64] &= ~(uint64_t{1} << (slot % 64));
  const size_t before = open_.size();
  empty_chain(head, [&](const Entry& e) { open_.push_back({start + e.offset, e.word}); });
  sort_by_time(std::span(open_).subspan(before), start);
  set_next(0);
}

}  // namespace plumb::sim

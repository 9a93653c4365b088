// The timing wheel gives the order of a plain sorted list.
#include "sim/event_queue.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "model/random.h"

namespace plumb::sim {
namespace {

/// Pushes and pops at random, against a list kept sorted by (date, push number).
void compare_with_sorted_list(int width_bits, int bucket_bits, Ps span, size_t look_ahead = 0) {
  EventQueue queue(width_bits, bucket_bits, look_ahead);
  std::vector<EventQueue::Event> list;
  Random random(7, RandomStream::test, static_cast<uint64_t>(span));
  Ps now = 0;
  uint32_t pushed = 0;
  while (pushed < 20000 || !list.empty()) {
    if (pushed < 20000 && (list.empty() || random.below(100) < 52)) {
      // Coarse dates, so that many are equal: ties must come out in the order of pushes.
      const Ps time = now + static_cast<Ps>(random.below(static_cast<uint64_t>(span))) / 64 * 64;
      queue.push(std::max(time, now), pushed);
      const auto after = std::upper_bound(list.begin(), list.end(), std::max(time, now),
                                          [](Ps t, const auto& e) { return t < e.time; });
      list.insert(after, {std::max(time, now), pushed});
      ++pushed;
    } else {
      ASSERT_EQ(queue.next_time(), list.front().time);
      const EventQueue::Event event = queue.pop();
      ASSERT_EQ(event.time, list.front().time);
      ASSERT_EQ(event.word, list.front().word);
      now = event.time;
      list.erase(list.begin());
    }
    ASSERT_EQ(queue.size(), list.size());
  }
  EXPECT_TRUE(queue.empty());
}

TEST(EventQueue, KeepsOrderInsideTheWheel) { compare_with_sorted_list(7, 14, 1 << 18); }
TEST(EventQueue, KeepsOrderWhenMostEventsAreFarAhead) { compare_with_sorted_list(4, 6, 1 << 14); }
TEST(EventQueue, KeepsOrderInOneBucket) { compare_with_sorted_list(20, 6, 1 << 12); }
TEST(EventQueue, KeepsOrderAcrossLongGaps) { compare_with_sorted_list(7, 8, Ps{1} << 40); }
TEST(EventQueue, KeepsOrderWhileItLooksAhead) {
  compare_with_sorted_list(7, 14, 1 << 12, 16);  // a bucket has some events
  compare_with_sorted_list(4, 6, 1 << 14, 16);   // most are far ahead
  compare_with_sorted_list(7, 8, Ps{1} << 40, 5);
}

TEST(EventQueue, ShowsEventsOfTheBucketsAhead) {
  // Buckets of 128 ps: the events are in buckets 0, 1, 3 and 100; the last is too far to be sorted in.
  EventQueue queue(7, 14, 3);
  const Ps dates[] = {1, 130, 390, 12800};
  for (uint32_t i = 0; i < 4; ++i) queue.push(dates[i], i);
  EXPECT_EQ(queue.pop().word, 0u);
  ASSERT_NE(queue.peek(1), nullptr);
  EXPECT_EQ(queue.peek(1)->word, 2u);
  EXPECT_EQ(queue.peek(2), nullptr);
  queue.push(200, 4);  // into a bucket that is open already
  EXPECT_EQ(queue.pop().word, 1u);
  EXPECT_EQ(queue.pop().word, 4u);
  EXPECT_EQ(queue.pop().word, 2u);
  EXPECT_EQ(queue.pop().word, 3u);
}

TEST(EventQueue, TakesDatesUpToTheEndOfTime) {
  EventQueue queue;
  queue.push(1'000'000'000'000'000'000, 1);  // 10^6 s
  queue.push(5, 2);
  queue.push(1'000'000'000'000'000'000, 3);
  EXPECT_EQ(queue.pop().word, 2u);
  EXPECT_EQ(queue.pop().word, 1u);
  EXPECT_EQ(queue.pop().word, 3u);
}

}  // namespace
}  // namespace plumb::sim

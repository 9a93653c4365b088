// Credits on their way back to a sender: dated records, so that no event is needed unless the sender starves.
#pragma once

#include "sim/packet_records.h"
#include "sim/pool.h"
#include "sim/prefetch.h"

namespace plumb::sim {

/// One list of records per lane, in order of date. The pool reuses the record freed last, which is in cache:
/// that beats a ring per lane, although a ring needs no links.
class CreditLists {
 public:
  bool is_empty(const Lane& lane) const { return lane.credit_head == kNil; }
  /// Date of the first; requires that there is one.
  Ps next_time(const Lane& lane) const { return records_[lane.credit_head].time; }

  /// Returns true when these are the first to come.
  bool add(Lane& lane, Ps time, int32_t units, Ps now) {
    const uint32_t index = records_.add();
    Record& record = records_[index];
    record.time = time;
    record.units = units;
    if (lane.credit_head == kNil) {
      lane.credit_head = lane.credit_tail = index;
      return true;
    }
    Record& tail = records_[lane.credit_tail];
    if (tail.time <= time) {
      tail.next = index;
      lane.credit_tail = index;
      return false;
    }
    merge_come(lane, now);
    uint32_t* link = &lane.credit_head;  // packets may leave by faster and slower ports
    while (records_[*link].time <= time) link = &records_[*link].next;
    record.next = *link;
    const bool is_first = link == &lane.credit_head;
    *link = index;
    return is_first;
  }

  /// Takes out what has come by now.
  int32_t collect(Lane& lane, Ps now) {
    int32_t units = 0;
    while (lane.credit_head != kNil) {
      const uint32_t index = lane.credit_head;
      const Record& record = records_[index];
      if (record.time > now) break;
      units += record.units;
      lane.credit_head = record.next;
      records_.remove(index);
    }
    return units;
  }

  /// Ask the cache for what collect() and add() will touch.
  void prefetch_first(const Lane& lane) const {
    if (lane.credit_head != kNil) prefetch(&records_[lane.credit_head]);
  }
  void prefetch_second(const Lane& lane) const {
    if (lane.credit_head == kNil) return;
    const uint32_t next = records_[lane.credit_head].next;
    if (next != kNil) prefetch(&records_[next]);
  }
  void prefetch_last(const Lane& lane) const {
    if (lane.credit_head != kNil) prefetch(&records_[lane.credit_tail]);
  }

  int64_t memory_bytes() const { return records_.memory_bytes(); }

 private:
  /// What has come by now becomes one record: a lane that seldom sends does not gather a list to walk along.
  void merge_come(const Lane& lane, Ps now) {
    Record& first = records_[lane.credit_head];
    while (first.time <= now && first.next != kNil && first.next != lane.credit_tail &&
           records_[first.next].time <= now) {
      const uint32_t gone = first.next;
      first.time = records_[gone].time;
      first.units += records_[gone].units;
      first.next = records_[gone].next;
      records_.remove(gone);
    }
  }

  struct Record {
    Ps time = 0;
    int32_t units = 0;
    uint32_t next = kNil;
  };
  static_assert(sizeof(Record) == 16);

  Pool<Record> records_;
};

}  // namespace plumb::sim

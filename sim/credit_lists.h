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
  bool add(Lane& lane, Ps time, int32_t units) {
    const uint32_t index = records_.add();
    uint32_t before = lane.credit_head == kNil ? kNil : lane.credit_tail;
    uint32_t after = kNil;
    while (before != kNil && records_[before].time > time) {  // packets may leave by faster and slower ports
      after = before;
      before = before == lane.credit_head ? kNil : records_[before].previous;
    }
    records_[index] = {.time = time, .units = units, .next = after, .previous = before};
    (before == kNil ? lane.credit_head : records_[before].next) = index;
    (after == kNil ? lane.credit_tail : records_[after].previous) = index;
    return before == kNil;
  }

  /// Takes out what has come by now.
  int32_t collect(Lane& lane, Ps now) {
    int32_t units = 0;
    while (lane.credit_head != kNil) {
      const uint32_t index = lane.credit_head;
      const Record& record = records_[index];
      if (record.time > now) {
        prefetch(records_.at(record.next));  // next time's
        break;
      }
      units += record.units;
      lane.credit_head = record.next;
      records_.remove(index);
    }
    return units;
  }

  /// For prefetching: what collect() and add() will touch.
  const void* first_record(const Lane& lane) const { return records_.at(lane.credit_head); }
  const void* last_record(const Lane& lane) const { return records_.at(lane.credit_tail); }

  int64_t memory_bytes() const { return records_.memory_bytes(); }

 private:
  struct Record {
    Ps time = 0;
    int32_t units = 0;
    uint32_t next = kNil;
    uint32_t previous = kNil;  // out of date in the first
  };

  Pool<Record> records_;
};

}  // namespace plumb::sim

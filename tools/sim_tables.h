// What a simulated run saw, as tables and JSON: links, lanes, waits, counts. Columns and fields:
// docs/simulator.md and docs/json.md.
#pragma once

#include <string>
#include <vector>

#include "sim/sim_executor.h"
#include "tools/point.h"
#include "tools/table.h"

namespace plumb {

/// A link with what its lanes saw. Queue, stalls and starvations are where packets wait for it; the buffer is
/// the one that it leads to. The two links of a NIC that packets pass without a stop share both: the queue
/// stands at the first, the buffer at the second.
struct LinkSight {
  LinkId link = 0;
  LinkId second = kNone;  // the other link of such a NIC, where this is the first
  int64_t bytes = 0;
  double utilisation = 0;    // of the whole run
  int64_t peak_waiting = 0;  // largest of its lanes
  int64_t peak_buffer = 0;   // likewise
  sim::Ps stalled = 0;       // sum of its lanes
  int64_t starved = 0;
};

/// By link, [links] of the fabric.
std::vector<LinkSight> sights(const sim::SimReport& report);
/// The most used first, then by id; at most `count`, none that carried nothing. Both links of a NIC that
/// packets pass stand as one, under the first.
std::vector<LinkSight> hottest(std::vector<LinkSight> links, size_t count);

/// One line per link given.
Table link_table(const Fabric& fabric, const sim::LinkTimeline& timeline,
                 const std::vector<LinkSight>& links);
/// One line per lane that carried or held something.
Table lane_table(const Fabric& fabric, const sim::SimReport& report);
/// CSV source,destination,wait_us of pairs that waited.
std::string wait_csv(const WaitMatrix& waits);

/// The object `sim` of an executor. `findings`: of diagnose().
Json sim_json(const Fabric& fabric, const sim::SimReport& report, const std::vector<WaitFinding>& findings);

}  // namespace plumb

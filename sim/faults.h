// Failures and slow links at given dates.
#pragma once

#include "model/fabric.h"
#include "sim/time.h"

namespace plumb::sim {

enum class FaultKind : uint8_t {
  link_down,  // nothing starts on it any more; what is on the wire arrives, what waits stays
  link_up,
  link_rate,    // from now on `factor` of its rate
  switch_down,  // all links of the node
  switch_up,
};

struct Fault {
  Ps at = 0;
  FaultKind kind = FaultKind::link_down;
  LinkId link = kNone;
  NodeId node = kNone;
  double factor = 1;
};

/// Throws Error(usage) for a link or node that the fabric does not have, or a factor outside of (0, 1].
void check_fault(const Fault& fault, const Fabric& fabric);

}  // namespace plumb::sim

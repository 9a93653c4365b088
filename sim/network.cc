// What both fidelities share.
#include "sim/network.h"

#include <algorithm>

#include "model/error.h"

namespace plumb::sim {

void check_fault(const Fault& fault, const Fabric& fabric) {
  const bool of_node = fault.kind == FaultKind::switch_down || fault.kind == FaultKind::switch_up;
  if (of_node && (fault.node < 0 || fault.node >= static_cast<NodeId>(fabric.nodes().size())))
    fail_usage("fault: node {} of {}", fault.node, fabric.nodes().size());
  if (!of_node && (fault.link < 0 || fault.link >= static_cast<LinkId>(fabric.links().size())))
    fail_usage("fault: link {} of {}", fault.link, fabric.links().size());
  if (fault.kind == FaultKind::link_rate && !(fault.factor > 0 && fault.factor <= 1))
    fail_usage(
        "fault: a link rate of {} times its own, allowed is more than 0, at most 1; link_down stops it",
        fault.factor);
}

void Network::run() {
  while (advance(kNever)) {
  }
  if (messages_under_way() > 0)
    throw Error(ErrorKind::mismatch, fmt::format("the network stopped with {} messages under way\n{}",
                                                 messages_under_way(), stuck_report()));
}

std::vector<LinkUse> Network::hot_links(int32_t count) const {
  std::vector<LinkUse> links = link_use();
  std::stable_sort(links.begin(), links.end(),
                   [](const LinkUse& a, const LinkUse& b) { return a.utilisation > b.utilisation; });
  if (links.size() > static_cast<size_t>(count)) links.resize(static_cast<size_t>(count));
  return links;
}

}  // namespace plumb::sim

// What both fidelities share.
#include "sim/network.h"

#include <algorithm>

#include "model/error.h"

namespace plumb::sim {

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

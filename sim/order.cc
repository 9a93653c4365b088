// The bookkeeping of OrderTracker.
#include "sim/order.h"

#include <algorithm>

#include "model/error.h"

namespace plumb::sim {

uint64_t flow_key(const Message& message) {
  return static_cast<uint64_t>(static_cast<uint32_t>(message.src)) << 37 |
         static_cast<uint64_t>(static_cast<uint32_t>(message.dst)) << 10 |
         static_cast<uint64_t>(message.network) << 8 | message.traffic_class;
}

OrderTracker::Place OrderTracker::start(const Message& message) {
  const auto [it, added] = index_.try_emplace(flow_key(message), 0);
  if (added) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(streams_.size()));
      streams_.emplace_back();
    }
    it->second = free_.back();
    free_.pop_back();
    streams_[it->second].key = it->first;
    streams_[it->second].next_position = 0;
  }
  Stream& stream = streams_[it->second];
  ++stream.users;
  const Place place = {it->second, stream.next_position};
  if (message.order == Order::data) {
    stream.under_way.push_back(place.position);
    ++stream.next_position;
  }
  return place;
}

bool OrderTracker::is_covered(Place signal) const {
  const Stream& stream = streams_[signal.stream];
  return stream.under_way.empty() || stream.under_way.front() >= signal.position;
}

void OrderTracker::wait(Place signal, uint32_t message) {
  auto& waiting = streams_[signal.stream].waiting;
  const auto after =
      std::upper_bound(waiting.begin(), waiting.end(), signal.position,
                       [](int64_t position, const Waiting& w) { return position < w.position; });
  waiting.insert(after, {signal.position, message});
}

void OrderTracker::finish(Place place, Order order, std::vector<uint32_t>& released) {
  Stream& stream = streams_[place.stream];
  if (order == Order::data) {
    const auto it = std::lower_bound(stream.under_way.begin(), stream.under_way.end(), place.position);
    PLUMB_CHECK(it != stream.under_way.end() && *it == place.position, "data message {} finished twice",
                place.position);
    stream.under_way.erase(it);
    size_t free_to_go = 0;
    while (free_to_go < stream.waiting.size() &&
           is_covered({place.stream, stream.waiting[free_to_go].position}))
      released.push_back(stream.waiting[free_to_go++].message);
    stream.waiting.erase(stream.waiting.begin(),
                         stream.waiting.begin() + static_cast<std::ptrdiff_t>(free_to_go));
  }
  if (--stream.users > 0) return;
  index_.erase(stream.key);
  free_.push_back(place.stream);
}

}  // namespace plumb::sim

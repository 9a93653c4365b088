// Internal: the one place that knows the differences between SimGrid 3.32 (Debian 12) and 4.x, and the only
// header that includes SimGrid.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <simgrid/s4u.hpp>
// These need what s4u.hpp includes.
#include <simgrid/version.h>
#include <simgrid/kernel/Timer.hpp>
#include <simgrid/kernel/resource/Model.hpp>

namespace plumb::sim::compat {

namespace s4u = simgrid::s4u;

/// Key of the grain of dates; the old name still works in newer releases, with a warning.
inline std::string timing_precision(const std::string& seconds) {
#if SIMGRID_VERSION >= 33400
  return "precision/timing:" + seconds;
#else
  return "surf/precision:" + seconds;
#endif
}

/// A zone without routes: hosts that only compute.
inline s4u::NetZone* empty_zone(const std::string& name) {
#if SIMGRID_VERSION >= 40000
  return s4u::Engine::get_instance()->get_netzone_root()->add_netzone_empty(name);
#else
  return s4u::create_empty_zone(name);
#endif
}

/// A zone in which every route is given.
inline s4u::NetZone* full_zone(const std::string& name) {
#if SIMGRID_VERSION >= 40000
  return s4u::Engine::get_instance()->get_netzone_root()->add_netzone_full(name);
#else
  return s4u::create_full_zone(name);
#endif
}

inline s4u::Host* add_host(s4u::NetZone* zone, const std::string& name, double speed) {
#if SIMGRID_VERSION >= 40000
  return zone->add_host(name, speed);
#else
  return zone->create_host(name, speed);
#endif
}

inline s4u::Link* add_link(s4u::NetZone* zone, const std::string& name, double bandwidth) {
#if SIMGRID_VERSION >= 40000
  return zone->add_link(name, bandwidth);
#else
  return zone->create_link(name, bandwidth);
#endif
}

/// One direction only.
inline void add_route(s4u::NetZone* zone, s4u::Host* from, s4u::Host* to,
                      const std::vector<s4u::Link*>& links) {
  std::vector<s4u::LinkInRoute> route;
  for (const s4u::Link* link : links) route.emplace_back(link);
#if SIMGRID_VERSION >= 33600
  zone->add_route(from, to, route, false);
#else
  zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, route, false);
#endif
}

inline s4u::Disk* add_disk(s4u::Host* host, const std::string& name, double bytes_per_second) {
#if SIMGRID_VERSION >= 40000
  return host->add_disk(name, bytes_per_second, bytes_per_second);
#else
  return host->create_disk(name, bytes_per_second, bytes_per_second);
#endif
}

template <class Body>
s4u::ActorPtr add_actor(const std::string& name, s4u::Host* host, Body body) {
#if SIMGRID_VERSION >= 40100
  return host->add_actor(name, std::move(body));
#elif SIMGRID_VERSION >= 40000
  return s4u::Engine::get_instance()->add_actor(name, host, std::move(body));
#else
  return s4u::Actor::create(name, host, std::move(body));
#endif
}

template <class Callback>
void on_link_state(Callback callback) {
#if SIMGRID_VERSION >= 33400
  s4u::Link::on_onoff_cb(std::move(callback));
#else
  s4u::Link::on_state_change_cb(std::move(callback));
#endif
}

}  // namespace plumb::sim::compat

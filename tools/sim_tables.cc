// Tables of links, lanes and waits.
#include "tools/sim_tables.h"

#include <algorithm>

#include "model/error.h"

namespace plumb {
namespace {

constexpr size_t kHotLinks = 10;
constexpr size_t kMostFindings = 100;  // in the JSON

double us(sim::Ps time) { return static_cast<double>(time) * 1e-6; }

const FabricLink& link_of(const Fabric& fabric, LinkId id) { return fabric.links()[static_cast<size_t>(id)]; }

const std::string& name_of(const Fabric& fabric, NodeId id) {
  return fabric.nodes()[static_cast<size_t>(id)].name;
}

const std::string& class_name(const sim::LinkTimeline& timeline, LinkId link) {
  return timeline.classes[static_cast<size_t>(timeline.class_of[static_cast<size_t>(link)])].name;
}

Json hot_links_json(const Fabric& fabric, const sim::SimReport& report) {
  Json hot = Json::array();
  for (const LinkSight& s : hottest(sights(report), kHotLinks))
    hot.push_back({{"link", sim::name_of_link(fabric, s.link)},
                   {"class", class_name(report.timeline, s.link)},
                   {"network", to_string(link_of(fabric, s.link).network)},
                   {"rate_gb_per_s", link_of(fabric, s.link).rate.value / 1e9},
                   {"bytes", s.bytes},
                   {"utilisation", s.utilisation},
                   {"peak_waiting_bytes", s.peak_waiting},
                   {"peak_buffer_bytes", s.peak_buffer},
                   {"stalled_us", us(s.stalled)},
                   {"starved", s.starved}});
  return hot;
}

Json classes_json(const sim::LinkTimeline& timeline) {
  Json classes = Json::array();
  for (const sim::LinkClass& c : timeline.classes) {
    int64_t bytes = 0;
    for (const int64_t sent : c.sent) bytes += sent;
    const double possible = c.rate.value * sim::to_seconds(timeline.end).value;
    classes.push_back({{"class", c.name},
                       {"network", to_string(c.network)},
                       {"links", c.links},
                       {"bytes", bytes},
                       {"utilisation", possible > 0 ? static_cast<double>(bytes) / possible : 0.0}});
  }
  return classes;
}

Json findings_json(const std::vector<WaitFinding>& findings) {
  Json list = Json::array();
  for (size_t i = 0; i < std::min(findings.size(), kMostFindings); ++i) {
    const WaitFinding& f = findings[i];
    Json entry = {{"cause", to_string(f.cause)}};
    if (f.source != kNone) entry["source"] = f.source;
    if (f.destination != kNone) entry["destination"] = f.destination;
    entry["wait_us"] = microseconds(f.wait);
    entry["typical_us"] = microseconds(f.typical);
    entry["text"] = to_text(f);
    list.push_back(entry);
  }
  return list;
}

}  // namespace

std::vector<LinkSight> sights(const sim::SimReport& report) {
  std::vector<LinkSight> links;
  for (const sim::LinkUse& use : report.links)
    links.push_back(
        {.link = use.link, .second = kNone, .bytes = use.packet_bytes, .utilisation = use.utilisation});
  for (const sim::LaneUse& lane : report.lanes) {
    LinkSight& first = links[static_cast<size_t>(lane.link)];
    if (lane.last_link != lane.link) first.second = lane.last_link;
    first.peak_waiting = std::max(first.peak_waiting, lane.peak_waiting);
    first.stalled += lane.stalled;
    first.starved += lane.starved;
    LinkSight& last = links[static_cast<size_t>(lane.last_link)];
    last.peak_buffer = std::max(last.peak_buffer, lane.peak_buffer);
  }
  return links;
}

std::vector<LinkSight> hottest(std::vector<LinkSight> links, size_t count) {
  std::vector<uint8_t> is_second(links.size());
  for (LinkSight& s : links) {
    if (s.second == kNone) continue;
    is_second[static_cast<size_t>(s.second)] = 1;
    s.peak_buffer = links[static_cast<size_t>(s.second)].peak_buffer;
  }
  std::erase_if(
      links, [&](const LinkSight& s) { return s.bytes == 0 || is_second[static_cast<size_t>(s.link)] != 0; });
  std::stable_sort(links.begin(), links.end(),
                   [](const LinkSight& a, const LinkSight& b) { return a.utilisation > b.utilisation; });
  links.resize(std::min(links.size(), count));
  return links;
}

Table link_table(const Fabric& fabric, const sim::LinkTimeline& timeline,
                 const std::vector<LinkSight>& links) {
  Table table({"link", "from", "to", "class", "network", "rate_gb_per_s", "bytes", "utilisation",
               "peak_waiting_bytes", "peak_buffer_bytes", "stalled_us", "starved"});
  for (const LinkSight& s : links) {
    const FabricLink& link = link_of(fabric, s.link);
    table.add({std::to_string(s.link), name_of(fabric, link.from), name_of(fabric, link.to),
               class_name(timeline, s.link), std::string(to_string(link.network)),
               fmt::format("{}", link.rate.value / 1e9), std::to_string(s.bytes),
               fmt::format("{:.6f}", s.utilisation), std::to_string(s.peak_waiting),
               std::to_string(s.peak_buffer), fmt::format("{:.6f}", us(s.stalled)),
               std::to_string(s.starved)});
  }
  return table;
}

Table lane_table(const Fabric& fabric, const sim::SimReport& report) {
  Table table({"link", "from", "to", "virtual_lane", "hop_class", "bytes", "utilisation",
               "peak_waiting_bytes", "peak_buffer_bytes", "stalled_us", "starved"});
  const double seconds = std::max(sim::to_seconds(report.end).value, 1e-12);
  for (const sim::LaneUse& lane : report.lanes) {
    const FabricLink& first = link_of(fabric, lane.link);
    const double use = static_cast<double>(lane.packet_bytes) / (first.rate.value * seconds);
    table.add({std::to_string(lane.link), name_of(fabric, first.from),
               name_of(fabric, link_of(fabric, lane.last_link).to), std::to_string(lane.virtual_lane),
               std::to_string(lane.hop_class), std::to_string(lane.packet_bytes), fmt::format("{:.6f}", use),
               std::to_string(lane.peak_waiting), std::to_string(lane.peak_buffer),
               fmt::format("{:.6f}", us(lane.stalled)), std::to_string(lane.starved)});
  }
  return table;
}

std::string wait_csv(const WaitMatrix& waits) {
  std::string text = "source,destination,wait_us\n";
  for (Rank s = 0; s < waits.ranks(); ++s)
    for (Rank d = 0; d < waits.ranks(); ++d)
      if (s != d && waits.at(s, d).value > 0)
        text += fmt::format("{},{},{:.6f}\n", s, d, microseconds(waits.at(s, d)));
  return text;
}

Json sim_json(const Fabric& fabric, const sim::SimReport& report, const std::vector<WaitFinding>& findings) {
  const sim::PacketCounts& c = report.counts;
  return {{"end_us", us(report.end)},
          {"counts",
           {{"events", c.events},
            {"messages", c.messages},
            {"packets", c.packets},
            {"packet_hops", c.packet_hops},
            {"payload_bytes", c.payload_bytes},
            {"local_messages", c.local_messages},
            {"out_of_order", c.out_of_order},
            {"order_violations", c.order_violations},
            {"held_signals", c.held_signals},
            {"starved", c.starved},
            {"marks", c.marks},
            {"echoes", c.echoes},
            {"detours", c.detours}}},
          {"memory_bytes", report.memory_bytes},
          {"hot_links", hot_links_json(fabric, report)},
          {"classes", classes_json(report.timeline)},
          {"findings_count", findings.size()},
          {"findings", findings_json(findings)}};
}

}  // namespace plumb

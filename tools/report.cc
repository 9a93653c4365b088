// One self-contained HTML page: tables, and pictures as inlined SVG.
#include "tools/report.h"

#include <cstdio>

#include "model/error.h"
#include "tools/sim_tables.h"
#include "tools/table.h"

namespace plumb {
namespace {

constexpr size_t kHotLinks = 10;
constexpr size_t kMostFindings = 50;

constexpr std::string_view kStyle =
    "body{font:14px/1.4 sans-serif;margin:2em auto;max-width:1150px;color:#222;background:#fff}"
    "h1{font-size:22px}h2{font-size:17px;margin-top:1.6em}"
    "table{border-collapse:collapse;font-size:12px}"
    "th,td{border:1px solid #ccc;padding:2px 7px;text-align:left;vertical-align:top}th{background:#f0f0f0}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}"
    "svg{display:block;width:100%;height:auto;margin:1em 0;border:1px solid #ddd}"
    "image{image-rendering:pixelated}";

std::string section(std::string_view name, const std::string& content) {
  return fmt::format("<h2>{}</h2>\n{}", html_escaped(name), content);
}

std::string paragraph(std::string_view text) { return fmt::format("<p>{}</p>\n", html_escaped(text)); }

std::string summary(const RunSights& run) {
  const TraceHeader& header = run.trace.header;
  const sim::PacketCounts& c = run.report.counts;
  Table table({"what", "value"});
  table.add({"complete", header.complete ? "yes" : "no: the run ended early, what follows is partial"});
  table.add({"time", number(run.trace.total.value * 1e6) + " us"});
  table.add({"bottleneck", run.trace.bottleneck});
  table.add({"machine", header.machine});
  table.add({"program", header.program});
  table.add({"plan", to_string(header.plan)});
  table.add({"settings", header.note});
  table.add(
      {"messages, packets, packet hops", fmt::format("{}, {}, {}", c.messages, c.packets, c.packet_hops)});
  table.add({"packets out of order, order violations, held signals",
             fmt::format("{}, {}, {}", c.out_of_order, c.order_violations, c.held_signals)});
  table.add(
      {"congestion marks, notifications, detours", fmt::format("{}, {}, {}", c.marks, c.echoes, c.detours)});
  table.add({"times a port starved for credits", std::to_string(c.starved)});
  return table.html();
}

std::string phases(const Trace& trace) {
  Table table({"phase", "time us", "messages", "bytes"});
  for (size_t p = 0; p < trace.phase_times.size(); ++p) {
    const PhaseTime& time = trace.phase_times[p];
    table.add({trace.header.phases[p], number(time.time.value * 1e6), std::to_string(time.messages),
               std::to_string(time.bytes)});
  }
  return table.html();
}

std::string findings(const RunSights& run) {
  if (!run.report.waits) return paragraph("No wait matrix: more than 1024 ranks.");
  if (run.findings.empty()) return paragraph("No rank and no path stands out.");
  Table table({"finding"});
  for (size_t i = 0; i < std::min(run.findings.size(), kMostFindings); ++i)
    table.add({to_text(run.findings[i])});
  if (run.findings.size() > kMostFindings)
    table.add({fmt::format("and {} more", run.findings.size() - kMostFindings)});
  return table.html();
}

/// A picture that cannot be drawn costs the page its pictures, never the run.
std::string drawings(const RunSights& run) {
  std::string text;
  try {
    const auto drawn = draw(pictures(run));
    if (!drawn)
      return paragraph(
          "Pictures need gnuplot, which was not found where this page was made "
          "(Debian package gnuplot-nox).");
    for (const std::string& svg : *drawn) text += svg;
  } catch (const Error& error) {
    std::fprintf(stderr, "plumb: warning: %s; the page is without pictures\n", error.what());
    return paragraph(fmt::format("No pictures: {}", error.what()));
  }
  return text;
}

}  // namespace

std::string report_page(const RunSights& run) {
  const std::string title = html_escaped(run.title);
  const std::vector<LinkSight> hot = hottest(sights(run.report), kHotLinks);
  return fmt::format(
             "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{0}</title>\n"
             "<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
             title, kStyle) +
         summary(run) + section("Phases", phases(run.trace)) + section("Pictures", drawings(run)) +
         section("Hot links", link_table(run.fabric, run.report.timeline, hot).html()) +
         section("Waits", findings(run)) + "</body>\n</html>\n";
}

}  // namespace plumb

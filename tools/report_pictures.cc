// Scripts and data of the pictures of a run: links over time, lanes, waits, phases.
#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "model/error.h"
#include "tools/report.h"
#include "tools/sim_tables.h"

namespace plumb {
namespace {

constexpr size_t kHotLinks = 10;
constexpr int32_t kWaitRows = 128;  // ranks, or blocks of ranks beyond
constexpr int32_t kPhaseRows = 64;
constexpr int32_t kWidth = 1100;  // pixels

/// Light to dark, also readable in grey.
constexpr std::string_view kPalette =
    "set palette defined (0 '#ffffff', 0.02 '#ffffe0', 0.25 '#fed976', 0.5 '#fd8d3c', 0.75 '#e31a1c', "
    "1 '#800026')\n";
constexpr std::array<std::string_view, 20> kColours = {"#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd",
                                                       "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf",
                                                       "#0b3d91", "#a65200", "#0b5d1e", "#7b0f14", "#4b2a7b",
                                                       "#d4a017", "#f4a6c6", "#404040", "#66c2a5", "#9ecae1"};

std::string_view colour(size_t index) { return kColours[index % kColours.size()]; }

std::string heading(const RunSights& run, std::string_view what) {
  return fmt::format("set title {} font ',13'\n", gnuplot_quoted(fmt::format("{}: {}", run.title, what)));
}

/// Ticks on a downward axis, one per row that has a label.
std::string row_labels(const std::vector<std::string>& labels, int32_t size) {
  std::string ticks;
  for (size_t i = 0; i < labels.size(); ++i)
    if (!labels[i].empty())
      ticks += fmt::format("{}{} {}", ticks.empty() ? "" : ", ", gnuplot_quoted(labels[i]), i);
  return fmt::format("set ytics ({}) font ',{}' scale 0\nset yrange [{}:-0.5]\n", ticks, size,
                     static_cast<double>(labels.size()) - 0.5);
}

std::string grid_line(size_t before_row) {
  const double y = static_cast<double>(before_row) - 0.5;
  return fmt::format(
      "set arrow from graph 0, first {} to graph 1, first {} nohead front lc '#606060' lw 0.6\n", y, y);
}

double microseconds_of(sim::Ps time) { return static_cast<double>(time) * 1e-6; }

/// Where the cells of an image stand on its axes.
struct Grid {
  size_t rows = 0;
  size_t columns = 0;
  double left = 0;  // edge of the first cell
  double top = 0;
  double width = 1;  // of a cell
  double height = 1;
};

/// Data and plot command; values below 0 are left out. Cells are several pixels wide, since some viewers
/// smooth the pixels of an image.
std::string image(const Grid& g, const std::function<double(size_t row, size_t column)>& value) {
  const size_t wide = std::clamp<size_t>(600 / g.columns, 1, 8);
  const size_t high = std::clamp<size_t>(400 / g.rows, 1, 8);
  std::string text = "$data << END\n";
  for (size_t row = 0; row < g.rows; ++row) {
    std::string line;
    for (size_t column = 0; column < g.columns; ++column) {
      const std::string cell = fmt::format("{:.4g} ", value(row, column));
      for (size_t i = 0; i < wide; ++i) line += cell;
    }
    line.back() = '\n';
    for (size_t i = 0; i < high; ++i) text += line;
  }
  return text + fmt::format(
                    "END\nplot $data matrix using ({}+($1+0.5)*{}):({}+($2+0.5)*{}):($3<0?NaN:$3) with image "
                    "notitle\n",
                    g.left, g.width / static_cast<double>(wide), g.top, g.height / static_cast<double>(high));
}

/// Use of links or classes over time.
struct HeatMap {
  std::string what;
  std::vector<std::string> labels;
  std::vector<size_t> borders;  // lines above these rows
  int32_t row_height = 12;
  std::function<double(size_t row, int32_t bin)> use;
};

Picture use_picture(const RunSights& run, const HeatMap& map) {
  const sim::LinkTimeline& t = run.report.timeline;
  std::string script = heading(run, map.what);
  script += kPalette;
  script += row_labels(map.labels, map.row_height >= 16 ? 10 : 8);
  for (const size_t row : map.borders) script += grid_line(row);
  const double width = microseconds_of(t.width);
  script += fmt::format(
      "set xrange [0:{}]\nset xlabel 'simulated time, us'\nset cbrange [0:100]\n"
      "set cblabel 'bytes sent, percent of what the link can send'\nset tics out nomirror\n",
      width * t.bins());
  const Grid grid{.rows = map.labels.size(),
                  .columns = static_cast<size_t>(t.bins()),
                  .left = 0,
                  .top = -0.5,
                  .width = width,
                  .height = 1};
  script += image(
      grid, [&](size_t row, size_t column) { return 100 * map.use(row, static_cast<int32_t>(column)); });
  const auto rows = static_cast<int32_t>(map.labels.size());
  return {.title = run.title + ": " + map.what,
          .width = kWidth,
          .height = std::max(260, rows * map.row_height + 110),
          .script = script};
}

Picture class_picture(const RunSights& run) {
  const sim::LinkTimeline& t = run.report.timeline;
  HeatMap map;
  map.what = "use of link classes";
  map.row_height = 20;
  for (size_t c = 0; c < t.classes.size(); ++c) {
    map.labels.push_back(fmt::format("{}, mean of {}", t.classes[c].name, t.classes[c].links));
    map.labels.push_back("busiest link");
    if (c > 0) map.borders.push_back(2 * c);
  }
  map.use = [&t](size_t row, int32_t bin) {
    const sim::LinkClass& c = t.classes[row / 2];
    return row % 2 == 0 ? t.mean_use(c, bin) : c.peak[static_cast<size_t>(bin)];
  };
  return use_picture(run, map);
}

Picture link_picture(const RunSights& run) {
  const sim::LinkTimeline& t = run.report.timeline;
  const auto used = std::count_if(run.report.links.begin(), run.report.links.end(),
                                  [](const sim::LinkUse& use) { return use.packet_bytes > 0; });
  HeatMap map;
  map.what = static_cast<size_t>(used) == t.series.size()
                 ? fmt::format("use of the {} links that carry something", used)
                 : fmt::format("use of the {} hottest of {} links", t.series.size(), used);
  for (size_t i = 0; i < t.series.size(); ++i) {
    map.labels.push_back(sim::name_of_link(run.fabric, t.series[i].link));
    if (i > 0 && t.series[i].link_class != t.series[i - 1].link_class) map.borders.push_back(i);
  }
  map.use = [&t](size_t row, int32_t bin) { return t.use(t.series[row], bin); };
  return use_picture(run, map);
}

/// Bars of a lane: of which row, from where to where.
struct Bar {
  size_t row = 0;
  double begin = 0;
  double end = 0;
};

std::string block(const std::string& name, const std::vector<Bar>& bars, double height, double shift) {
  std::string text = fmt::format("${} << END\n", name);
  for (const Bar& bar : bars) {
    const double y = static_cast<double>(bar.row) + shift;
    text += fmt::format("{:.6g} {:.4f} {:.6g} {:.6g} {:.4f} {:.4f}\n", (bar.begin + bar.end) / 2, y,
                        bar.begin, bar.end, y - height / 2, y + height / 2);
  }
  return text + "END\n";
}

std::string plot_block(const std::string& name, const std::string& title, size_t index) {
  return fmt::format("${} using 1:2:3:4:5:6 with boxxyerror fs solid 0.9 noborder lc rgb '{}' title {}", name,
                     colour(index), gnuplot_quoted(title));
}

using LaneKey = std::pair<int32_t, int32_t>;  // virtual lane, hop class

/// One of the two halves: what `value` says of each lane, stacked by link.
std::string lane_half(const RunSights& run, const std::vector<LinkSight>& hot, const std::set<LaneKey>& keys,
                      const std::string& name, const std::function<double(const sim::LaneUse&)>& value) {
  std::vector<double> filled(hot.size());
  std::string blocks, plot;
  size_t index = 0;
  double most = 0;
  for (const LaneKey& key : keys) {
    std::vector<Bar> bars;
    for (size_t row = 0; row < hot.size(); ++row)
      for (const sim::LaneUse& lane : run.report.lanes) {
        if ((lane.link != hot[row].link && lane.last_link != hot[row].link) ||
            LaneKey(lane.virtual_lane, lane.hop_class) != key)
          continue;
        bars.push_back({row, filled[row], filled[row] + value(lane)});
        most = std::max(most, filled[row] += value(lane));
      }
    if (bars.empty()) continue;
    const std::string of = fmt::format("{}{}", name, index);
    blocks += block(of, bars, 0.7, 0);
    plot += (plot.empty() ? "plot " : ", ") +
            plot_block(of, fmt::format("lane {}, hop class {}", key.first, key.second), index);
    ++index;
  }
  blocks += fmt::format("set xrange [0:{}]\n", most > 0 ? most * 1.02 : 1);
  if (most == 0) blocks += "set label 1 'none' at graph 0.5, graph 0.5 center\n";
  return blocks + plot + "\nunset label 1\n";
}

Picture lane_picture(const RunSights& run) {
  const std::vector<LinkSight> hot = hottest(sights(run.report), kHotLinks);
  std::set<LaneKey> keys;
  for (const sim::LaneUse& lane : run.report.lanes) keys.emplace(lane.virtual_lane, lane.hop_class);
  std::vector<std::string> labels;
  for (const LinkSight& s : hot) labels.push_back(sim::name_of_link(run.fabric, s.link));
  std::string script = fmt::format(
      "set multiplot layout 1,2 title {} font ',13'\nset grid x lc '#dddddd'\nset tics out nomirror\n"
      "set key above font ',9'\n",
      gnuplot_quoted(run.title + ": lanes of the hottest links"));
  script += row_labels(labels, 9) + "set xlabel 'bytes sent, MB'\n";
  script += lane_half(run, hot, keys, "bytes",
                      [](const sim::LaneUse& lane) { return static_cast<double>(lane.packet_bytes) * 1e-6; });
  script += "set xlabel 'stalled for credits, us (sum of lanes)'\n";
  script += lane_half(run, hot, keys, "stalls",
                      [](const sim::LaneUse& lane) { return microseconds_of(lane.stalled); });
  script += "unset multiplot\n";
  return {.title = run.title + ": lanes of the hottest links",
          .width = kWidth,
          .height = static_cast<int32_t>(hot.size()) * 24 + 150,
          .script = script};
}

Picture wait_picture(const RunSights& run) {
  const WaitMatrix& waits = *run.report.waits;
  const int32_t size = (waits.ranks() + kWaitRows - 1) / kWaitRows;
  const auto rows = static_cast<size_t>((waits.ranks() + size - 1) / size);
  std::vector<double> values(rows * rows, -1);
  double most = 1e-3;
  for (Rank s = 0; s < waits.ranks(); ++s)
    for (Rank d = 0; d < waits.ranks(); ++d) {
      if (s == d) continue;
      double& value = values[static_cast<size_t>(s / size) * rows + static_cast<size_t>(d / size)];
      value = std::max(value, microseconds(waits.at(s, d)));
      most = std::max(most, value);
    }
  const std::string what = size == 1 ? "how long each destination waited for each source"
                                     : fmt::format("longest wait of blocks of {0} x {0} ranks", size);
  std::string script = heading(run, what);
  script += kPalette;
  script += fmt::format(
      "set xrange [-0.5:{0}]\nset yrange [{0}:-0.5]\nset xlabel 'destination rank'\n"
      "set ylabel 'source rank'\nset cbrange [0:{1:.6g}]\nset cblabel 'wait, us'\n"
      "set tics out nomirror\nset size ratio 1\nset border lc '#606060'\n"
      "set object 1 rectangle from graph 0,0 to graph 1,1 behind fc '#d8d8d8' fs solid noborder\n",
      waits.ranks() - 0.5, most);
  const Grid grid{.rows = rows,
                  .columns = rows,
                  .left = -0.5,
                  .top = -0.5,
                  .width = double(size),
                  .height = double(size)};
  script += image(grid, [&](size_t s, size_t d) { return values[s * rows + d]; });
  return {.title = run.title + ": " + what, .width = 720, .height = 640, .script = script};
}

/// Bars of the phases of each rank, or block of ranks.
struct PhaseBars {
  int32_t block = 1;  // ranks of a row
  size_t rows = 0;
  size_t phases = 0;
  double last = 1e-3;     // end of the last, us
  std::vector<Bar> bars;  // [rows][phases], those without an end are not there

  const Bar& at(size_t row, size_t phase) const { return bars[row * phases + phase]; }
};

PhaseBars phase_bars(const Trace& trace) {
  Rank ranks = 1;
  for (const Span& span : trace.spans) ranks = std::max(ranks, span.rank + 1);
  PhaseBars p;
  p.block = (ranks + kPhaseRows - 1) / kPhaseRows;
  p.rows = static_cast<size_t>((ranks + p.block - 1) / p.block);
  p.phases = trace.header.phases.size();
  p.bars.resize(p.rows * p.phases, Bar{.row = 0, .begin = 1e300, .end = -1});
  for (const Span& span : trace.spans) {
    const auto row = static_cast<size_t>(span.rank / p.block);
    Bar& bar = p.bars[row * p.phases + static_cast<size_t>(span.phase)];
    bar = {row, std::min(bar.begin, static_cast<double>(span.begin_ns) * 1e-3),
           std::max(bar.end, static_cast<double>(span.end_ns) * 1e-3)};
    p.last = std::max(p.last, bar.end);
  }
  return p;
}

/// Phases that overlap in no row share a track. By phase, and the number of tracks at the end.
std::vector<size_t> phase_tracks(const PhaseBars& p) {
  std::vector<size_t> tracks(p.phases + 1);
  const auto overlap = [&](size_t a, size_t b) {
    for (size_t row = 0; row < p.rows; ++row)
      if (std::max(p.at(row, a).begin, p.at(row, b).begin) < std::min(p.at(row, a).end, p.at(row, b).end))
        return true;
    return false;
  };
  for (size_t a = 0; a < p.phases; ++a) {
    const auto is_taken = [&](size_t track) {
      for (size_t b = 0; b < a; ++b)
        if (tracks[b] == track && overlap(a, b)) return true;
      return false;
    };
    while (is_taken(tracks[a])) ++tracks[a];
    tracks[p.phases] = std::max(tracks[p.phases], tracks[a] + 1);
  }
  return tracks;
}

Picture phase_picture(const RunSights& run) {
  const PhaseBars p = phase_bars(run.trace);
  const std::vector<size_t> tracks = phase_tracks(p);
  const std::string what =
      p.block == 1 ? "phases of each rank"
                   : fmt::format("phases of blocks of {} ranks, first begin to last end", p.block);
  std::vector<std::string> labels;
  const size_t every = p.rows <= 32 ? 1 : 2;
  for (size_t row = 0; row < p.rows; ++row)
    labels.push_back(row % every == 0 ? fmt::format("rank {}", row * static_cast<size_t>(p.block)) : "");
  std::string script = heading(run, what) + row_labels(labels, 8);
  for (size_t row = 1; row < p.rows; ++row) script += grid_line(row);
  script += fmt::format(
      "set xrange [0:{:.6g}]\nset xlabel 'simulated time, us'\nset tics out nomirror\n"
      "set grid x lc '#dddddd'\nset key outside right top Left reverse font ',9'\n",
      p.last * 1.01);
  std::string plot;
  const double height = 0.9 / static_cast<double>(tracks.back());
  for (size_t phase = 0; phase < p.phases; ++phase) {
    std::vector<Bar> bars;
    for (size_t row = 0; row < p.rows; ++row)
      if (p.at(row, phase).end >= 0) bars.push_back(p.at(row, phase));
    if (bars.empty()) continue;
    const std::string name = fmt::format("phase{}", phase);
    script += block(name, bars, height, height * (static_cast<double>(tracks[phase]) + 0.5) - 0.45);
    plot += (plot.empty() ? "plot " : ", ") + plot_block(name, run.trace.header.phases[phase], phase);
  }
  const auto per_row = std::clamp<int32_t>(static_cast<int32_t>(tracks.back()) * 8, 12, 32);
  return {.title = run.title + ": " + what,
          .width = kWidth,
          .height = std::clamp(static_cast<int32_t>(p.rows) * per_row + 110, 260, 1600),
          .script = script + plot + "\n"};
}

}  // namespace

std::vector<Picture> pictures(const RunSights& run) {
  std::vector<Picture> list;
  if (!run.trace.spans.empty()) list.push_back(phase_picture(run));
  if (run.report.timeline.bins() > 0 && !run.report.timeline.series.empty()) {
    list.push_back(class_picture(run));
    list.push_back(link_picture(run));
    if (!run.report.lanes.empty()) list.push_back(lane_picture(run));
  }
  if (run.report.waits && run.report.waits->ranks() > 1) list.push_back(wait_picture(run));
  return list;
}

}  // namespace plumb

// The page of a simulated run: pictures and tables in one HTML file that needs nothing else.
#pragma once

#include <string>
#include <vector>

#include "model/compare.h"
#include "model/fabric.h"
#include "model/trace.h"
#include "sim/sim_executor.h"
#include "tools/gnuplot.h"

namespace plumb {

struct RunSights {
  std::string title;  // names the experiment and the point
  const Trace& trace;
  const Fabric& fabric;
  const sim::SimReport& report;
  const std::vector<WaitFinding>& findings;
};

/// The same bytes for the same run. Pictures need gnuplot; without it the page says so and has the tables.
/// Below 2 MB: rows of pictures are merged where there are many.
std::string report_page(const RunSights& run);

/// The pictures of the page (report_pictures.cc); those that have nothing to show are left out.
std::vector<Picture> pictures(const RunSights& run);

}  // namespace plumb

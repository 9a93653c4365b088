// Pictures by gnuplot (http://www.gnuplot.info), as SVG that can stand inside a page.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plumb {

/// Text as a string of a gnuplot script.
std::string gnuplot_quoted(std::string_view text);

struct Picture {
  std::string title;  // for readers that cannot see it
  int32_t width = 0;  // pixels
  int32_t height = 0;
  std::string script;  // what comes after `set terminal`, data included
};

/// The <svg> element of each picture, without dates, versions, comments and point symbols; nothing when
/// gnuplot is not installed. Throws Error(environment) with the exit status when it fails; it prints why.
std::optional<std::vector<std::string>> draw(std::span<const Picture> pictures);

}  // namespace plumb

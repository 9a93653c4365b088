// Reader of topologies/fidelity/flow_efficiency.yaml.
#include "sim/flow_efficiency.h"

#include <limits>

namespace plumb::sim {

namespace {

Range<int64_t> read_range(ConfigMap& row, std::string_view key) {
  const std::vector<int64_t> ends = row.integer_list(key, {0, std::numeric_limits<int64_t>::max()});
  if (ends.size() == 2 && ends[0] <= ends[1]) return {ends[0], ends[1]};
  row.fail(key, "must be [smallest, largest]");
  return {0, 0};
}

EfficiencyRow read_row(ConfigMap row) {
  EfficiencyRow result;
  result.kind = row.text("kind");
  result.policy =
      row.choice<FlowPolicy>("policy", {{"split", FlowPolicy::split}, {"hash", FlowPolicy::hash}});
  result.ranks = read_range(row, "ranks");
  result.bytes_per_pair = read_range(row, "bytes_per_pair");
  result.ratio = row.number("ratio", {0.1, 100});
  result.spread = row.number("spread", {0, 100});
  return result;
}

bool overlap(Range<int64_t> a, Range<int64_t> b) { return a.min <= b.max && b.min <= a.max; }

bool overlap(const EfficiencyRow& a, const EfficiencyRow& b) {
  return a.kind == b.kind && a.policy == b.policy && overlap(a.ranks, b.ranks) &&
         overlap(a.bytes_per_pair, b.bytes_per_pair);
}

bool contains(Range<int64_t> range, int64_t value) { return range.min <= value && value <= range.max; }

}  // namespace

FlowEfficiency FlowEfficiency::load(const std::string& path) { return read(ConfigFile::load(path)); }
FlowEfficiency FlowEfficiency::parse(std::string_view text, std::string name) {
  return read(ConfigFile::parse(text, std::move(name)));
}

FlowEfficiency FlowEfficiency::read(ConfigFile file) {
  FlowEfficiency result;
  ConfigMap root = file.root();
  root.schema("plumb.flow_efficiency/1");
  ConfigList list = root.list("rows");
  for (size_t i = 0; i < list.size(); ++i) {
    EfficiencyRow row = read_row(list.map(i));
    for (size_t k = 0; k < result.rows_.size(); ++k)
      if (overlap(row, result.rows_[k])) list.fail(i, fmt::format("overlaps row {}", k));
    result.rows_.push_back(std::move(row));
  }
  file.finish();
  return result;
}

std::optional<Efficiency> FlowEfficiency::efficiency(std::string_view kind, FlowPolicy policy, int64_t ranks,
                                                     int64_t bytes_per_pair) const {
  for (const EfficiencyRow& row : rows_)
    if (row.kind == kind && row.policy == policy && contains(row.ranks, ranks) &&
        contains(row.bytes_per_pair, bytes_per_pair))
      return Efficiency{row.ratio, row.spread};
  return std::nullopt;
}

}  // namespace plumb::sim

// Reads the public record in its two forms.
#include "model/published.h"

#include <limits>
#include <set>

#include "model/config.h"
#include "model/error.h"

namespace plumb {
namespace {

constexpr Range<int64_t> kCount{.min = 1, .max = 1 << 30};
constexpr Range<double> kValue{.min = 1e-6, .max = 1e9};

/// "~", a key without a value, is how the record says that its source is silent.
bool is_silent(ConfigMap& map, std::string_view key) { return map.raw(key).empty(); }

std::string text(ConfigMap& map, std::string_view key) { return is_silent(map, key) ? "" : map.text(key); }

int32_t count(ConfigMap& map, std::string_view key) {
  return is_silent(map, key) ? 0 : static_cast<int32_t>(map.integer(key, kCount));
}

double number(ConfigMap& map, std::string_view key) {
  return is_silent(map, key) ? 0 : map.number(key, kValue);
}

PublishedRow read_entry(ConfigMap map) {
  PublishedRow row;
  row.id = map.text("id");
  row.system = map.text("system");
  row.mode = text(map, "mode");
  row.arch = text(map, "arch");
  row.gpu = text(map, "gpu");
  row.nic = text(map, "nic");
  row.topology = text(map, "topology");
  row.op = map.text("op");
  row.dispatch_type = text(map, "dtype_dispatch");
  row.combine_type = text(map, "dtype_combine");
  row.source = map.text("source");
  row.date = text(map, "date");
  row.seen = text(map, "seen");
  row.note = text(map, "note");
  row.ranks = count(map, "ep");
  row.tokens = count(map, "tokens");
  row.hidden = count(map, "hidden");
  row.topk = count(map, "topk");
  row.experts = count(map, "experts");
  row.sms = count(map, "sms");
  const double latency = number(map, "latency_us");
  const double bandwidth = number(map, "bandwidth_gbs");
  const std::string kind = text(map, "bandwidth_kind");
  row.value = latency > 0 ? latency : bandwidth;
  row.unit = latency > 0 ? "us" : kind;
  if (row.value == 0) map.fail("id", "the row has neither latency_us nor bandwidth_gbs");
  if (row.value > 0 && row.unit.empty()) map.fail("bandwidth_gbs", "the bandwidth has no bandwidth_kind");
  return row;
}

/// Rows of a host file: a plain value, or one for each number of SMs.
void read_host_row(ConfigMap map, const std::string& host, std::vector<PublishedRow>& out) {
  PublishedRow row;
  row.system = map.text("system");
  row.op = map.text("op");
  row.tokens = static_cast<int32_t>(map.integer("tokens", kCount));
  const std::string type = map.text("dtype");
  row.dispatch_type = type.substr(0, type.find('/'));
  row.combine_type = type.substr(type.find('/') + 1);  // the whole text when there is no '/'
  row.gpu = "H200";
  row.topology = "2x1";
  row.ranks = 2;
  row.unit = "us";
  row.source = host;
  row.seen = "primary";
  map.ignore("epilogue_us");  // event minus kernel, in other words
  const std::string name = fmt::format("{}:{} {} {} T{}", host, row.system.substr(0, row.system.find(" (")),
                                       row.op, type, row.tokens);
  for (const std::string quantity : {"kernel", "event"}) {
    const std::string key = quantity + "_us";
    row.quantity = quantity;
    if (!map.has(key)) continue;
    if (!map.raw(key).empty()) {
      row.id = fmt::format("{} {}", name, key);
      row.value = map.number(key, kValue);
      out.push_back(row);
      continue;
    }
    ConfigMap by_sms = map.map(key);
    for (const std::string& sms : by_sms.keys()) {
      row.sms = std::atoi(sms.c_str());
      if (row.sms < 1) by_sms.fail(sms, fmt::format("'{}' is no number of SMs", sms));
      row.id = fmt::format("{} {}sm {}", name, sms, key);
      row.value = by_sms.number(sms, kValue);
      out.push_back(row);
    }
    row.sms = 0;
  }
}

}  // namespace

std::vector<PublishedRow> read_published(const std::string& path) {
  ConfigFile file = ConfigFile::load(path);
  ConfigMap root = file.root();
  root.integer("schema", {.min = 1, .max = 1});
  std::vector<PublishedRow> rows;
  if (root.has("entries")) {
    ConfigList entries = root.list("entries");
    for (size_t i = 0; i < entries.size(); ++i) rows.push_back(read_entry(entries.map(i)));
    // Other parts of the record: its sources, and figures that are no dispatch or combine.
    for (const char* key :
         {"units", "sources", "microbenchmarks", "message_size_curve", "serving", "expectations"})
      root.ignore(key);
  } else {
    const std::string host = root.text("machine");
    ConfigList list = root.list("rows");
    for (size_t i = 0; i < list.size(); ++i) read_host_row(list.map(i), host, rows);
  }
  std::set<std::string> seen;
  for (const PublishedRow& row : rows)
    if (!seen.insert(row.id).second) root.fail("schema", fmt::format("two rows have the id '{}'", row.id));
  file.finish();
  return rows;
}

}  // namespace plumb

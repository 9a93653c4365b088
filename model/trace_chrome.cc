// Traces as Chrome trace events (docs/trace.md), streamed: at most 8 bytes of memory a span.
#include <algorithm>
#include <iterator>
#include <ostream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "model/error.h"
#include "model/trace.h"

namespace plumb {
namespace {

/// A JSON string literal; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

struct Track {
  Rank rank = 0;
  int16_t phase = 0;
  int16_t lane = -1;
  auto operator<=>(const Track&) const = default;
};

/// Unique in a rank and above 0, since viewers give thread 0 a meaning of its own. Ordered by phase, then
/// lane.
int64_t thread_id(int16_t phase, int16_t lane) { return int64_t{phase} * 65536 + lane + 2; }

/// Nanoseconds as exact microseconds.
std::string us_text(int64_t ns) {
  const uint64_t magnitude = ns < 0 ? uint64_t{0} - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", magnitude / 1000, magnitude % 1000);
}

std::vector<Track> tracks(const Trace& trace) {
  std::vector<Track> result;
  for (const Span& span : trace.spans) {
    const Track track{span.rank, span.phase, span.lane};
    if (result.empty() || result.back() != track) result.push_back(track);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

class Writer {
 public:
  explicit Writer(std::ostream& out) : out_(out) {}

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= (1u << 16)) flush();
  }

  /// Begins an event, after a comma but for the first.
  void next_event() {
    put("{}", is_first_ ? "\n" : ",\n");
    is_first_ = false;
  }

  void flush() {
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }

 private:
  std::ostream& out_;
  fmt::memory_buffer buffer_;
  bool is_first_ = true;
};

void write_names(Writer& writer, const std::vector<Track>& tracks, const std::vector<std::string>& phases) {
  for (size_t i = 0; i < tracks.size(); ++i) {
    const Track& track = tracks[i];
    if (i == 0 || tracks[i - 1].rank != track.rank) {
      writer.next_event();
      writer.put(R"({{"ph":"M","name":"process_name","pid":{},"tid":0,"args":{{"name":"rank {}"}}}})",
                 track.rank, track.rank);
      writer.next_event();
      writer.put(R"({{"ph":"M","name":"process_sort_index","pid":{},"tid":0,"args":{{"sort_index":{}}}}})",
                 track.rank, track.rank);
    }
    const std::string lane = track.lane < 0 ? "" : fmt::format(" lane {}", track.lane);
    const int64_t thread = thread_id(track.phase, track.lane);
    writer.next_event();
    writer.put(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", track.rank,
               thread, json_string(phases[static_cast<size_t>(track.phase)] + lane));
    writer.next_event();
    writer.put(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
               track.rank, thread, thread);
  }
}

void write_run(Writer& writer, const Trace& trace) {
  const TraceHeader& header = trace.header;
  const nlohmann::ordered_json run = {
      {"executor", header.executor}, {"version", header.version},     {"plan", to_string(header.plan)},
      {"program", header.program},   {"machine", header.machine},     {"clock", header.clock},
      {"seed", header.seed},         {"repeat", header.repeat},       {"complete", header.complete},
      {"note", header.note},         {"bottleneck", trace.bottleneck}};
  writer.put("{}", run.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

void write_chrome(std::ostream& out, const Trace& trace) {
  const std::vector<std::string>& phases = trace.header.phases;
  for (const Span& span : trace.spans)
    PLUMB_CHECK(span.rank >= 0 && span.phase >= 0 && static_cast<size_t>(span.phase) < phases.size(),
                "span of rank {}, phase {} of {}", span.rank, span.phase, phases.size());
  std::vector<std::string> names;
  for (const std::string& phase : phases) names.push_back(json_string(phase));

  Writer writer(out);
  writer.put(R"({{"displayTimeUnit":"ns","otherData":)");
  write_run(writer, trace);
  writer.put(R"(,"traceEvents":[)");
  write_names(writer, tracks(trace), phases);
  for (const Span& span : trace.spans) {
    writer.next_event();
    writer.put(R"({{"ph":"X","cat":"plumb","name":{},"pid":{},"tid":{},"ts":{},"dur":{},)",
               names[static_cast<size_t>(span.phase)], span.rank, thread_id(span.phase, span.lane),
               us_text(span.begin_ns), us_text(span.end_ns - span.begin_ns));
    writer.put(R"("args":{{"op":{},"messages":{},"bytes":{}}}}})", span.op, span.messages, span.bytes);
  }
  writer.put("\n]}}\n");
  writer.flush();
  out.flush();
  if (!out) throw Error(ErrorKind::environment, "cannot write the Chrome trace: disk full or file closed");
}

}  // namespace plumb

// Traces: bytes of the CSV form, its refusals, the Chrome form, and summaries.
#include "model/trace.h"

#include <locale>
#include <map>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/error.h"

namespace plumb {
namespace {

Trace small_trace() {
  Trace trace;
  trace.header = {.executor = "sim",
                  .version = "0.1.0",
                  .plan = {0x0123456789abcdef, 0xfedcba9876543210},
                  .program = "kind=dispatch mode=hybrid",
                  .machine = "h800",
                  .clock = "simulated",
                  .seed = 18446744073709551615u,
                  .repeat = 3,
                  .complete = true,
                  .note = "plumb run, node 7",
                  .phases = {"notify", "send"}};
  trace.spans = {
      {0, 0, -1, 0, -5, 1000, 1, 8}, {1, 1, 3, 2, 1000, 4500, 2, 14336}, {0, 1, -1, -1, 900, 900, 0, 0}};
  trace.phase_times = {{nanoseconds(1005), nanoseconds(0.001), "latency"},
                       {nanoseconds(3600.25), nanoseconds(2867.2), "scale_out nic"}};
  trace.ledger = Ledger({{0, 0, 1, 1, 8}, {1, 1, 0, 2, 14336}});
  trace.total = nanoseconds(4505);
  trace.lower = nanoseconds(2867.2);
  trace.bottleneck = "scale_out nic";
  return trace;
}

constexpr const char* kSmallText =
    "#plumb.trace/1\n"
    "#executor: sim\n"
    "#version: 0.1.0\n"
    "#plan: 0123456789abcdeffedcba9876543210\n"
    "#program: kind=dispatch mode=hybrid\n"
    "#machine: h800\n"
    "#clock: simulated\n"
    "#seed: 18446744073709551615\n"
    "#repeat: 3\n"
    "#complete: yes\n"
    "#note: plumb run, node 7\n"
    "#total_ns: 4505\n"
    "#lower_ns: 2867.2\n"
    "#bottleneck: scale_out nic\n"
    "#phases: 2\n"
    "#phase: 0,notify,1005,0.001,1,8,latency\n"
    "#phase: 1,send,3600.25,2867.2,2,14336,scale_out nic\n"
    "#pairs: 2\n"
    "#pair: 0,0,1,1,8\n"
    "#pair: 1,1,0,2,14336\n"
    "#spans: 3\n"
    "rank,phase,lane,op,begin_ns,end_ns,messages,bytes\n"
    "0,0,-1,0,-5,1000,1,8\n"
    "1,1,3,2,1000,4500,2,14336\n"
    "0,1,-1,-1,900,900,0,0\n";

std::string csv_of(const Trace& trace) {
  std::ostringstream out;
  write_csv(out, trace);
  return out.str();
}

Trace trace_of(const std::string& text) {
  std::istringstream in(text);
  return read_csv(in, "run.csv");
}

/// kSmallText with one piece replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string text = kSmallText;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// "line:column: message" of the problems of a text, "" when it is accepted.
std::string problems_of(const std::string& text) {
  try {
    trace_of(text);
    return "";
  } catch (const ConfigError& error) {
    std::string result;
    for (const Problem& problem : error.problems()) {
      EXPECT_EQ(problem.where.file, "run.csv");
      result += fmt::format("{}:{}: {}\n", problem.where.line, problem.where.column, problem.message);
    }
    return result;
  }
}

TEST(TraceCsv, WritesExactlyTheDocumentedBytes) { EXPECT_EQ(csv_of(small_trace()), kSmallText); }

TEST(TraceCsv, ReadsBackEveryField) {
  const Trace trace = trace_of(kSmallText);
  const Trace expected = small_trace();
  EXPECT_EQ(trace.header.executor, "sim");
  EXPECT_EQ(trace.header.version, "0.1.0");
  EXPECT_EQ(trace.header.plan, expected.header.plan);
  EXPECT_EQ(trace.header.program, "kind=dispatch mode=hybrid");
  EXPECT_EQ(trace.header.machine, "h800");
  EXPECT_EQ(trace.header.clock, "simulated");
  EXPECT_EQ(trace.header.seed, 18446744073709551615u);
  EXPECT_EQ(trace.header.repeat, 3);
  EXPECT_TRUE(trace.header.complete);
  EXPECT_EQ(trace.header.note, "plumb run, node 7");
  EXPECT_EQ(trace.header.phases, expected.header.phases);
  EXPECT_EQ(trace.spans, expected.spans);
  EXPECT_EQ(trace.ledger, expected.ledger);
  ASSERT_EQ(trace.phase_times.size(), 2u);
  EXPECT_DOUBLE_EQ(trace.phase_times[1].time.value, 3600.25e-9);
  EXPECT_DOUBLE_EQ(trace.phase_times[1].lower.value, 2867.2e-9);
  EXPECT_EQ(trace.phase_times[1].bottleneck, "scale_out nic");
  EXPECT_EQ(trace.phase_times[1].messages, 2);
  EXPECT_EQ(trace.phase_times[1].bytes, 14336);
  EXPECT_DOUBLE_EQ(trace.total.value, 4505e-9);
  EXPECT_EQ(trace.bottleneck, "scale_out nic");
}

TEST(TraceCsv, RoundTripIsByteIdentical) {
  EXPECT_EQ(csv_of(trace_of(kSmallText)), kSmallText);

  Trace empty;
  empty.header.executor = "host";
  const std::string text = csv_of(empty);
  EXPECT_NE(text.find("#machine:\n"), std::string::npos);  // no blank at the end of a line
  EXPECT_EQ(csv_of(trace_of(text)), text);

  // Times whose double is not exact, up to the last picosecond below 1000 s and the nanoseconds above.
  for (double seconds : {1e-12, 0.1e-9, 1.0 / 3, 999.999999999999, 1000.0, 1234.000000001, 1e6}) {
    Trace trace = small_trace();
    trace.total = {seconds};
    EXPECT_EQ(csv_of(trace_of(csv_of(trace))), csv_of(trace)) << seconds;
  }
  Trace third = small_trace();
  third.total = {1.0 / 3};
  EXPECT_NE(csv_of(third).find("#total_ns: 333333333.333\n"), std::string::npos);
}

TEST(TraceCsv, DoesNotDependOnTheLocale) {
  struct Grouping : std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
    char do_decimal_point() const override { return ','; }
  };
  const std::locale previous = std::locale::global(std::locale(std::locale::classic(), new Grouping));
  const std::string text = csv_of(small_trace());
  const std::string again = csv_of(trace_of(text));
  std::locale::global(previous);
  EXPECT_EQ(text, kSmallText);
  EXPECT_EQ(again, kSmallText);
}

TEST(TraceCsv, KeepsTextInOneLine) {
  Trace trace = small_trace();
  trace.header.note = " two\nlines\r ";
  trace.header.phases[0] = "a,b";
  const std::string text = csv_of(trace);
  EXPECT_NE(text.find("#note: two lines\n"), std::string::npos);
  EXPECT_NE(text.find("#phase: 0,a b,1005"), std::string::npos);
  EXPECT_EQ(csv_of(trace_of(text)), text);
}

TEST(TraceCsv, OfALargeLedgerKeepsTheTotalsOfEachPhase) {
  Trace trace = small_trace();
  std::vector<LedgerEntry> pairs;
  for (Rank r = 0; r < 4097; ++r) pairs.push_back({1, r, 0, 1, 10});
  trace.ledger = Ledger(pairs);
  const std::string text = csv_of(trace);
  EXPECT_NE(text.find("#phase: 1,send,3600.25,2867.2,4097,40970,scale_out nic\n#pairs: 0\n"),
            std::string::npos);
  const Trace back = trace_of(text);
  EXPECT_EQ(phase_totals(back)[1], (LedgerEntry{1, 0, 0, 4097, 40970}));
  EXPECT_EQ(csv_of(back), text);

  pairs.pop_back();
  trace.ledger = Ledger(pairs);
  EXPECT_EQ(trace_of(csv_of(trace)).ledger, trace.ledger);  // 4096 are stored
}

TEST(TraceCsv, KeepsWaitsBetweenLedgerAndSpans) {
  Trace trace = small_trace();
  trace.waits = {{0, 1, 1500}, {1, 0, 0}};
  const std::string text = csv_of(trace);
  EXPECT_NE(text.find("#pair: 1,1,0,2,14336\n#waits: 2\n#wait: 0,1,1500\n#wait: 1,0,0\n#spans: 3\n"),
            std::string::npos);
  EXPECT_EQ(trace_of(text).waits, trace.waits);
  EXPECT_EQ(csv_of(trace_of(text)), text);

  // All pairs of 128 ranks are stored; a part of a larger matrix would blame the wrong ranks.
  trace.waits.clear();
  for (Rank i = 0; i < 128 * 128; ++i)
    if (i / 128 != i % 128) trace.waits.push_back({i / 128, i % 128, i});
  EXPECT_EQ(trace_of(csv_of(trace)).waits, trace.waits);
  trace.waits.push_back({128, 0, 5});
  EXPECT_EQ(csv_of(trace).find("#wait"), std::string::npos);
}

TEST(TraceCsv, RefusesWrongWaits) {
  const auto problems = [](const std::string& lines) {
    return problems_of(with("#spans: 3", lines + "#spans: 3"));
  };
  EXPECT_EQ(problems("#waits: 1\n#wait: 0,1,5\n"), "");
  EXPECT_EQ(problems("#waits: 0\n"),
            "21:9: waits: found '0', allowed an integer 1 to 16256 without leading zeros\n");
  EXPECT_EQ(problems("#waits: 1\n#wait: 0,1\n"), "22:8: found 2 fields, expected 3: src,dst,ns\n");
  EXPECT_EQ(problems("#waits: 1\n#wait: 0,1,-2\n"),
            "22:12: ns: found '-2', allowed an integer 0 to 1000000000000000 without leading zeros\n");
  for (const char* pairs : {"1,0,5\n#wait: 0,1,5", "0,1,5\n#wait: 0,1,5", "0,1,5\n#wait: 1,1,5"})
    EXPECT_EQ(problems(fmt::format("#waits: 2\n#wait: {}\n", pairs)),
              "23:8: waits stand in order of src, dst, each once, and none of a rank for itself\n");
  EXPECT_EQ(problems("#waits: 2\n#wait: 0,1,5\n"),
            "23:1: found '#spans', expected '#wait:' (the order of header lines is fixed)\n");

  Trace trace = small_trace();
  trace.waits = {{1, 0, 5}, {0, 1, 5}};
  EXPECT_THROW(csv_of(trace), LogicError);
  trace.waits = {{0, 1, -5}};
  EXPECT_THROW(csv_of(trace), LogicError);
}

TEST(TraceCsv, ReadsMoreThanOneBufferOfSpans) {
  Trace trace = small_trace();
  for (int32_t i = 0; i < 20000; ++i) trace.spans.push_back({i % 16, 1, -1, i, i, i + 7, 1, 7168});
  const std::string text = csv_of(trace);
  const Trace back = trace_of(text);
  EXPECT_EQ(back.spans, trace.spans);
  EXPECT_EQ(csv_of(back), text);
}

TEST(TraceCsv, RefusesToWriteWhatItCouldNotRead) {
  const auto broken = [](auto change) {
    Trace trace = small_trace();
    change(trace);
    return trace;
  };
  EXPECT_THROW(csv_of(broken([](Trace& t) { t.header.executor = "gpu"; })), LogicError);
  EXPECT_THROW(csv_of(broken([](Trace& t) { t.total = {0.0 / 0.0}; })), LogicError);
  EXPECT_THROW(csv_of(broken([](Trace& t) { t.lower = nanoseconds(-1); })), LogicError);
  EXPECT_THROW(csv_of(broken([](Trace& t) { t.spans[0].phase = 2; })), LogicError);
  EXPECT_THROW(csv_of(broken([](Trace& t) { t.spans[0].end_ns = -6; })), LogicError);
  EXPECT_THROW(csv_of(broken([](Trace& t) { t.spans[0].bytes = -1; })), LogicError);
  EXPECT_THROW(csv_of(broken([](Trace& t) { t.header.phases.pop_back(); })), LogicError);
}

TEST(TraceCsv, ReportsAStreamThatTakesNoMore) {
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  try {
    write_csv(out, small_trace());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::environment);
  }
}

TEST(TraceCsv, AcceptsTheTextThatTheRefusalsStartFrom) { EXPECT_EQ(problems_of(kSmallText), ""); }

TEST(TraceCsv, RefusesAWrongHeader) {
  EXPECT_EQ(problems_of(""), "1:1: found '', expected '#plumb.trace/1'\n");
  EXPECT_EQ(problems_of(with("trace/1", "trace/2")),
            "1:1: found '#plumb.trace/2', expected '#plumb.trace/1'\n");
  EXPECT_EQ(problems_of(with("#executor: sim", "#executor: gpu")),
            "2:12: executor: found 'gpu', allowed host, analytic, sim, cuda\n");
  EXPECT_EQ(problems_of(with("#plan: 0", "#plan: A")),
            "4:8: plan: found 'A123456789abcdeffedcba9876543210', allowed 32 digits 0-9 a-f\n");
  EXPECT_EQ(problems_of(with("#clock", "#clokc")),
            "7:1: found '#clokc', expected '#clock:' (the order of header lines is fixed)\n");
  EXPECT_EQ(problems_of(with("#machine: h800\n", "")),
            "6:1: found '#clock', expected '#machine:' (the order of header lines is fixed)\n");
  EXPECT_EQ(problems_of(with("#complete: yes", "#complete: true")),
            "10:12: complete: found 'true', allowed yes, no\n");
  EXPECT_EQ(
      problems_of(with("#seed: 18446744073709551615", "#seed: 18446744073709551616")),
      "8:8: seed: found '18446744073709551616', allowed an integer 0 to 18446744073709551615 without leading "
      "zeros\n");
  EXPECT_EQ(problems_of("#plumb.trace/1\n#executor: sim\n"),
            "3:1: found the end of the file, expected '#version:'\n");
  for (const char* blank : {"#note:  x", "#note: x ", "#note: ", "#note:x"})
    EXPECT_EQ(problems_of(with("#note: plumb run, node 7", blank)),
              "11:7: '#note:' takes one blank and a text without blanks around it, or nothing\n");
}

TEST(TraceCsv, RefusesWrongNumbers) {
  for (const char* number : {"", "01", "+1", "-1", "1.5", "0x1", " 1", "1e3", "2147483648"})
    EXPECT_NE(problems_of(with("#repeat: 3", std::string("#repeat: ") + number)), "") << number;
  const char* allowed =
      "allowed nanoseconds with at most 3 decimals, the last not 0, and none from 1000 s on\n";
  for (const char* time : {"1.", "1.0", "1.2345", "1.50", "1.2x", "1000000000000.5"})
    EXPECT_EQ(problems_of(with("#total_ns: 4505", std::string("#total_ns: ") + time)),
              fmt::format("12:12: total_ns: found '{}', {}", time, allowed));
  for (const char* time : {"-1", ".5", "nan", "1000000000000001"})
    EXPECT_NE(problems_of(with("#total_ns: 4505", std::string("#total_ns: ") + time)), "") << time;
}

TEST(TraceCsv, RefusesWrongPhasesAndPairs) {
  EXPECT_EQ(problems_of(with("#phase: 1,", "#phase: 2,")),
            "17:9: index: found '2', allowed an integer 1 to 1 without leading zeros\n");
  EXPECT_EQ(problems_of(with(",2,14336,scale_out nic", ",2,14336")),
            "17:9: found 6 fields, expected 7: index,name,time_ns,lower_ns,messages,bytes,bottleneck\n");
  EXPECT_EQ(problems_of(with("0,notify,", "0, notify,")),
            "16:11: name: found ' notify', allowed no blanks around it\n");
  EXPECT_EQ(problems_of(with("#pair: 1,1,0,2,14336", "#pair: 2,1,0,2,14336")),
            "20:8: phase: found '2', allowed an integer 0 to 1 without leading zeros\n");
  EXPECT_EQ(problems_of(with("#pair: 1,1,0,2,14336", "#pair: 0,0,1,2,14336")),
            "20:8: pairs stand in order of phase, src, dst, each once and not empty\n");
  EXPECT_EQ(problems_of(with("#pair: 1,1,0,2,14336", "#pair: 1,1,0,0,0")),
            "20:8: pairs stand in order of phase, src, dst, each once and not empty\n");
  EXPECT_EQ(
      problems_of(with("#pair: 1,1,0,2,14336", "#pair: 1,1,0,2,14335")),
      "20:1: phase 1: '#phase:' says 2 messages, 14336 bytes, but its '#pair:' lines add up to 2, 14335\n");
  EXPECT_EQ(problems_of(with("#pair: 0,0,1,1,8", "#pair: 0,0,1,1")),
            "19:8: found 4 fields, expected 5: phase,src,dst,messages,bytes\n");
  EXPECT_EQ(problems_of(with("#pairs: 2", "#pairs: 3")),
            "21:1: found '#spans', expected '#pair:' (the order of header lines is fixed)\n");
}

TEST(TraceCsv, RefusesWrongRowsAndShowsAllOfThem) {
  EXPECT_EQ(problems_of(with("begin_ns,end_ns", "begin_us,end_us")),
            "22:1: found 'rank,phase,lane,op,begin_us,end_us,messages,bytes', expected "
            "'rank,phase,lane,op,begin_ns,end_ns,messages,bytes'\n");
  EXPECT_EQ(
      problems_of(with("0,0,-1,0,-5,1000,1,8\n1,1,3,2,1000,4500,2,14336\n",
                       "-1,0,-1,0,-5,1000,1,8\n1,2,40000,2,1000,999,2,14336\n")),
      "23:1: rank: found '-1', allowed an integer 0 to 2147483647 without leading zeros\n"
      "24:3: phase: found '2', allowed an integer 0 to 1 without leading zeros\n"
      "24:5: lane: found '40000', allowed an integer -1 to 32767 without leading zeros\n"
      "24:18: end_ns: found '999', allowed an integer 1000 to 1000000000000000 without leading zeros\n");
  EXPECT_EQ(problems_of(with("900,900,0,0\n", "900,900,0\n")),
            "25:1: found 7 fields, expected 8: rank,phase,lane,op,begin_ns,end_ns,messages,bytes\n");
  EXPECT_EQ(problems_of(with("900,900,0,0\n", "900,900,0,-0\n")),
            "25:21: bytes: found '-0', allowed an integer 0 to 9223372036854775807 without leading zeros\n");
  EXPECT_EQ(problems_of(with("900,900,0,0\n", "900,900,0,9223372036854775807\n")),
            "25:21: the sum of messages or bytes up to this line exceeds 2^63 - 1\n");
  EXPECT_EQ(problems_of(with("1,1,3", "\n1,1,3")),
            "24:1: found 1 fields, expected 8: rank,phase,lane,op,begin_ns,end_ns,messages,bytes\n");
}

TEST(TraceCsv, RefusesATruncatedFile) {
  EXPECT_EQ(problems_of(with("0,1,-1,-1,900,900,0,0\n", "")), "25:1: found 2 spans, '#spans:' says 3\n");
  EXPECT_EQ(problems_of(with("900,900,0,0\n", "900,900,0,0")), "25:22: the file ends inside a line\n");
  // No prefix of a file passes for a whole one.
  const std::string text = kSmallText;
  for (size_t size = 0; size < text.size(); ++size) EXPECT_NE(problems_of(text.substr(0, size)), "") << size;
}

TEST(TraceCsv, AMutatedFileIsRefusedOrWrittenBackUnchanged) {
  int accepted = 0;
  for (size_t at = 0; at < std::string(kSmallText).size(); ++at) {
    for (const char* piece : {"", "0", "9", ",", " ", "\n", "-", "."}) {
      std::string text = kSmallText;
      text.replace(at, 1, piece);
      if (!problems_of(text).empty()) continue;
      ++accepted;
      ASSERT_EQ(csv_of(trace_of(text)), text) << "at " << at << " '" << piece << "'";
    }
  }
  EXPECT_GT(accepted, 100);  // free text, digests, times and spans have other legal values
}

TEST(TraceCsv, RefusesControlCharacters) {
  EXPECT_EQ(problems_of(with("#machine: h800\n", "#machine: h800\r\n")),
            "6:15: found control character 0x0d, lines end with a single 0x0a\n");
}

TEST(TraceCsv, RefusesSpansWithBytesBesidePhasesWithout) {
  // Otherwise the totals would come from the spans, and writing would change the file.
  std::string text = with("#pairs: 2\n#pair: 0,0,1,1,8\n#pair: 1,1,0,2,14336\n", "#pairs: 0\n");
  text.replace(text.find(",1,8,latency"), 12, ",0,0,latency");
  text.replace(text.find(",2,14336,scale"), 14, ",0,0,scale");
  EXPECT_EQ(problems_of(text), "24:1: spans hold 3 messages, 14344 bytes, but all '#phase:' lines say 0\n");
}

TEST(TraceCsv, StopsAfterAHundredProblems) {
  std::string rows;
  for (int i = 0; i < 150; ++i) rows += "x,0,-1,0,0,1,0,0\n";
  try {
    trace_of(with("0,0,-1,0,-5", rows + "0,0,-1,0,-5"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 100u);
  }
}

TEST(TraceChrome, IsOneProcessPerRankAndOneTrackPerPhaseAndLane) {
  Trace trace = small_trace();
  trace.header.note = "quote \" backslash \\ bad utf8 \xff";
  trace.header.phases[1] = "se\"nd";
  std::ostringstream out;
  write_chrome(out, trace);
  const nlohmann::json json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["displayTimeUnit"], "ns");
  EXPECT_EQ(json["otherData"]["executor"], "sim");
  EXPECT_EQ(json["otherData"]["plan"], "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(json["otherData"]["note"], "quote \" backslash \\ bad utf8 \xef\xbf\xbd");

  std::vector<nlohmann::json> spans;
  std::map<std::pair<int, int>, std::string> threads;
  std::map<int, std::string> processes;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") spans.push_back(event);
    if (event["name"] == "thread_name") threads[{event["pid"], event["tid"]}] = event["args"]["name"];
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  // tid = phase * 65536 + lane + 2
  EXPECT_EQ(threads, (std::map<std::pair<int, int>, std::string>{
                         {{0, 1}, "notify"}, {{0, 65537}, "se\"nd"}, {{1, 65541}, "se\"nd lane 3"}}));
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0],
            nlohmann::json::parse(R"({"ph":"X","cat":"plumb","name":"notify","pid":0,"tid":1,"ts":-0.005,
                                               "dur":1.005,"args":{"op":0,"messages":1,"bytes":8}})"));
  EXPECT_EQ(spans[1],
            nlohmann::json::parse(R"({"ph":"X","cat":"plumb","name":"se\"nd","pid":1,"tid":65541,"ts":1.0,
                                               "dur":3.5,"args":{"op":2,"messages":2,"bytes":14336}})"));
}

TEST(TraceChrome, OfAnEmptyTraceIsValid) {
  std::ostringstream out;
  write_chrome(out, Trace{});
  EXPECT_EQ(nlohmann::json::parse(out.str())["traceEvents"], nlohmann::json::array());
}

TEST(TraceChrome, StaysValidBeyondOneBuffer) {
  Trace trace = small_trace();
  trace.spans.assign(3000, Span{});
  std::ostringstream out;
  write_chrome(out, trace);
  EXPECT_EQ(nlohmann::json::parse(out.str())["traceEvents"].size(),
            3004u);  // 4 names of 1 process and 1 track
}

TEST(Summarise, TakesFirstBeginToLastEnd) {
  Trace trace = small_trace();
  trace.ledger = Ledger();
  summarise(trace);
  // notify: -5 .. 1000; send: min(1000, 900) .. 4500; whole: -5 .. 4500.
  EXPECT_DOUBLE_EQ(trace.phase_times[0].time.value, 1005e-9);
  EXPECT_DOUBLE_EQ(trace.phase_times[1].time.value, 3600e-9);
  EXPECT_DOUBLE_EQ(trace.total.value, 4505e-9);
  EXPECT_EQ(trace.phase_times[1].bytes, 14336);
  EXPECT_EQ(trace.phase_times[1].messages, 2);
  EXPECT_EQ(trace.phase_times[1].bottleneck, "scale_out nic");  // kept
}

TEST(Summarise, OfNoSpansIsZero) {
  Trace trace;
  trace.header.phases = {"notify"};
  summarise(trace);
  ASSERT_EQ(trace.phase_times.size(), 1u);
  EXPECT_EQ(trace.phase_times[0], PhaseTime{});
  EXPECT_EQ(trace.total, Seconds{0});
}

TEST(PhaseTotals, ComeFromLedgerThenPhasesThenSpans) {
  Trace trace = small_trace();
  trace.ledger = Ledger({{1, 0, 1, 9, 90}});
  trace.phase_times[1].bytes = 80;
  EXPECT_EQ(phase_totals(trace)[1], (LedgerEntry{1, 0, 0, 9, 90}));
  trace.ledger = Ledger();
  EXPECT_EQ(phase_totals(trace)[1], (LedgerEntry{1, 0, 0, 0, 80}));
  trace.phase_times.clear();
  EXPECT_EQ(phase_totals(trace)[1], (LedgerEntry{1, 0, 0, 2, 14336}));
}

TEST(SpanLedger, TakesPairsFromThePlanAndAmountsFromTheSpans) {
  Plan plan(Program{}, Grouping{.ranks = 2, .scaleup = 2});
  plan.add_phase({.name = "send"});
  for (Rank r : {0, 1}) {
    Op op;
    op.link = Link::scale_up;
    op.src = r;
    op.dst = 1 - r;
    op.messages = 4;
    op.rows = 4;
    op.bytes = 400;
    plan.add(op);
  }
  Trace trace;
  trace.header.phases = {"send"};
  trace.spans = {{0, 0, 0, 0, 0, 1, 3, 300},
                 {0, 0, 1, 0, 0, 1, 1, 100},
                 {1, 0, 0, 1, 0, 1, 4, 399},
                 {1, 0, 0, -1, 0, 1, 1, 1}};
  EXPECT_EQ(span_ledger(plan, trace), Ledger({{0, 0, 1, 4, 400}, {0, 1, 0, 4, 399}}));
  trace.spans[0].op = 2;
  EXPECT_THROW(span_ledger(plan, trace), LogicError);
}

}  // namespace
}  // namespace plumb

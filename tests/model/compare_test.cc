// Comparison of traces: guards, reduction of repeats, columns of bytes, rate check; diagnosis of waits.
#include "model/compare.h"

#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>

#include "model/error.h"

namespace plumb {
namespace {

Op transfer(Link link, PhaseId phase, Rank src, Rank dst, int64_t bytes) {
  Op op;
  op.kind = link == Link::local ? OpKind::copy : OpKind::put;
  op.link = link;
  op.phase = phase;
  op.src = src;
  op.dst = dst;
  op.messages = 1;
  op.bytes = bytes;
  return op;
}

/// First hop of a hybrid dispatch with uniform node choice: every rank keeps `bytes` for its own node and
/// sends as many to its rail peer on each other node; then a barrier phase.
Plan rail_plan(int32_t nodes, int64_t bytes) {
  Plan plan(Program{}, Grouping{.ranks = nodes * 8, .scaleup = 8});
  plan.add_phase({.name = "rail", .engine = Engine::nic, .sms = 4});
  plan.add_phase({.name = "forward", .engine = Engine::sm});
  for (Rank src = 0; src < nodes * 8; ++src)
    for (int32_t node = 0; node < nodes; ++node) {
      const Rank dst = plan.grouping().rank(node, plan.grouping().local(src));
      plan.add(transfer(src == dst ? Link::local : Link::scale_out, 0, src, dst, bytes));
    }
  return plan;
}

/// A run of a plan with the times of its two phases.
Trace run_of(const Plan& plan, const std::string& executor, Seconds first, Seconds second) {
  Trace trace;
  trace.header.executor = executor;
  trace.header.plan = plan.digest();
  trace.header.program = "kind=dispatch";
  for (const Phase& phase : plan.phases()) trace.header.phases.push_back(phase.name);
  trace.phase_times = {{first, {}, executor + " nic"}, {second, {}, ""}};
  trace.total = first + second;
  trace.bottleneck = "scale_out nic";
  trace.ledger = account(plan);
  return trace;
}

/// The text of the Error(mismatch) that a comparison throws, "" when it throws none.
std::string mismatch_of(const std::vector<Trace>& traces, const CompareInput& input = {}) {
  try {
    compare(traces, input);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::mismatch);
    return error.what();
  }
}

/// The cell of the first data line of a table, under the heading `column`; cells stand two or more blanks
/// apart.
std::string cell(const std::string& table, const std::string& column) {
  std::vector<std::vector<std::string>> lines;
  std::istringstream in(table);
  for (std::string line; std::getline(in, line);) {
    lines.emplace_back();
    for (size_t at = 0; (at = line.find_first_not_of(' ', at)) != std::string::npos;) {
      const size_t end = std::min(line.find("  ", at), line.size());
      lines.back().push_back(line.substr(at, end - at));
      at = end;
    }
  }
  const auto found = std::find(lines.at(1).begin(), lines.at(1).end(), column);
  return lines.at(2).at(static_cast<size_t>(found - lines[1].begin()));
}

TEST(Compare, G1_RefusesTracesOfDifferentPlansAndNamesBothDigests) {
  const Plan two = rail_plan(2, 1000);
  const Plan three = rail_plan(3, 1000);
  const std::string text =
      mismatch_of({run_of(two, "sim", microseconds(1), {}), run_of(three, "cuda", microseconds(1), {})});
  EXPECT_NE(text.find("sim repeat 0 has plan " + to_string(two.digest())), std::string::npos) << text;
  EXPECT_NE(text.find("cuda repeat 0 has plan " + to_string(three.digest())), std::string::npos) << text;
  // The plan given must be that of the traces, too.
  EXPECT_NE(mismatch_of({run_of(two, "sim", microseconds(1), {})}, {.plan = &three})
                .find("the plan given has digest " + to_string(three.digest())),
            std::string::npos);
}

TEST(Compare, G2_RefusesALedgerThatIsNotThePlans) {
  const Plan plan = rail_plan(2, 1000);
  Trace trace = run_of(plan, "cuda", microseconds(1), {});
  std::vector<LedgerEntry> entries = trace.ledger.entries();
  entries[0].dst = 1;  // right total, wrong place
  trace.ledger = Ledger(entries);
  EXPECT_NE(mismatch_of({trace}, {.plan = &plan})
                .find("'rail' 0 -> 1: expected nothing; measured 1 messages, 1000"),
            std::string::npos);
  EXPECT_EQ(mismatch_of({trace}), "");  // without the plan nothing tells
}

TEST(Compare, RefusesRunsThatMovedDifferentBytes) {
  const Plan plan = rail_plan(2, 1000);
  Trace sim = run_of(plan, "sim", microseconds(1), {});
  Trace cuda = run_of(plan, "cuda", microseconds(1), {});
  cuda.ledger = Ledger();
  cuda.spans = {{.rank = 0, .phase = 0, .messages = 32, .bytes = 31999}};
  // 16 ranks times 2 ops of 1000 bytes
  EXPECT_EQ(mismatch_of({sim, cuda}),
            "phase 0 'rail': sim repeat 0 has 32 messages, 32000 bytes, cuda repeat 0 has 32 messages, 31999 "
            "bytes");
  cuda.spans[0].bytes = 32000;
  EXPECT_EQ(mismatch_of({sim, cuda}), "");
  // A trace that counts nothing, like a bare closed form, contradicts nothing.
  cuda.spans.clear();
  EXPECT_EQ(mismatch_of({cuda, sim}), "");
  EXPECT_EQ(compare(std::vector{cuda, sim}).rows[0].logical, 32000);
}

TEST(Compare, RefusesIncompleteRunsUnlessAllowed) {
  const Plan plan = rail_plan(2, 1000);
  Trace part = run_of(plan, "cuda", microseconds(1), {});
  part.header.complete = false;
  part.ledger = Ledger({{0, 0, 8, 1, 1000}});
  const std::vector<Trace> traces = {run_of(plan, "sim", microseconds(1), {}), part};
  EXPECT_NE(mismatch_of(traces).find("cuda repeat 0: the run ended early"), std::string::npos);
  const Comparison comparison = compare(traces, {.plan = &plan, .allow_incomplete = true});
  EXPECT_EQ(comparison.rows[0].logical, 32000);  // of the complete run
}

TEST(Compare, RefusesToCallRunsOnDifferentMachinesRepeats) {
  const Plan plan = rail_plan(2, 1000);
  Trace a = run_of(plan, "sim", microseconds(1), {});
  Trace b = a;
  a.header.machine = "h800";
  b.header.machine = "h200";
  EXPECT_EQ(mismatch_of({a, b}),
            "sim repeat 0 on machine 'h800' and sim repeat 0 on machine 'h200' are no repeats of each other");
  b.header.executor = "cuda";
  EXPECT_EQ(mismatch_of({a, b}), "");
}

TEST(Compare, RefusesPhasesThatDiffer) {
  const Plan plan = rail_plan(2, 1000);
  Trace a = run_of(plan, "sim", microseconds(1), {});
  Trace b = a;
  b.header.phases[1] = "scatter";
  EXPECT_EQ(mismatch_of({a, b}),
            "traces of one plan with different phases: sim repeat 0 has 'rail, forward', sim repeat 0 has "
            "'rail, scatter'");
}

TEST(Compare, RefusesNothingAndARateWithoutAPlan) {
  EXPECT_THROW(compare({}), Error);
  const Plan plan = rail_plan(2, 1000);
  const std::vector<Trace> traces = {run_of(plan, "sim", microseconds(1), {})};
  EXPECT_THROW(compare(traces, {.scale_out_rate = gigabytes_per_second(50)}), Error);
}

TEST(Compare, ReducesRepeatsToLowerMedianAndMaximum) {
  const Plan plan = rail_plan(2, 1000);
  std::vector<Trace> traces;
  int32_t repeat = 0;
  for (double us : {9.0, 2.0, 4.0, 3.0}) {
    traces.push_back(run_of(plan, "cuda", microseconds(us), microseconds(1)));
    traces.back().header.repeat = repeat++;
    traces.back().phase_times[0].bottleneck = fmt::format("at {}", us);
    traces.back().phase_times[0].lower = microseconds(us / 2);
  }
  const Comparison comparison = compare(traces);
  ASSERT_EQ(comparison.executors.size(), 1u);
  EXPECT_EQ(comparison.executors[0].repeats, 4);
  const ComparedTime& time = comparison.rows[0].times[0];
  EXPECT_EQ(time.p50, microseconds(3));  // of 2, 3, 4, 9
  EXPECT_EQ(time.max, microseconds(9));
  EXPECT_EQ(time.lower, microseconds(4.5));
  EXPECT_EQ(time.bottleneck, "at 3");
  EXPECT_EQ(comparison.rows[2].phase, "total");
  EXPECT_DOUBLE_EQ(comparison.rows[2].times[0].p50.value, 4e-6);
}

TEST(Compare, ErrorsReferToTheFirstOfCudaSimAnalytic) {
  const Plan plan = rail_plan(2, 1000);
  const Trace host = run_of(plan, "host", {}, {});
  const Trace analytic = run_of(plan, "analytic", microseconds(3), {});
  const Trace sim = run_of(plan, "sim", microseconds(4), microseconds(1));
  const Trace cuda = run_of(plan, "cuda", microseconds(5), microseconds(2));

  const Comparison all = compare(std::vector{cuda, sim, analytic, host});
  ASSERT_EQ(all.executors.size(), 4u);
  EXPECT_EQ(all.executors[0].name, "host");
  EXPECT_EQ(all.reference, 3);
  EXPECT_FALSE(all.rows[0].times[0].error);
  EXPECT_DOUBLE_EQ(all.rows[0].times[1].error.value(), -0.4);  // (3 - 5) / 5
  EXPECT_DOUBLE_EQ(all.rows[0].times[2].error.value(), -0.2);  // (4 - 5) / 5
  EXPECT_FALSE(all.rows[0].times[3].error);
  EXPECT_FALSE(all.rows[1].times[1].error);  // analytic has no time for this phase
  EXPECT_DOUBLE_EQ(all.rows[1].times[2].error.value(), -0.5);

  EXPECT_EQ(compare(std::vector{analytic, host, sim}).reference, 2);
  EXPECT_EQ(compare(std::vector{analytic, host}).reference, 1);
  EXPECT_EQ(compare(std::vector{host}).reference, kNone);
}

TEST(Compare, SplitsBytesByClassOfPath) {
  Plan plan(Program{}, Grouping{.ranks = 4, .scaleup = 2});
  plan.add_phase({.name = "send"});
  plan.add_phase({.name = "copy"});
  plan.add(transfer(Link::scale_up, 0, 0, 1, 100));
  plan.add(transfer(Link::scale_out, 0, 0, 2, 1000));
  Op get = transfer(Link::scale_out, 0, 3, 0, 500);
  get.kind = OpKind::get;
  plan.add(get);
  plan.add(transfer(Link::local, 1, 1, 1, 7));
  Op reduce = transfer(Link::local, 1, 1, 1, 14);
  reduce.kind = OpKind::reduce;
  plan.add(reduce);
  const std::vector<Trace> traces = {run_of(plan, "sim", microseconds(1), microseconds(1))};

  const Comparison comparison = compare(traces, {.plan = &plan});
  EXPECT_EQ(comparison.ranks, 4);
  EXPECT_EQ(comparison.rows[0].logical, 1600);
  EXPECT_EQ(comparison.rows[0].wire, (WireBytes{100, 1500}));
  EXPECT_EQ(comparison.rows[1].logical, 21);
  EXPECT_EQ(comparison.rows[1].wire, (WireBytes{0, 0}));
  EXPECT_EQ(comparison.rows[2].logical, 1621);
  EXPECT_EQ(comparison.rows[2].wire, (WireBytes{100, 1500}));
  EXPECT_EQ(comparison.rows[2].messages, 5);
  EXPECT_FALSE(compare(traces).rows[0].wire);  // not known without the plan
}

TEST(Compare, ChecksTheRateOfTheBusiestReceiverToo) {
  // Ranks 0, 1 and 2 send 1000 bytes each to rank 3 in 100 ns: 10 GB/s out of each, 30 GB/s into rank 3.
  Plan plan(Program{}, Grouping{.ranks = 4, .scaleup = 1});
  plan.add_phase({.name = "incast"});
  plan.add_phase({.name = "rest"});
  for (Rank r : {0, 1, 2}) plan.add(transfer(Link::scale_out, 0, r, 3, 1000));
  const std::vector<Trace> traces = {run_of(plan, "sim", nanoseconds(100), {})};
  EXPECT_EQ(mismatch_of(traces, {.plan = &plan, .scale_out_rate = gigabytes_per_second(30)}), "");
  EXPECT_EQ(mismatch_of(traces, {.plan = &plan, .scale_out_rate = gigabytes_per_second(25)}),
            "sim repeat 0, phase 'incast': rank 3 receives 3000 bytes over scale_out in 0.100 us, 30.00 "
            "GB/s, above the "
            "link's 25.00 GB/s; a time, a byte count or the link rate is wrong");
  EXPECT_EQ(mismatch_of(traces, {.plan = &plan, .scale_up_rate = gigabytes_per_second(1)}), "");
}

TEST(Compare, ChecksTheRateOfTheWholeRunWhenPhasesOverlap) {
  // Each phase alone is at 10 GB/s; both in the same 100 ns are not possible.
  Plan plan(Program{}, Grouping{.ranks = 2, .scaleup = 1});
  plan.add_phase({.name = "a"});
  plan.add_phase({.name = "b"});
  for (PhaseId p : {PhaseId{0}, PhaseId{1}}) plan.add(transfer(Link::scale_out, p, 0, 1, 1000));
  Trace trace = run_of(plan, "sim", nanoseconds(100), nanoseconds(100));
  const CompareInput input = {.plan = &plan, .scale_out_rate = gigabytes_per_second(10)};
  EXPECT_EQ(mismatch_of({trace}, input), "");
  trace.total = nanoseconds(100);
  EXPECT_NE(mismatch_of({trace}, input).find("whole run: rank 0 sends 2000 bytes"), std::string::npos);
}

TEST(FieldCases, B17_LogicalBandwidthMayExceedTheLinkButWireMayNot) {
  // EP16 on 2 nodes, node choice uniform: each rank keeps as many bytes for its own node as it sends to the
  // other.
  const int64_t bytes = 50'000'000;
  for (int32_t nodes : {2, 4}) {
    const Plan plan = rail_plan(nodes, bytes);
    // A rank sends (N - 1) * 50 MB at 50 GB/s: (N - 1) ms.
    const Seconds time{1e-3 * (nodes - 1)};
    const CompareInput input = {.plan = &plan, .scale_out_rate = gigabytes_per_second(50)};
    const Comparison comparison = compare(std::vector{run_of(plan, "sim", time, {})}, input);
    const ComparisonRow& row = comparison.rows[0];
    ASSERT_TRUE(row.wire);
    EXPECT_EQ(row.wire->scale_up, 0);
    // logical / wire = N / (N - 1), in whole numbers
    EXPECT_EQ(row.logical * (nodes - 1), row.wire->scale_out * nodes);
    // Columns of their own; for 2 nodes 100 GB/s of logical bytes on a link of 50 GB/s, and no error.
    const std::string table = to_table(comparison);
    EXPECT_EQ(cell(table, "logical_GB/s"), nodes == 2 ? "100.00" : "66.67");
    EXPECT_EQ(cell(table, "wire_GB/s"), "50.00");
    EXPECT_EQ(cell(table, "scale_out_GB/s"), "50.00");
    EXPECT_EQ(cell(table, "scale_up_GB/s"), "0.00");
    const std::vector<Trace> too_fast = {run_of(plan, "cuda", time * 0.99, {})};
    EXPECT_NE(mismatch_of(too_fast, input).find("above the link's 50.00 GB/s"), std::string::npos);
  }
}

TEST(FieldCases, B17_TableHasOneColumnPerMeaningOfBytesWithUnits) {
  const Plan plan = rail_plan(2, 1000);
  // 16 ranks, each 1000 B kept and 1000 B sent in 2 us: logical 1 GB/s, scale-out 0.5 GB/s a rank.
  const std::vector<Trace> traces = {run_of(plan, "analytic", microseconds(2), {}),
                                     run_of(plan, "sim", microseconds(2.5), microseconds(1))};
  const std::string table = to_table(compare(traces, {.plan = &plan}));
  const std::string body = table.substr(table.find('\n') + 1);
  EXPECT_EQ(table.substr(0, table.find('\n')),
            "plan " + to_string(plan.digest()) + " (kind=dispatch), 16 ranks, errors against sim");
  EXPECT_EQ(body,
            "phase    executor  repeats  p50_us  max_us  lower_us  error_%  messages  logical_B  wire_B  "
            "scale_up_B  "
            "scale_out_B  logical_GB/s  wire_GB/s  scale_up_GB/s  scale_out_GB/s  sms  bottleneck\n"
            "rail     analytic        1   2.000   2.000         -    -20.0        32      32000   16000      "
            "     0  "
            "      16000          1.00       0.50           0.00            0.50    4  analytic nic\n"
            "rail     sim             1   2.500   2.500         -        -        32      32000   16000      "
            "     0  "
            "      16000          0.80       0.40           0.00            0.40    4  sim nic\n"
            "forward  analytic        1       -       -         -        -         0          0       0      "
            "     0  "
            "          0             -          -              -               -  all  -\n"
            "forward  sim             1   1.000   1.000         -        -         0          0       0      "
            "     0  "
            "          0          0.00       0.00           0.00            0.00  all  -\n"
            "total    analytic        1   2.000   2.000         -    -42.9        32      32000   16000      "
            "     0  "
            "      16000             -       0.50           0.00            0.50    -  scale_out nic\n"
            "total    sim             1   3.500   3.500         -        -        32      32000   16000      "
            "     0  "
            "      16000             -       0.29           0.00            0.29    -  scale_out nic\n");
}

// --- waits ---

/// A matrix of small, unequal waits: 1.0 to 1.6 us.
WaitMatrix quiet_matrix(int32_t ranks) {
  WaitMatrix waits(ranks);
  for (Rank s = 0; s < ranks; ++s)
    for (Rank d = 0; d < ranks; ++d)
      if (s != d) waits.at(s, d) = microseconds(1.0 + 0.1 * ((3 * s + 5 * d) % 7));
  return waits;
}

TEST(Waits, OfAQuietMatrixHaveNoOutliers) {
  for (int32_t ranks : {0, 1, 2, 3, 8}) EXPECT_TRUE(diagnose(quiet_matrix(ranks)).empty()) << ranks;
  EXPECT_TRUE(diagnose(WaitMatrix(8)).empty());
}

TEST(Waits, ARowIsASlowSender) {
  for (int32_t ranks : {3, 4, 8}) {
    WaitMatrix waits = quiet_matrix(ranks);
    for (Rank d = 0; d < ranks; ++d) waits.at(2, d) = microseconds(50);
    const std::vector<WaitFinding> findings = diagnose(waits);
    ASSERT_EQ(findings.size(), 1u) << ranks;
    EXPECT_EQ(findings[0].cause, WaitCause::slow_sender);
    EXPECT_EQ(findings[0].source, 2);
    EXPECT_EQ(findings[0].destination, kNone);
    EXPECT_EQ(findings[0].wait, microseconds(50));
    EXPECT_LE(findings[0].typical, microseconds(1.6));
  }
}

TEST(Waits, AColumnIsASlowReceiver) {
  for (int32_t ranks : {3, 4, 8}) {
    WaitMatrix waits = quiet_matrix(ranks);
    for (Rank s = 0; s < ranks; ++s) waits.at(s, 1) = microseconds(20);
    const std::vector<WaitFinding> findings = diagnose(waits);
    ASSERT_EQ(findings.size(), 1u) << ranks;
    EXPECT_EQ(findings[0].cause, WaitCause::slow_receiver);
    EXPECT_EQ(findings[0].source, kNone);
    EXPECT_EQ(findings[0].destination, 1);
  }
}

TEST(Waits, ASingleCellIsABadPath) {
  for (int32_t ranks : {2, 3, 8}) {
    WaitMatrix waits = quiet_matrix(ranks);
    waits.at(0, 1) = microseconds(30);
    const std::vector<WaitFinding> findings = diagnose(waits);
    ASSERT_EQ(findings.size(), 1u) << ranks;
    EXPECT_EQ(findings[0].cause, WaitCause::bad_path);
    EXPECT_EQ(findings[0].source, 0);
    EXPECT_EQ(findings[0].destination, 1);
    EXPECT_EQ(findings[0].wait, microseconds(30));
  }
}

TEST(Waits, CausesAreToldApartWhenTheyMeet) {
  WaitMatrix waits = quiet_matrix(8);
  for (Rank other = 0; other < 8; ++other) {
    waits.at(2, other) = microseconds(50);
    waits.at(other, 5) = microseconds(40);
  }
  waits.at(6, 7) = microseconds(30);
  const std::vector<WaitFinding> findings = diagnose(waits);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].cause, WaitCause::slow_sender);
  EXPECT_EQ(findings[0].source, 2);
  EXPECT_EQ(findings[1].cause, WaitCause::slow_receiver);
  EXPECT_EQ(findings[1].destination, 5);
  EXPECT_EQ(findings[2].cause, WaitCause::bad_path);
  EXPECT_EQ(findings[2].source, 6);
  EXPECT_EQ(findings[2].destination, 7);
}

TEST(Waits, PairsThatExchangeNothingAreLeftOut) {
  // Two groups of 4 that talk inside only: 24 of 56 pairs wait, all alike. Counted as zeros the 32 others
  // would be the median, and every pair that works a bad path.
  WaitMatrix waits(8);
  for (Rank s = 0; s < 8; ++s)
    for (Rank d = 0; d < 8; ++d)
      waits.at(s, d) = s / 4 == d / 4 ? microseconds(200 + s % 4) : Seconds{-1e-12};
  EXPECT_TRUE(diagnose(waits).empty());
  for (Rank d = 0; d < 4; ++d) waits.at(1, d) = microseconds(500);
  const std::vector<WaitFinding> findings = diagnose(waits);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].cause, WaitCause::slow_sender);
  EXPECT_EQ(findings[0].source, 1);
}

TEST(Waits, BelowAMicrosecondAreNoise) {
  WaitMatrix waits(4);
  waits.at(0, 1) = nanoseconds(900);
  EXPECT_TRUE(diagnose(waits).empty());
  waits.at(0, 1) = nanoseconds(1100);
  EXPECT_EQ(diagnose(waits).size(), 1u);
}

TEST(Waits, PrintMatrixAndFindings) {
  WaitMatrix waits(2);
  waits.at(0, 1) = microseconds(30);
  waits.at(1, 0) = microseconds(1);
  EXPECT_EQ(to_text(waits, diagnose(waits)),
            "wait_us: row = source, column = destination\n"
            "               0         1\n"
            "     0         -    30.000\n"
            "     1     1.000         -\n"
            "bad path 0 -> 1: wait 30.000 us, typical 1.000 us\n");
  EXPECT_EQ(to_text(WaitMatrix(33), {}), "no outliers\n");
  EXPECT_THROW(waits.at(0, 2), LogicError);
}

TEST(Waits, OfRepeatsAreTheLowerMedianOfEachPair) {
  // 0 -> 1: 5, 7, 9 us. 1 -> 0: named by one repeat of three, so 0, 0, 8 us. The host measures none.
  std::vector<Trace> traces(5);
  for (Trace& trace : traces) trace.header.executor = "cuda";
  traces[0].waits = {{0, 1, 7000}};
  traces[1].waits = {{0, 1, 9000}, {1, 0, 8000}};
  traces[2].waits = {{0, 1, 5000}};
  traces[3].header.executor = "host";  // traces[4]: a repeat without waits does not count
  EXPECT_FALSE(wait_matrix(traces, "host"));
  const auto waits = wait_matrix(traces, "cuda");
  ASSERT_TRUE(waits);
  EXPECT_EQ(waits->ranks(), 2);
  EXPECT_DOUBLE_EQ(microseconds(waits->at(0, 1)), 7);
  EXPECT_DOUBLE_EQ(microseconds(waits->at(1, 0)), 0);
  EXPECT_EQ(waits_text(traces), "cuda " + to_text(*waits, diagnose(*waits)));
  traces.erase(traces.begin(), traces.begin() + 3);
  EXPECT_EQ(waits_text(traces), "");
}

}  // namespace
}  // namespace plumb

// Dispatch plans deliver what the definition says: against brute force, and against the published vectors.
#include "model/numeric.h"
#include "tests/model/plans/functional_case.h"

namespace plumb::test {
namespace {

TEST(DispatchPlan, RandomCasesDeliverTheDefinition) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    const HostCase c = random_case(ProgramKind::dispatch, seed);
    HostExecutor host = c.executor();
    host.run(c.plan());
    expect_received(c, host.result());
    if (HasFailure()) return;
  }
}

TEST(DispatchPlan, FunctionalVectors) {
  for (const auto& vector : golden("functional").at("dispatch"))
    for (const bool expand : {false, true})
      for (const RowPlacement placement : {RowPlacement::staged, RowPlacement::direct}) {
        SCOPED_TRACE(vector.at("id").get<std::string>() + (expand ? " expand" : ""));
        HostCase c = functional_case();
        c.shape.alignment = vector.at("alignment");
        c.scaleup = vector.at("scaleup");
        c.program = {.mode = vector.at("scaleout") == 1 ? Mode::direct : Mode::hybrid,
                     .placement = placement,
                     .expand = expand};
        HostExecutor host = c.executor();
        host.run(c.plan());
        for (const auto& want : vector.at("dispatch")) {
          SCOPED_TRACE("rank " + want.at("rank").dump());
          const Received got = host.result().received(want.at("rank"));
          const auto flat = [&](const char* key) {
            std::vector<int32_t> out;
            for (const auto& row : want.at(key))
              for (const auto& value : row) out.push_back(value);
            return out;
          };
          EXPECT_EQ(got.copy_source, want.at("src_global").get<std::vector<int32_t>>());
          EXPECT_EQ(got.master_lane, want.at("master_lane").get<std::vector<int32_t>>());
          EXPECT_EQ(got.count_per_source_rank, want.at("count_per_source_rank").get<std::vector<int32_t>>());
          EXPECT_EQ(got.psum_per_scaleup_rank, want.at("psum_per_scaleup_rank").get<std::vector<int32_t>>());
          EXPECT_EQ(got.unaligned_per_expert, want.at("unaligned_per_expert").get<std::vector<int32_t>>());
          EXPECT_EQ(got.aligned_per_expert, want.at("aligned_per_expert").get<std::vector<int32_t>>());
          EXPECT_EQ(got.psum_per_expert,
                    want.at(expand ? "psum_per_expert_expand" : "psum_per_expert_non_expand")
                        .get<std::vector<int32_t>>());
          if (expand) {
            EXPECT_EQ(got.rows, want.at("num_expanded").get<int32_t>());
            EXPECT_EQ(got.expanded_rows, flat("expanded_rows_deterministic"));
            EXPECT_EQ(got.padding_rows, want.at("padding_rows").get<std::vector<int32_t>>());
          } else {
            EXPECT_EQ(got.rows, want.at("num_recv").get<int32_t>());
            EXPECT_EQ(got.source, got.copy_source);
            EXPECT_EQ(got.topk_idx, flat("recv_topk_idx"));
          }
        }
      }
}

/// Rows that one phase moves between different ranks, or inside ranks.
int64_t rows_of(const Plan& plan, std::string_view phase, bool inside) {
  int64_t rows = 0;
  const Ledger ledger = account(plan);
  for (const LedgerEntry& entry : ledger.entries())
    if (plan.phases()[entry.phase].name == phase && (entry.src == entry.dst) == inside)
      rows += entry.bytes / plan.phases()[entry.phase].row_bytes;
  return rows;
}

TEST(DispatchPlan, FunctionalCopyCounts) {
  const auto copies = golden("functional").at("copies");
  HostCase c = functional_case();
  c.scaleup = 2;
  const Plan direct = c.plan();
  EXPECT_EQ(rows_of(direct, "remote", false), copies.at("direct").at("rdma").get<int64_t>());
  EXPECT_EQ(rows_of(direct, "dispatch", false), copies.at("direct").at("nvlink").get<int64_t>());
  EXPECT_EQ(rows_of(direct, "dispatch", true), copies.at("direct").at("local").get<int64_t>());
  c.program.mode = Mode::hybrid;
  const Plan hybrid = c.plan();
  EXPECT_EQ(rows_of(hybrid, "rail", false), copies.at("hybrid").at("rdma").get<int64_t>());
  EXPECT_EQ(rows_of(hybrid, "forward", false), copies.at("hybrid").at("nvlink").get<int64_t>());
  EXPECT_EQ(rows_of(hybrid, "forward", true), copies.at("hybrid").at("local_to_forwarder").get<int64_t>());
}

TEST(DispatchPlan, CountsArriveWithTheRows) {
  // Two ranks, two experts each. Rank 0 sends [0, 2] and [3, 2]: one copy with one expert to itself; two
  // copies to rank 1, two of its first and one of its second expert.
  HostCase c;
  c.shape = uniform_shape(2, 4, 2, 2, 16);
  c.shape.tokens = {2, 0};
  c.scaleup = 2;
  c.table = {0, 2, 3, 2};
  for (const RowPlacement placement : {RowPlacement::staged, RowPlacement::direct}) {
    c.program.placement = placement;
    HostExecutor host = c.executor();
    host.run(c.plan());
    const auto words = [&](Rank rank, int64_t slot) {
      std::vector<int64_t> out(3);
      std::memcpy(out.data(), host.result().row("counts_in", rank, slot).data(), 24);
      return out;
    };
    // Staged: slot = source. Placed on one node: slot = source * ranks + destination, all pairs.
    const int64_t to_rank_1 = placement == RowPlacement::direct ? 1 : 0;
    EXPECT_EQ(words(0, 0), (std::vector<int64_t>{1, 1, 0}));
    EXPECT_EQ(words(1, to_rank_1), (std::vector<int64_t>{2, 2, 1}));
  }
}

/// Two ranks with two experts each, 16 columns. Rank 0's tokens choose [0, 1], [2, 3], [1, 2]; rank 1's [0,
/// 1].
HostCase expanded_case(int32_t num_sms) {
  HostCase c;
  c.shape = uniform_shape(2, 4, 2, 3, 16);
  c.shape.tokens = {3, 1};
  c.scaleup = 2;
  c.table = {0, 1, 2, 3, 1, 2, 0, 1};
  c.program = {.placement = RowPlacement::direct, .expand = true, .num_sms = num_sms};
  return c;
}

TEST(DispatchPlan, OwnRowsOfTheExpandLayoutLeaveWithTheDispatch) {
  // Rank 0 keeps tokens 0 (two rows) and 2 (one): three own rows, the second of token 0 in an op of its own.
  // To rank 1 go one row for each of tokens 1 and 2, and rank 1 copies the second row of token 1. Rank 1's
  // token goes to rank 0 once and is copied there once.
  const Plan plan = expanded_case(16).plan();
  const Ledger ledger = account(plan);
  const int64_t row = plan.phases()[*plan.find_phase("dispatch")].row_bytes;
  EXPECT_EQ(rows_of(plan, "dispatch", true), 3);
  EXPECT_EQ(rows_of(plan, "dispatch", false), 2 + 1);
  EXPECT_EQ(ledger.total(*plan.find_phase("copy")).bytes, 2 * row);
  // A dispatch of selections holds as many rows as there are choices.
  EXPECT_EQ(rows_of(plan, "dispatch", true) + rows_of(plan, "dispatch", false) + rows_of(plan, "copy", true),
            8);
}

TEST(DispatchPlan, CopiesOfTheExpandLayoutFollowRowsFrom48SmsOn) {
  for (const int32_t sms : {47, 48}) {
    SCOPED_TRACE(sms);
    const Plan plan = expanded_case(sms).plan();
    const auto name = [&](OpId id) { return plan.phases()[plan.ops()[static_cast<size_t>(id)].phase].name; };
    int32_t copies = 0;
    for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
      if (name(id) != "copy") continue;
      ++copies;
      bool streams = false, flushed = false;
      for (const Dep& dep : plan.deps(id)) {
        const Op& before = plan.ops()[static_cast<size_t>(dep.op)];
        streams |= dep.on == On::stream;
        flushed |= name(dep.op) == "flush";
        if (dep.on == On::stream) {
          EXPECT_NE(before.src, before.dst) << "own rows are not copied";
        }
      }
      EXPECT_EQ(streams, sms >= 48);
      EXPECT_EQ(flushed, sms < 48);
    }
    EXPECT_EQ(copies, 2);
  }
}

TEST(DispatchPlan, ExpandedRowsAreTheSameWhetherCopiesFollowOrNot) {
  for (const int32_t sms : {16, 64}) {
    for (const bool zero_padding : {false, true}) {
      HostCase c = expanded_case(sms);
      c.shape.alignment = 3;
      c.program.kind = ProgramKind::round_trip;
      c.program.zero_padding = zero_padding;
      SCOPED_TRACE(to_string(c.program));
      HostExecutor host = c.executor();
      const Plan plan = c.plan();
      const Trace trace = host.run(plan);
      EXPECT_EQ(trace.ledger.entries(), account(plan).entries());
      expect_received(c, host.result());
      expect_combined(c, host.result(), record_elements(c, host.batch()));
    }
  }
}

/// Runs dispatch and round trip in every mode and placement, and compares both with the definition.
void expect_all_modes(HostCase c) {
  for (const Mode mode : {Mode::direct, Mode::hybrid})
    for (const RowPlacement placement : {RowPlacement::staged, RowPlacement::direct})
      for (const bool expand : {false, true}) {
        c.program = {.kind = ProgramKind::round_trip, .mode = mode, .placement = placement, .expand = expand};
        SCOPED_TRACE(to_string(c.program));
        HostExecutor host = c.executor();
        host.run(c.plan());
        expect_received(c, host.result());
        expect_combined(c, host.result(), record_elements(c, host.batch()));
      }
}

TEST(FieldCases, B01_IdleRanksReceiveAndTakePart) {
  HostCase c;
  c.shape = uniform_shape(4, 8, 2, 5, 256);
  c.shape.tokens = {3, 0, 5, 0};
  c.scaleup = 2;
  Dice dice(1);
  c.table = random_table(c.shape, 0, dice);
  expect_all_modes(c);
  HostExecutor host = c.executor();
  const Plan plan = c.plan();
  host.run(plan);
  EXPECT_GT(host.result().received(1).rows + host.result().received(3).rows, 0);  // no input, still a target
}

TEST(FieldCases, B01_AllEmptyBatchMovesNoPayload) {
  HostCase c;
  c.shape = uniform_shape(4, 8, 2, 0, 256);
  c.shape.max_tokens = 5;
  c.scaleup = 2;
  expect_all_modes(c);
  HostExecutor host = c.executor();
  const Plan plan = c.plan();
  const Trace trace = host.run(plan);
  // Counts only: 4 x 4 pairs (the own one is a copy) of 8 * (1 + 2 local experts) bytes.
  EXPECT_EQ(trace.ledger.total().bytes, 4 * 4 * 24);
  EXPECT_EQ(trace.ledger.total().messages, 4 * 3);
}

TEST(FieldCases, B01_OneRankAlone) {
  HostCase c;
  c.shape = uniform_shape(1, 8, 2, 5, 256);
  Dice dice(2);
  c.table = random_table(c.shape, 0, dice);
  expect_all_modes(c);
}

TEST(FieldCases, B02_MaskedTokenIsSentNowhereAndNaNWeightsDoNotLeak) {
  HostCase c;
  c.shape = uniform_shape(2, 4, 2, 3, 16);
  c.shape.tokens = {3, 0};
  c.scaleup = 2;
  c.table = {-1, -1, -1, 3, 2, 3};
  c.expert = ExpertFunction::weighted;
  expect_all_modes(c);
  c.program = {.kind = ProgramKind::round_trip};
  HostExecutor host = c.executor();
  host.run(c.plan());
  EXPECT_TRUE(std::isnan(host.batch().weight(0, 0, 0)));  // what the caller passed
  EXPECT_EQ(host.result().received(0).rows, 0);
  EXPECT_EQ(host.result().received(1).source, (std::vector<int32_t>{1, 2}));
  for (const float weight : host.result().received(1).weights) EXPECT_FALSE(std::isnan(weight));
  const Combined combined = host.result().combined(0);
  for (size_t h = 0; h < 16; ++h) EXPECT_EQ(combined.x[h], 0);
  EXPECT_EQ(combined.weights[0], 0);
  EXPECT_EQ(combined.weights[1], 0);
}

TEST(FieldCases, B03a_TwoExpertsOfOneRankTakeOneCopy) {
  HostCase c;
  c.shape = uniform_shape(4, 8, 2, 1, 16);
  c.shape.tokens = {1, 0, 0, 0};
  c.scaleup = 4;
  c.table = {4, 5};  // both on rank 2
  c.program = {.kind = ProgramKind::round_trip};
  HostExecutor host = c.executor();
  const Plan plan = c.plan();
  host.run(plan);
  EXPECT_EQ(rows_of(plan, "dispatch", false), 1);
  const Received received = host.result().received(2);
  EXPECT_EQ(received.rows, 1);
  EXPECT_EQ(received.unaligned_per_expert, (std::vector<int32_t>{1, 1}));
  const Combined combined = host.result().combined(0);
  EXPECT_EQ(combined.weights[0], host.batch().weight(0, 0, 0));
  EXPECT_EQ(combined.weights[1], host.batch().weight(0, 0, 1));
}

TEST(FieldCases, B12_OddRowsStayInTheirToken) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> first = {0.0f, -0.0f, nan, inf, 1e-30f, 448 * 128.0f, 1.0f};  // column 0 of a row
  HostCase c;
  c.shape = uniform_shape(2, 2, 2, static_cast<int32_t>(first.size()), 32);
  c.shape.tokens[1] = 0;
  c.scaleup = 2;
  for (size_t t = 0; t < first.size(); ++t) c.table.insert(c.table.end(), {0, 1});
  c.values.x = [&first](Rank, int32_t t, std::span<float> out) {
    const float value = first[static_cast<size_t>(t)];
    std::fill(out.begin(), out.end(), value == 0 ? value : 0.5f);  // rows 0 and 1 are all zero
    out[0] = value;
  };
  for (const ScaleFormat format : {ScaleFormat::fp32, ScaleFormat::ue8m0}) {
    c.shape.scale_format = format;
    c.program = {.kind = ProgramKind::round_trip};
    HostExecutor host = c.executor();
    host.run(c.plan());
    const Combined combined = host.result().combined(0);
    for (size_t t = 0; t < first.size(); ++t)
      for (size_t h = 0; h < 32; ++h) {
        const float value = from_bf16(combined.x[t * 32 + h]);
        const bool is_odd_element = h == 0 && !std::isfinite(first[t]);
        EXPECT_EQ(std::isnan(value), is_odd_element) << "token " << t << " column " << h;
        if (t < 2) {
          EXPECT_EQ(value, 0) << "token " << t;
        }
      }
    // Two ranks answer 1.0 each; 448 is the largest code, so 1 = 448 * (1 / 448) within two roundings.
    EXPECT_NEAR(from_bf16(combined.x[6 * 32]), 2.0f, 2.0f / 128);
  }
}

TEST(FieldCases, B13_TokensComeHomeToTheirOwnPlaces) {
  // Each token's value is its global id in two bf16-exact digits of base 64; identity experts answer once per
  // rank, so the sum is (number of distinct ranks) times the digit: at most 2 * 63, exact in bf16.
  for (const int32_t tokens : {1, 16, 127, 128, 129, 512}) {
    HostCase c;
    c.shape = uniform_shape(4, 8, 2, tokens, 16);
    c.shape.dispatch_type = DType::bf16;
    c.scaleup = 2;
    Dice dice(static_cast<uint32_t>(tokens));
    c.table = random_table(c.shape, 10, dice);
    c.values.x = [tokens](Rank r, int32_t t, std::span<float> out) {
      const int32_t id = r * tokens + t;
      for (size_t h = 0; h < out.size(); ++h) out[h] = static_cast<float>(h % 2 == 0 ? id % 64 : id / 64);
    };
    const brute::Table table = c.rows();
    for (const Mode mode : {Mode::direct, Mode::hybrid}) {
      c.program = {.kind = ProgramKind::round_trip, .mode = mode};
      HostExecutor host = c.executor();
      host.run(c.plan());
      for (Rank r = 0; r < 4; ++r) {
        const Combined combined = host.result().combined(r);
        for (int32_t t = 0; t < tokens; ++t) {
          std::set<int32_t> ranks;
          for (int32_t k = 0; k < 2; ++k)
            if (const int32_t e = brute::choice(c.shape, table, r, t, k); e >= 0) ranks.insert(e / 2);
          const int32_t id = r * tokens + t;
          const auto copies = static_cast<float>(ranks.size());
          ASSERT_EQ(from_bf16(combined.x[static_cast<size_t>(t) * 16]), copies * static_cast<float>(id % 64));
          ASSERT_EQ(from_bf16(combined.x[static_cast<size_t>(t) * 16 + 1]),
                    copies * static_cast<float>(id / 64));
        }
      }
    }
  }
}

TEST(FieldCases, B17_LogicalBytesExceedWireBytesByTheOwnNode) {
  // Every token chooses one expert on each of N = 2 nodes: 2 logical copies to nodes, 1 of them on the wire.
  HostCase c;
  c.shape = uniform_shape(4, 4, 2, 8, 16);
  c.scaleup = 2;
  for (int32_t i = 0; i < 4 * 8; ++i) c.table.insert(c.table.end(), {i % 2, 2 + i % 2});
  c.program.mode = Mode::hybrid;
  const Plan plan = c.plan();
  const int64_t wire = rows_of(plan, "rail", false);
  const int64_t logical = wire + rows_of(plan, "bypass", true);
  EXPECT_EQ(wire, 4 * 8);
  EXPECT_EQ(logical, 2 * wire);  // N / (N - 1)
}

}  // namespace
}  // namespace plumb::test

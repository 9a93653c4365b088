// DeepEP V1's low-latency kernels: one message per choice, grouped by expert at the receiver, weights applied
// at the source.
#include "tests/model/host_expect.h"

namespace plumb::test {
namespace {

/// x as the experts see it: the message's own fp32 scales in blocks of 128, whatever the shape's scales are.
auto message_elements(const HostCase& c, const HostBatch& batch) {
  const bool is_fp8 = c.shape.dispatch_type == DType::fp8_e4m3;
  const RowFormat format = record_format(c.shape, low_latency_dispatch_layout(c.shape.hidden, is_fp8), 0);
  Shape as_message = c.shape;
  as_message.scale_format = ScaleFormat::fp32;
  as_message.scale_block = 128;
  return [as_message, format, &batch, row = std::vector<std::byte>(static_cast<size_t>(format.row_bytes))](
             int32_t r, int32_t t, int32_t h) mutable {
    batch.write_row(format, r, t, row);
    // [16 header][hidden][scales] as [hidden][scales, from a multiple of 32].
    std::vector<std::byte> record(row.begin() + 16, row.begin() + 16 + format.hidden_bytes);
    record.resize((record.size() + 31) / 32 * 32);
    record.insert(record.end(), row.begin() + 16 + format.hidden_bytes, row.end());
    return element(as_message, record, h);
  };
}

TEST(LowLatencyPlan, RandomDispatchesDeliverOneRowPerChoice) {
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    const HostCase c = random_case(ProgramKind::low_latency_dispatch, seed);
    HostExecutor host = c.executor();
    host.run(c.plan());
    const brute::Table table = c.rows();
    for (Rank r = 0; r < c.shape.ranks; ++r) {
      const auto rows = brute::expanded_rows(c.shape, table, r, 1);
      const Received got = host.result().received(r);
      ASSERT_EQ(got.rows, static_cast<int32_t>(rows.size()));
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(got.source[i], rows[i].rank * c.shape.max_tokens + rows[i].token);
        const auto sent = host.result().row("input", rows[i].rank, rows[i].token);
        const auto arrived = host.result().row("received", r, static_cast<int64_t>(i));
        EXPECT_TRUE(std::equal(sent.begin(), sent.end(), arrived.begin(), arrived.end()));
      }
    }
    if (HasFailure()) return;
  }
}

TEST(LowLatencyPlan, RandomCombinesSumAsDefined) {
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    const HostCase c = random_case(ProgramKind::low_latency_combine, seed);
    HostExecutor host = c.executor();
    host.run(c.plan());
    expect_combined(c, host.result(), message_elements(c, host.batch()));
    if (HasFailure()) return;
  }
}

TEST(LowLatencyPlan, MessagesHavePublishedSizes) {
  // H 7168: 16 + 7168 + 4 * 56 = 7408 bytes in dispatch, 2 * 7168 = 14336 in combine. 2 ranks, 1 token each
  // with top-2 over both ranks: 4 choices, 2 of them remote.
  HostCase c;
  c.shape = uniform_shape(2, 2, 2, 1, 7168);
  c.scaleup = 2;
  c.table = {0, 1, 1, 0};
  for (const auto& [kind, phase, bytes] :
       {std::tuple{ProgramKind::low_latency_dispatch, "dispatch", int64_t{7408}},
        std::tuple{ProgramKind::low_latency_combine, "combine_up", int64_t{14336}}}) {
    c.program.kind = kind;
    HostExecutor host = c.executor();
    const Plan plan = c.plan();
    const LedgerEntry total = host.run(plan).ledger.total(*plan.find_phase(phase));
    EXPECT_EQ(total.messages, 2) << phase;
    EXPECT_EQ(total.bytes, 4 * bytes) << phase;
  }
}

}  // namespace
}  // namespace plumb::test

// Combine plans sum what the definition says, bit by bit: against brute force, and against the published
// vectors.
#include "model/error.h"
#include "model/numeric.h"
#include "tests/model/plans/functional_case.h"

namespace plumb::test {
namespace {

void expect_sums(const HostCase& c) {
  HostExecutor host = c.executor();
  host.run(c.plan());
  expect_combined(c, host.result(), record_elements(c, host.batch()));
}

TEST(CombinePlan, RandomCasesSumAsDefined) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    expect_sums(random_case(ProgramKind::combine, seed));
    if (HasFailure()) return;
  }
}

TEST(CombinePlan, RandomRoundTripsDeliverAndSum) {
  for (uint32_t seed = 1001; seed <= 1300; ++seed) {
    SCOPED_TRACE(seed);
    const HostCase c = random_case(ProgramKind::round_trip, seed);
    HostExecutor host = c.executor();
    host.run(c.plan());
    expect_received(c, host.result());
    expect_combined(c, host.result(), record_elements(c, host.batch()));
    if (HasFailure()) return;
  }
}

TEST(CombinePlan, AloneEqualsTheSecondHalfOfARoundTrip) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    HostCase c = random_case(ProgramKind::round_trip, seed);
    HostExecutor both = c.executor();
    both.run(c.plan());
    c.program.kind = ProgramKind::combine;
    HostExecutor alone = c.executor();
    alone.run(c.plan());
    for (Rank r = 0; r < c.shape.ranks; ++r) {
      EXPECT_EQ(both.result().combined(r).x, alone.result().combined(r).x) << "seed " << seed;
      EXPECT_EQ(both.result().combined(r).weights, alone.result().combined(r).weights) << "seed " << seed;
    }
  }
}

TEST(CombinePlan, FunctionalVectors) {
  const auto vectors = golden("functional").at("combine");
  for (const Mode mode : {Mode::direct, Mode::hybrid})
    for (const bool expand : {false, true})
      for (const bool multiple : {false, true})
        for (const int32_t biases : {0, 1}) {
          HostCase c = functional_case();
          c.scaleup = 2;
          c.expert = ExpertFunction::scaled;
          c.values.bias = [&](int32_t, Rank, int32_t, std::span<float> out) {
            std::fill(out.begin(), out.end(), vectors.at("bias").get<float>());
          };
          c.program = {.kind = ProgramKind::round_trip,
                       .mode = mode,
                       .expand = expand,
                       .multiple_reduction = multiple,
                       .num_biases = biases};
          SCOPED_TRACE(to_string(c.program));
          HostExecutor host = c.executor();
          host.run(c.plan());
          const auto want = vectors.at(biases == 0 ? "combined" : "combined_with_bias");
          for (Rank r = 0; r < 4; ++r) {
            const Combined got = host.result().combined(r);
            for (size_t t = 0; t < want[static_cast<size_t>(r)].size(); ++t) {
              // One sum with bias, 269, is not a bf16: it is rounded to even, 268.
              const float sum = brute::round_to_bf16(want[static_cast<size_t>(r)][t].get<float>());
              for (size_t h = 0; h < 32; ++h) EXPECT_EQ(from_bf16(got.x[t * 32 + h]), sum);
            }
          }
        }
}

TEST(CombinePlan, RoundingVectorsOfThreeRecipes) {
  // x = 1 and weights = the values: the weighted experts answer with exactly these.
  struct Recipe {
    const char* key;
    Mode mode;
    bool expand;
    bool multiple;
  };
  for (const auto& vector : golden("combine_rounding").at("cases"))
    for (const Recipe& recipe : {Recipe{"single_reduction", Mode::direct, true, false},
                                 Recipe{"single_reduction", Mode::hybrid, true, false},
                                 Recipe{"local_then_final", Mode::direct, true, true},
                                 Recipe{"local_then_final", Mode::direct, false, true},
                                 Recipe{"local_scaleup_final", Mode::hybrid, true, true},
                                 Recipe{"local_scaleup_final", Mode::hybrid, false, true}}) {
      HostCase c;
      c.shape = uniform_shape(vector.at("ranks"), vector.at("experts"), 4, 1, 16);
      c.shape.dispatch_type = DType::bf16;
      c.scaleup = vector.at("scaleup");
      c.table.assign(static_cast<size_t>(c.shape.ranks) * 4, kNone);
      for (size_t k = 0; k < 4; ++k) c.table[k] = vector.at("topk_idx")[k];  // the token of rank 0
      c.expert = ExpertFunction::weighted;
      c.values.x = [](Rank, int32_t, std::span<float> out) { std::fill(out.begin(), out.end(), 1.0f); };
      const auto values = vector.at("values").get<std::vector<float>>();
      c.values.weight = [&](Rank, int32_t, int32_t k) { return values[static_cast<size_t>(k)]; };
      c.program = {.kind = ProgramKind::combine,
                   .mode = recipe.mode,
                   .expand = recipe.expand,
                   .multiple_reduction = recipe.multiple};
      SCOPED_TRACE(vector.at("id").get<std::string>() + " " + to_string(c.program));
      HostExecutor host = c.executor();
      host.run(c.plan());
      EXPECT_EQ(from_bf16(host.result().combined(0).x[0]), vector.at(recipe.key).get<float>());
    }
}

TEST(CombinePlan, IdentityRestoresTokensExactlyUpToTheNumberOfRanks) {
  // bf16 rows, identity experts, two distinct ranks per token: x + x = 2 x, exact in every recipe.
  HostCase c;
  c.shape = uniform_shape(4, 4, 2, 16, 64);
  c.shape.dispatch_type = DType::bf16;
  c.scaleup = 2;
  Dice dice(7);
  c.table = random_table(c.shape, 0, dice);
  std::vector<float> x(64);
  for (const Mode mode : {Mode::direct, Mode::hybrid})
    for (const bool multiple : {false, true}) {
      c.program = {.kind = ProgramKind::round_trip, .mode = mode, .multiple_reduction = multiple};
      HostExecutor host = c.executor();
      host.run(c.plan());
      for (Rank r = 0; r < 4; ++r)
        for (int32_t t = 0; t < 16; ++t) {
          host.batch().x(r, t, x);
          const Combined got = host.result().combined(r);
          for (size_t h = 0; h < 64; ++h)
            ASSERT_EQ(from_bf16(got.x[static_cast<size_t>(t) * 64 + h]), 2 * brute::round_to_bf16(x[h]));
        }
    }
}

TEST(CombinePlan, SingleReductionNeedsRows) {
  HostCase c;
  c.shape = uniform_shape(4, 8, 2, 2, 16);
  c.scaleup = 2;
  Dice dice(3);
  c.table = random_table(c.shape, 0, dice);
  c.program = {.kind = ProgramKind::combine, .mode = Mode::hybrid, .multiple_reduction = false};
  const Routing routing = c.routing();
  const Grouping grouping{4, 2};
  EXPECT_THROW(build_plan({c.shape, routing, c.program, grouping, false}), Error);
}

TEST(FieldCases, B14_EachRecipeIsBitEqualToItsOwnReferenceAndRecipesDifferByRoundingOnly) {
  HostCase c;
  c.shape = uniform_shape(8, 16, 8, 16, 32);
  c.shape.dispatch_type = DType::bf16;
  c.scaleup = 4;
  c.expert = ExpertFunction::weighted;
  Dice dice(14);
  c.table = random_table(c.shape, 10, dice);
  std::vector<Combined> flat;
  for (const bool multiple : {false, true}) {
    c.program = {.kind = ProgramKind::round_trip,
                 .mode = Mode::hybrid,
                 .expand = true,
                 .multiple_reduction = multiple};
    HostExecutor host = c.executor();
    host.run(c.plan());
    expect_combined(c, host.result(), record_elements(c, host.batch()));
    HostExecutor again = c.executor();
    again.run(c.plan());
    for (Rank r = 0; r < 8; ++r) {
      EXPECT_EQ(host.result().combined(r).x, again.result().combined(r).x);
      if (!multiple) {
        flat.push_back(host.result().combined(r));
        continue;
      }
      // |x| <= 1 and w < 1, so a partial sum of 8 terms is below 8 and rounds by at most 2^-6 (half a step of
      // 2^-5). Staged: 8 local, 2 node and 1 last rounding; flat: 1 rounding.
      const Combined staged = host.result().combined(r);
      for (size_t i = 0; i < staged.x.size(); ++i)
        EXPECT_NEAR(from_bf16(staged.x[i]), from_bf16(flat[static_cast<size_t>(r)].x[i]), 12 * 0x1p-6f);
    }
  }
}

}  // namespace
}  // namespace plumb::test

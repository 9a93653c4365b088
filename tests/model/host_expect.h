// Compares what the host executor delivered with the brute-force definition.
#pragma once

#include <bit>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "tests/model/host_case.h"

namespace plumb::test {

/// Adds what follows from the copies and rows of a rank: their places, counts and prefix sums.
inline void expect_counts(const HostCase& c, const brute::Table& table, int32_t rank,
                          const std::vector<brute::Row>& rows, Received& out) {
  const Shape& shape = c.shape;
  const int32_t local = shape.experts / shape.ranks;
  const bool expand = c.program.expand;
  out.count_per_source_rank.assign(static_cast<size_t>(shape.ranks), 0);
  for (const brute::Row& copy : brute::plain_rows(shape, table, rank)) {
    out.copy_source.push_back(copy.rank * shape.max_tokens + copy.token);
    ++out.count_per_source_rank[static_cast<size_t>(copy.rank)];
    int32_t lane = -1;
    for (int32_t k = 0; k < shape.topk; ++k) {
      const int32_t e = brute::choice(shape, table, copy.rank, copy.token, k);
      int32_t row = -1;
      if (e >= 0 && e / local == rank) {
        lane = k;
        for (size_t i = 0; i < rows.size() && expand; ++i)
          if (rows[i].rank == copy.rank && rows[i].token == copy.token && rows[i].position == k)
            row = static_cast<int32_t>(i);
      }
      if (expand) out.expanded_rows.push_back(row);
    }
    out.master_lane.push_back(lane);
  }
  const bool is_hybrid = c.program.mode == Mode::hybrid && shape.ranks > c.scaleup;
  int32_t sum = 0;
  for (int32_t g = 0; g < (is_hybrid ? c.scaleup : shape.ranks); ++g) {
    for (int32_t s = g; s < shape.ranks; s += is_hybrid ? c.scaleup : shape.ranks)
      sum += out.count_per_source_rank[static_cast<size_t>(s)];
    out.psum_per_scaleup_rank.push_back(sum);
  }
  int32_t before = 0;
  for (int32_t e = rank * local; e < (rank + 1) * local; ++e) {
    const auto count = static_cast<int32_t>(brute::expert_rows(shape, table, e).size());
    const int32_t aligned = (count + shape.alignment - 1) / shape.alignment * shape.alignment;
    out.unaligned_per_expert.push_back(count);
    out.aligned_per_expert.push_back(aligned);
    out.psum_per_expert.push_back(before + (expand ? count : aligned));
    before += aligned;
  }
}

/// The tensors of one rank by definition; x and scales are what its sources hold in "input".
inline Received expected_received(const HostCase& c, const brute::Table& table, const HostResult& result,
                                  int32_t rank) {
  const Shape& shape = c.shape;
  const int32_t local = shape.experts / shape.ranks;
  const bool expand = c.program.expand;
  const auto rows = expand ? brute::expanded_rows(shape, table, rank, shape.alignment)
                           : brute::plain_rows(shape, table, rank);
  const RowFormat& format = result.format("input");
  Received out;
  out.rows = static_cast<int32_t>(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto [s, t, position] = rows[i];
    const bool is_padding = s < 0;
    out.source.push_back(is_padding ? -1 : s * shape.max_tokens + t);
    std::vector<std::byte> sent(static_cast<size_t>(format.row_bytes));
    if (!is_padding) {
      const auto row = result.row("input", s, t);
      sent.assign(row.begin(), row.end());
    } else {
      out.padding_rows.push_back(static_cast<int32_t>(i));
    }
    out.x.insert(out.x.end(), sent.begin(), sent.begin() + format.hidden_bytes);
    if (shape.dispatch_type == DType::fp8_e4m3) {
      const auto scales = sent.begin() + (format.hidden_bytes + 31) / 32 * 32;
      out.scales.insert(out.scales.end(), scales, scales + 4 * shape.scale_packs());
    }
    const auto weight = [&](int32_t k) {
      return is_padding || brute::choice(shape, table, s, t, k) < 0 ? 0.0f : result.batch().weight(s, t, k);
    };
    if (expand) {
      out.weights.push_back(weight(position));
      continue;
    }
    for (int32_t k = 0; k < shape.topk; ++k) {
      const int32_t e = brute::choice(shape, table, s, t, k);
      out.topk_idx.push_back(e >= 0 && e / local == rank ? e % local : -1);
      out.weights.push_back(weight(k));
    }
  }
  expect_counts(c, table, rank, rows, out);
  return out;
}

inline void expect_received(const HostCase& c, const HostResult& result) {
  const brute::Table table = c.rows();
  for (int32_t r = 0; r < c.shape.ranks; ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    const Received want = expected_received(c, table, result, r);
    const Received got = result.received(r);
    EXPECT_EQ(got.rows, want.rows);
    EXPECT_EQ(got.source, want.source);
    EXPECT_TRUE(got.x == want.x) << "hidden data differs";
    EXPECT_TRUE(got.scales == want.scales) << "scales differ";
    EXPECT_EQ(got.topk_idx, want.topk_idx);
    EXPECT_EQ(got.weights, want.weights);
    EXPECT_EQ(got.copy_source, want.copy_source);
    EXPECT_EQ(got.master_lane, want.master_lane);
    EXPECT_EQ(got.expanded_rows, want.expanded_rows);
    EXPECT_EQ(got.count_per_source_rank, want.count_per_source_rank);
    EXPECT_EQ(got.psum_per_scaleup_rank, want.psum_per_scaleup_rank);
    EXPECT_EQ(got.unaligned_per_expert, want.unaligned_per_expert);
    EXPECT_EQ(got.aligned_per_expert, want.aligned_per_expert);
    EXPECT_EQ(got.psum_per_expert, want.psum_per_expert);
    EXPECT_EQ(got.padding_rows, want.padding_rows);
    for (const int32_t slot : got.padding_rows)
      EXPECT_EQ(result.is_written("received", r, slot), c.program.zero_padding) << "row " << slot;
  }
}

inline brute::Recipe recipe_of(const HostCase& c) {
  const bool is_low_latency = c.program.kind == ProgramKind::low_latency_combine;
  const bool is_v1 = c.program.kind == ProgramKind::v1_combine;
  return {
      .scaleup = c.scaleup,
      .is_hybrid = (is_v1 || c.program.mode == Mode::hybrid) && !is_low_latency && c.shape.ranks > c.scaleup,
      .expand = c.program.expand || is_low_latency,
      .multiple_reduction = c.program.multiple_reduction,
      .weigh_at_source = is_low_latency,
      .expert = c.expert == ExpertFunction::identity ? brute::Expert::identity
                : c.expert == ExpertFunction::scaled ? brute::Expert::scaled
                                                     : brute::Expert::weighted};
}

/// Compares "combined" bit by bit. x(rank, token, column): an element as the experts see it.
template <class X>
void expect_combined(const HostCase& c, const HostResult& result, X x) {
  const Shape& shape = c.shape;
  const brute::Table table = c.rows();
  const brute::Recipe recipe = recipe_of(c);
  std::vector<std::vector<float>> biases(static_cast<size_t>(c.program.num_biases),
                                         std::vector<float>(static_cast<size_t>(shape.hidden)));
  for (int32_t r = 0; r < shape.ranks; ++r) {
    const Combined got = result.combined(r);
    const int32_t tokens = shape.tokens[static_cast<size_t>(r)];
    ASSERT_EQ(got.x.size(), static_cast<size_t>(tokens) * static_cast<size_t>(shape.hidden));
    for (int32_t t = 0; t < tokens; ++t) {
      brute::Token token;
      for (int32_t k = 0; k < shape.topk; ++k) {
        const int32_t e = brute::choice(shape, table, r, t, k);
        token.choices.push_back(e);
        token.weights.push_back(e < 0 ? 0 : result.batch().weight(r, t, k));
      }
      if (!got.weights.empty()) {
        const auto begin = got.weights.begin() + t * shape.topk;
        EXPECT_EQ(std::vector<float>(begin, begin + shape.topk), token.weights)
            << "rank " << r << " token " << t;
      }
      for (int32_t b = 0; b < c.program.num_biases; ++b)
        result.batch().bias(b, r, t, biases[static_cast<size_t>(b)]);
      for (int32_t h = 0; h < shape.hidden; ++h) {
        token.x = x(r, t, h);
        token.biases.clear();
        for (const auto& bias : biases) token.biases.push_back(bias[static_cast<size_t>(h)]);
        const float want = brute::combine(token, recipe, shape.experts / shape.ranks);
        const uint32_t bits = got.x[static_cast<size_t>(t * shape.hidden + h)];
        ASSERT_EQ(bits, std::bit_cast<uint32_t>(want) >> 16)
            << "rank " << r << " token " << t << " column " << h << ": got "
            << std::bit_cast<float>(bits << 16) << ", want " << want;
      }
    }
  }
}

}  // namespace plumb::test

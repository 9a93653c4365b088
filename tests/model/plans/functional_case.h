// The batch of the golden section `functional`.
#pragma once

#include "tests/model/golden.h"
#include "tests/model/host_expect.h"

namespace plumb::test {

/// 4 ranks, 8 experts, top-3, ragged, with masks; a row repeats its value over `hidden`.
inline HostCase functional_case() {
  const auto& section = golden("functional");
  HostCase c;
  c.shape = uniform_shape(4, 8, 3, 0, 32);
  c.shape.max_tokens = 4;
  c.shape.dispatch_type = DType::bf16;
  const auto x = section.at("x").get<std::vector<std::vector<float>>>();
  for (size_t r = 0; r < 4; ++r) {
    c.shape.tokens[r] = static_cast<int32_t>(x[r].size());
    for (const auto& row : section.at("topk_idx")[r])
      for (const auto& id : row) c.table.push_back(id);
  }
  c.values.x = [x](Rank r, int32_t t, std::span<float> out) {
    std::fill(out.begin(), out.end(), x[static_cast<size_t>(r)][static_cast<size_t>(t)]);
  };
  return c;
}

}  // namespace plumb::test

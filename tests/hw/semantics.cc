// Every byte, count and ledger entry of dispatch, cached dispatch and combine equals the reference.
#include "tests/hw/semantics.h"

#include <cstring>
#include <map>

#include "model/layout.h"

namespace plumb::hw::test {
namespace {

using kernels::Step;

struct Check {
  const Case& c;
  int failures = 0;

  void that(bool holds, const std::string& what) {
    if (holds) return;
    if (++failures <= 5) ADD_FAILURE() << what << "\n  " << c.describe();
  }
};

void check_counts(Check& check, const Received& got, int32_t rank) {
  const Case& c = check.c;
  const auto words = download<int64_t>(got.counts, kernels::kFirstCount + c.ranks + 3 * c.local());
  const auto copies = static_cast<int64_t>(copies_of(c, rank).size());
  const auto rows = static_cast<int64_t>(tensor_of(c, rank).size());
  check.that(words[kernels::kNumCopies] == copies,
             fmt::format("rank {}: {} copies, not {}", rank, words[1], copies));
  check.that(words[kernels::kNumRows] == rows, fmt::format("rank {}: {} rows, not {}", rank, words[2], rows));
  int64_t prefix = 0;
  const auto all = copies_of(c, rank);
  for (int32_t s = 0; s < c.ranks; ++s) {
    prefix += std::count_if(all.begin(), all.end(), [&](const Row& row) { return row.rank == s; });
    check.that(words[static_cast<size_t>(kernels::kFirstCount + s)] == prefix, "prefix of copies");
  }
  const auto counts = expert_counts(c, rank);
  int64_t before = 0;
  for (int32_t l = 0; l < c.local(); ++l) {
    const auto at = static_cast<size_t>(kernels::kFirstCount + c.ranks + l);
    const auto local = static_cast<size_t>(c.local());
    const int64_t count = counts[static_cast<size_t>(l)];
    const int64_t aligned = (count + c.alignment - 1) / c.alignment * c.alignment;
    check.that(words[at] == count && words[at + local] == aligned, "rows of an expert");
    check.that(words[at + 2 * local] == before + (c.expand ? count : aligned), "prefix of an expert");
    before += aligned;
  }
  if (!c.host_sync || got.copies < 0) return;
  check.that(got.copies == copies && got.rows == rows && got.expert_rows == counts, "counts on the host");
}

void check_rows(Check& check, const Received& got, int32_t rank) {
  const Case& c = check.c;
  const auto rows = tensor_of(c, rank);
  const auto bytes = static_cast<size_t>(c.row_bytes());
  const auto x = download<uint8_t>(got.x, static_cast<int64_t>(rows.size() * bytes));
  const int64_t scale_words = c.scale_packs == 0 ? 0
                              : c.column_scales  ? got.scale_column_stride * c.scale_packs
                                                 : static_cast<int64_t>(rows.size()) * c.scale_packs;
  const auto scales = download<uint32_t>(got.scales, scale_words);
  const auto weights = download<float>(got.weights, c.expand ? static_cast<int64_t>(rows.size()) : 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (row.rank < 0 && !c.zero_padding) continue;
    const std::vector<uint8_t> zeros(bytes);
    const auto s = static_cast<size_t>(std::max(row.rank, 0));
    const uint8_t* expected =
        row.rank < 0 ? zeros.data() : c.x[s].data() + static_cast<size_t>(row.token) * bytes;
    check.that(std::memcmp(x.data() + i * bytes, expected, bytes) == 0,
               fmt::format("rank {} row {}: bytes", rank, i));
    for (int32_t p = 0; p < c.scale_packs; ++p) {
      const int64_t at = static_cast<int64_t>(i) * got.scale_row_stride + p * got.scale_column_stride;
      const uint32_t pack =
          row.rank < 0 ? 0 : c.scales[s][static_cast<size_t>(row.token * c.scale_packs + p)];
      check.that(scales[static_cast<size_t>(at)] == pack,
                 fmt::format("rank {} row {}: scale {}", rank, i, p));
    }
    if (!c.expand) continue;
    const float weight = row.rank < 0 || !c.has_weights
                             ? 0.0f
                             : c.weights[s][static_cast<size_t>(row.token * c.topk + row.position)];
    check.that(weights[i] == weight, fmt::format("rank {} row {}: weight", rank, i));
  }
}

void check_metadata(Check& check, const Received& got, int32_t rank) {
  const Case& c = check.c;
  const auto copies = copies_of(c, rank);
  const auto count = static_cast<int64_t>(copies.size());
  const auto source = download<int32_t>(got.source, count);
  const auto ids = download<int32_t>(got.topk_idx, c.expand ? 0 : count * c.topk);
  const auto weights = download<float>(got.weights, c.expand ? 0 : count * c.topk);
  for (size_t i = 0; i < copies.size(); ++i) {
    const Row& copy = copies[i];
    check.that(source[i] == copy.rank * c.max_tokens + copy.token,
               fmt::format("rank {} copy {}: source", rank, i));
    for (int32_t k = 0; !c.expand && k < c.topk; ++k) {
      const int32_t e = expert_of(c, copy.rank, copy.token, k);
      const int32_t local = e >= 0 && e / c.local() == rank ? e % c.local() : -1;
      const auto at = i * static_cast<size_t>(c.topk) + static_cast<size_t>(k);
      const float weight =
          e < 0 || !c.has_weights
              ? 0.0f
              : c.weights[static_cast<size_t>(copy.rank)][static_cast<size_t>(copy.token * c.topk + k)];
      check.that(ids[at] == local, fmt::format("rank {} copy {} k {}: id", rank, i, k));
      check.that(weights[at] == weight, fmt::format("rank {} copy {} k {}: weight", rank, i, k));
    }
  }
}

void check_received(Check& check, const Rig& rig, const std::vector<Received>& got) {
  for (size_t i = 0; i < got.size(); ++i) {
    check_counts(check, got[i], rig.own()[i]);
    check_rows(check, got[i], rig.own()[i]);
    check_metadata(check, got[i], rig.own()[i]);
  }
}

/// Writes the experts' answers, into the window or through the caller's own memory.
std::vector<CombineInput> answers(const Case& c, Rig& rig, const std::vector<Received>& got,
                                  std::vector<DeviceMemory>& keep) {
  std::vector<CombineInput> inputs;
  for (size_t r = 0; r < got.size(); ++r) {
    const Rank rank = rig.own()[r];
    const auto rows = static_cast<int64_t>(tensor_of(c, rank).size());
    std::vector<uint16_t> values(static_cast<size_t>(rows * c.hidden));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = answer(c, rank, static_cast<int64_t>(i) / c.hidden,
                         static_cast<int32_t>(static_cast<int64_t>(i) % c.hidden));
    const int64_t num_weights = c.expand ? rows : static_cast<int64_t>(copies_of(c, rank).size()) * c.topk;
    std::vector<float> weights(static_cast<size_t>(num_weights));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = answer_weight(c, rank, static_cast<int64_t>(i));
    CombineInput in = rig.combine_input(r, got[r].handle);
    if (c.seed % 2 == 0) {
      keep.push_back(upload(values));
      in.x = keep.back().get();
      keep.push_back(upload(weights));
      in.weights = static_cast<const float*>(keep.back().get());
    } else {
      plumb::hw::check(
          cudaMemcpy(rig.buffers[r].expert_out(), values.data(), values.size() * 2, cudaMemcpyHostToDevice),
          "answers");
      plumb::hw::check(cudaMemcpy(rig.buffers[r].expert_weights(), weights.data(), weights.size() * 4,
                                  cudaMemcpyHostToDevice),
                       "weights");
    }
    inputs.push_back(in);
  }
  plumb::hw::check(cudaDeviceSynchronize(), "answers");
  return inputs;
}

void check_combined(Check& check, const Rig& rig) {
  const Case& c = check.c;
  std::vector<Places> places;
  for (int32_t r = 0; r < c.ranks; ++r) places.push_back(places_at(c, r));
  for (size_t own = 0; own < rig.own().size(); ++own) {
    const Rank r = rig.own()[own];
    const int64_t tokens = c.tokens[static_cast<size_t>(r)];
    const auto out = download<uint16_t>(rig.out[own].get(), tokens * c.hidden);
    const auto weights = download<float>(rig.out_weights[own].get(), tokens * c.topk);
    for (int32_t t = 0; t < tokens; ++t) {
      for (int32_t i = 0; i < c.hidden; ++i)
        check.that(out[static_cast<size_t>(int64_t{t} * c.hidden + i)] == combined(c, places, r, t, i),
                   fmt::format("rank {} token {} element {}: combined", r, t, i));
      for (int32_t k = 0; k < c.topk; ++k) {
        const int32_t e = expert_of(c, r, t, k);
        float expected = 0;
        if (e >= 0) {
          const Places& there = places[static_cast<size_t>(e / c.local())];
          const int64_t at = c.expand ? there.row.at({r, t, k}) : there.copy.at({r, t}) * c.topk + k;
          expected = answer_weight(c, e / c.local(), at);
        }
        check.that(weights[static_cast<size_t>(t * c.topk + k)] == expected, "weight carried home");
      }
    }
  }
}

/// Messages and bytes that the kernels of own ranks counted, against the routing. A copy of a rank to itself
/// is no message.
void check_ledger(Check& check, const Rig& rig) {
  const Case& c = check.c;
  const int64_t record = token_layout({c.row_bytes(), c.scale_packs, c.topk, true}).record_bytes;
  const int64_t home = token_layout({2 * int64_t{c.hidden}, 0, c.topk, false}).record_bytes;
  const bool local_sums = c.expand && c.multiple_reduction;
  std::map<Rank, kernels::Counters> counters;
  for (size_t i = 0; i < rig.own().size(); ++i) counters[rig.own()[i]] = rig.buffers[i].counters();
  const auto is = [&](int32_t rank, Step step, int32_t peer, int64_t messages, int64_t bytes) {
    if (!counters.contains(rank)) return;
    const auto& found = counters[rank];
    const auto i = static_cast<size_t>(step);
    const auto p = static_cast<size_t>(peer);
    check.that(
        static_cast<int64_t>(found.messages[i][p]) == messages &&
            static_cast<int64_t>(found.bytes[i][p]) == bytes,
        fmt::format("ledger {} {} -> {}: {} messages, {} bytes; expected {}, {}", kernels::kStepNames[i],
                    rank, peer, found.messages[i][p], found.bytes[i][p], messages, bytes));
  };
  std::vector<int64_t> returned(static_cast<size_t>(c.ranks));
  for (int32_t d = 0; d < c.ranks; ++d) {
    const auto copies = copies_of(c, d);
    const auto counts = expert_counts(c, d);
    int64_t selections = 0;
    for (const int64_t n : counts) selections += n;
    const auto num_copies = static_cast<int64_t>(copies.size());
    const auto num_rows = static_cast<int64_t>(tensor_of(c, d).size());
    // A source writes all rows for experts of its own rank; the receiver copies further rows of peers'
    // tokens.
    int64_t own_selections = 0, own_copies = 0;
    for (const int32_t e : c.ids[static_cast<size_t>(d)])
      own_selections += e >= 0 && e / c.local() == d ? 1 : 0;
    for (const Row& copy : copies) own_copies += copy.rank == d ? 1 : 0;
    if (c.expand) is(d, Step::copy, d, 0, (selections - num_copies - (own_selections - own_copies)) * record);
    if (c.zero_padding) is(d, Step::pad, d, 0, (num_rows - selections) * record);
    if (local_sums) is(d, Step::combine_local, d, num_copies, selections * home);
    for (int32_t s = 0; s < c.ranks; ++s) {
      int64_t rows = 0;
      for (const Row& copy : copies) rows += copy.rank == s ? 1 : 0;
      is(s, Step::notify, d, s == d ? 0 : 1, c.ranks * notify_bytes(c.local()));
      is(s, Step::dispatch, d, s == d ? 0 : rows, (s == d && c.expand ? own_selections : rows) * record);
      int64_t back = rows;
      if (c.expand && !c.multiple_reduction) {
        back = 0;
        for (const int32_t e : c.ids[static_cast<size_t>(s)]) back += e >= 0 && e / c.local() == d ? 1 : 0;
      }
      is(s, Step::combine_up, d, s == d ? 0 : back, back * home);
      returned[static_cast<size_t>(s)] += back;
    }
  }
  for (int32_t s = 0; s < c.ranks; ++s) {
    const int64_t tokens = c.tokens[static_cast<size_t>(s)];
    is(s, Step::combine_reduce, s, tokens, (returned[static_cast<size_t>(s)] + c.biases * tokens) * home);
  }
}

}  // namespace

int run_case(const Case& c, std::shared_ptr<World> world) {
  Check check{c};
  Rig rig(c, world);
  const auto received = rig.dispatch();
  rig.finish();
  check_received(check, rig, received);
  for (size_t r = 0; r < received.size(); ++r) {
    auto totals = expert_counts(c, rig.own()[r]);
    const auto found = download<int32_t>(rig.totals[r].get(), c.local());
    for (size_t l = 0; l < totals.size(); ++l) check.that(found[l] == totals[l] + 7, "cumulative counts");
  }
  std::vector<DeviceMemory> keep;
  rig.combine(answers(c, rig, received, keep),
              {.multiple_reduction = c.multiple_reduction, .num_sms = c.sms, .counted = true});
  rig.finish();
  check_combined(check, rig);
  check_ledger(check, rig);

  // Cached: other rows land where those of the first call did. The receive area is spoiled in between.
  Case next = c;
  for (auto& x : next.x)
    for (auto& byte : x) byte ^= 0x5a;
  Rig other(next, world);
  std::vector<DispatchInput> inputs;
  for (size_t r = 0; r < received.size(); ++r) {
    const auto bytes = tensor_of(c, rig.own()[r]).size() * static_cast<size_t>(c.row_bytes());
    plumb::hw::check(cudaMemset(received[r].x, 0xee, bytes), "spoil the receive area");
    DispatchInput in = other.input(r);
    in.topk_idx = nullptr;
    in.expert_totals = nullptr;
    in.cached = received[r].handle;
    inputs.push_back(in);
  }
  plumb::hw::check(cudaDeviceSynchronize(), "spoil the receive area");
  DispatchOptions options = rig.options();
  options.host_sync = false;
  const auto again = rig.dispatch(inputs, options);
  rig.finish();
  Check cached{next};
  check_received(cached, rig, again);
  return check.failures + cached.failures;
}

}  // namespace plumb::hw::test

// How much memory a rank needs, part by part: DeepEP's hints exactly, and our exact-placement window. Every
// size is checked 64-bit arithmetic: one that does not fit is an Error, never a wrapped or negative number.
// See docs/buffers.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/units.h"

namespace plumb {

/// One area of a buffer.
struct BufferPart {
  std::string name;
  Bytes bytes;
  std::string formula;  // "R * T * b = 8 * 4096 * 14464"
};

/// The areas that one use of a buffer (dispatch, combine, ...) needs at the same time.
struct BufferUse {
  std::string name;
  std::vector<BufferPart> parts;
  Bytes total;  // sum of its parts
};

/// A buffer whose uses follow one another in the same memory: total = largest use, rounded up to `unit`.
struct BufferPlan {
  std::string name;
  std::vector<BufferUse> uses;
  Bytes unit{1};
  Bytes total;

  /// The use that sets the size (the first of equals).
  const BufferUse& largest() const;
};

/// One line per part, then the totals; sizes in bytes with their formula.
std::string to_string(const BufferPlan& plan);

/// What the sizes of an expert-parallel buffer depend on. The functions below throw Error(usage) that names
/// the field, its value and what is allowed when one is out of range, and when a size does not fit 63 bits.
struct EpBufferSpec {
  int32_t scaleout = 1;      // logical scale-out ranks; above 1 the hybrid kernels run
  int32_t scaleup = 1;       // logical scale-up ranks
  int32_t nvlink_ranks = 1;  // GPUs of one NVLink domain; hybrid: equal to scaleup
  int32_t max_tokens = 0;    // T_max
  int32_t hidden = 0;        // elements
  int32_t topk = 0;          // 0: DeepEP sizes for 32
  bool is_fp8 = false;       // of dispatch
  bool multiple_reduction = true;
};

/// DeepEP V2's buffer hint. R 8 in one NVLink domain, T 4096, H 7168, K 8, bf16: 473 956 352 bytes.
/// It assumes one scale pack per 32 elements of fp8 and 1280 rows of rounding slack per node (8 channels of
/// 160 SMs). Source: DeepEP csrc/elastic/buffer.hpp.
BufferPlan deepep_buffer(const EpBufferSpec& spec);

/// How many rows the areas of our window are sized for.
enum class Sizing : uint8_t {
  worst_case,  // every token to every rank: the rows of DeepEP V2
  expected,    // what the gate sends on average, plus a margin; more is held back by credits
};

struct ExactWindowSpec {
  int32_t scaleout = 1;
  int32_t scaleup = 1;
  int32_t nvlink_ranks = 1;
  int32_t max_tokens = 0;
  int32_t topk = 1;                // 1..32
  int64_t dispatch_row_bytes = 0;  // TokenLayout::record_bytes of the dispatch record
  int64_t combine_row_bytes = 0;   // the same of the combine record
  bool multiple_reduction = true;
  Sizing sizing = Sizing::worst_case;
  // For Sizing::expected:
  double expected_ranks = 0;  // t: distinct destination ranks of a token, 0..min(R, K); expected_copies()
  double expected_nodes = 0;  // s: distinct destination nodes, 0..min(SO, t); hybrid only
  double margin = 0;          // 0.25 = 25 % above the expectation
};

/// Our window: rows land at prefix-sum offsets known from the counts, so its areas need no slot per possible
/// sender and no rounding slack. An expected area holds ceil(t T (1 + margin)) rows (s instead of t between
/// nodes; K instead of both for a single reduction), never more than the worst case. R 64 direct over nodes
/// of 8, T 4096, fp8 row 7520, t 7.67575, margin 0.25: receive 39 300 rows instead of 262 144.
BufferPlan exact_window(const ExactWindowSpec& spec);

/// DeepEP V1's low-latency buffer, two of everything:
/// 2 max(T d, E T c) + 2 E T max(d, c) + 2 round_up(4 E, 128), d = 16 + max(2 H, H + 4 H/128), c = 2 H + 4
/// H/128. H 5120, E 448, T 1840: 34 291 715 584 bytes = 31.937 GiB. Experts are physical ones: redundant
/// experts count. Its own hint adds at most 128 bytes of alignment. Source: DeepEP csrc/legacy/config.hpp.
struct LowLatencyBufferSpec {
  int32_t max_tokens = 0;
  int32_t hidden = 0;  // a multiple of 128
  int32_t experts = 0;
};
BufferPlan low_latency_buffer(const LowLatencyBufferSpec& spec);
/// The largest buffer V1 takes: it asserts bytes / 16 < INT_MAX (offsets in 16-byte units are int).
inline constexpr Bytes kLowLatencyLimit{int64_t{2147483647} * 16 - 1};

/// DeepEP V1's normal buffers: queues of `chunk_rows` per channel (two SMs) and peer, one use in NVLink
/// memory and, above 8 ranks, one in RDMA memory. Both exist at the same time: total is their sum, each
/// rounded up to 128. They do not depend on the batch. 16 ranks, 20 SMs, hidden 14336 B, 256 and 128 chunk
/// rows: 335 710 464 and 85 060 480 bytes. Source: DeepEP csrc/config.hpp, get_nvl_buffer_size_hint and
/// get_rdma_buffer_size_hint.
struct V1NormalBufferSpec {
  int32_t ranks = 8;
  int32_t num_sms = 20;
  int32_t hidden_bytes = 0;
  int32_t nvlink_chunk_rows = 256;  // num_max_nvl_chunked_recv_tokens
  int32_t rdma_chunk_rows = 128;    // num_max_rdma_chunked_recv_tokens, already a multiple of the send chunk
};
BufferPlan v1_normal_buffer(const V1NormalBufferSpec& spec);

/// DeepEP V2's control memory; 14 680 064 bytes, the same for every setting.
BufferPlan deepep_workspace_buffer();

/// GPU memory of a DeepEP dispatch handle, without its copy of topk_idx. R 8 direct, 4096 tokens, 21 687 rows
/// received, K 8, L 32: 998 844 bytes. Source: DeepEP csrc/elastic/buffer.hpp.
struct HandleSpec {
  int32_t scaleout = 1;
  int32_t scaleup = 1;
  int32_t max_tokens = 0;
  int32_t tokens = 0;  // of this rank
  int32_t topk = 1;
  int32_t channels = 1;  // of the whole grid; hybrid only
  int32_t local_experts = 1;
  int64_t received_rows = 0;
};
BufferPlan handle_buffer(const HandleSpec& spec);

/// Engram: fetched rows in GPU memory, the rank's part of the table in CPU memory, each rounded up to 2 MiB.
/// 524 288 rows of 128 bf16, 12 288 fetched: 4 194 304 and 134 217 728 bytes.
struct EngramBufferSpec {
  int64_t rows_per_rank = 0;
  int64_t max_fetched_rows = 0;
  int32_t hidden = 0;
  int32_t element_bytes = 2;
};
BufferPlan engram_buffer(const EngramBufferSpec& spec);

/// Pipeline parallel: `inflight` slots each for {send, receive} x {previous, next}.
BufferPlan ring_buffer(int64_t max_tensor_bytes, int32_t inflight);

/// All-gather session: one part per tensor.
struct GatherTensor {
  int64_t elements = 0;  // of one rank
  int32_t element_bytes = 2;
};
BufferPlan gather_buffer(int32_t ranks, const std::vector<GatherTensor>& tensors);

/// A buffer as a function of tokens per rank; must not shrink when tokens grow.
using BufferOfTokens = std::function<BufferPlan(int32_t tokens)>;

/// The largest number of tokens whose buffer takes at most `limit` bytes, 0 when not even one token fits. A
/// size beyond 63 bits counts as too large; a spec that is wrong for one token throws.
int32_t largest_tokens(const BufferOfTokens& buffer, Bytes limit);

/// Returns buffer(tokens) when it takes at most `limit`; else throws Error(usage) that names the buffer, its
/// size, the limit and the largest number of tokens that fits.
BufferPlan require_fit(const BufferOfTokens& buffer, int32_t tokens, Bytes limit);

}  // namespace plumb

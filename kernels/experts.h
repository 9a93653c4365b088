// Launcher of the experts' function on what a dispatch delivered: what stands in for real experts when a
// round trip is checked from end to end. Device-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace plumb::kernels {

enum class ExpertKind : uint8_t { identity, scaled, weighted };  // ExpertFunction of model/host_payload.h

/// The received tensors of a rank (hw::Received) and where combine reads its rows.
struct ExpertParams {
  const char* x = nullptr;           // rows, row_bytes apart: bf16, or e4m3 with scales
  const uint32_t* scales = nullptr;  // row-major, scale_packs a row
  const int32_t* ids = nullptr;      // plain: [copies][topk] local expert or -1; null: expanded
  const float* weights = nullptr;    // plain: [copies][topk]; expanded: [rows]
  const int64_t* counts = nullptr;   // HandleMemory::counts of the dispatch
  void* out = nullptr;               // bf16 [rows][hidden]
  int32_t rank = 0;
  int32_t ranks = 1;
  int32_t local_experts = 1;
  int32_t topk = 1;
  int32_t hidden = 0;
  int32_t scale_packs = 0;
  int32_t scale_block = 1;  // elements of one scale
  bool is_fp8 = false;
  bool has_ue8m0_scales = false;
  ExpertKind kind = ExpertKind::identity;
};

/// Computes as run_expert of model/host_payload.h, bit by bit, for all rows that the counts name; rows of
/// alignment gaps are not written. Enqueues and returns.
cudaError_t launch_experts(const ExpertParams& params, cudaStream_t stream);

}  // namespace plumb::kernels

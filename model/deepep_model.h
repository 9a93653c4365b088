// DeepEP V2's own analytic model of SMs and queue pairs, reproduced exactly, with what its published numbers
// imply. It is here to be compared with: our own model is sm_model.h. See docs/sm_model.md. Source: DeepEP
// deep_ep/buffers/elastic.py. Rates are plain GB/s (1e9 bytes/s) and the order of its floating-point
// operations is kept, because the answers come from ceil().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/ids.h"
#include "model/units.h"

namespace plumb {

/// Which link sets the pace; none when no bytes leave the rank.
enum class LinkBound : uint8_t { none, nvlink, rdma };

std::string_view to_string(LinkBound bound);

struct DeepepSmInput {
  int32_t experts = 0;
  int32_t topk = 0;
  int32_t scaleout = 1;      // logical scale-out ranks; hybrid kernels run when above 1
  int32_t scaleup = 1;       // logical scale-up ranks; ranks = scaleout * scaleup
  int32_t nvlink_ranks = 1;  // GPUs of one NVLink domain
  double rdma_gbs = 0;       // of one GPU, one direction
  double nvlink_gbs = 0;     // of one GPU, one direction, after its factor 0.9
  double sm_read_gbs = 200;  // per SM; DeepEP's constant for every GPU, part of its model
  double sm_write_gbs = 50;  // likewise
  int32_t device_sms = 0;
  bool prefers_overlap = true;  // with compute; false: at least 64 SMs
  bool allows_hybrid = true;    // also on one node
  int32_t allocated_qps = 0;    // deepep_allocated_qps()
  int32_t gate_groups = 0;      // of a group-limited gate: must be 0, it is not modelled
};

/// Every term of the model. Volumes are per copy, that is divided by T t B (tokens, expected ranks, record
/// bytes).
struct DeepepSmTerms {
  double expected_ranks = 0;     // t
  double expected_scaleout = 0;  // s, 0 when scaleout is 1
  double sm_read = 0;
  double sm_write = 0;
  double rdma_traffic = 0;
  double nvlink_traffic = 0;
  LinkBound bound = LinkBound::none;
  double bounded_traffic = 0;
  double bounded_gbs = 0;
  double read_need = 0;   // SMs that keep up with the link by reading; 0 when bound is none
  double write_need = 0;  // the same by writing
  double raw = 0;         // the larger of both; the SMs of the device when bound is none
  int32_t before_floor_and_cap = 0;
  int32_t num_sms = 0;
  int32_t num_qps = 0;
};

/// The SM count that DeepEP V2 picks for dispatch, and takes for combine too:
///   sm_read  = 1/t + s/t                     | 1/t
///   sm_write = 1/t + s/(t SO) + 1            | (1/t when there are RDMA peers) + NVL/R
///   rdma     = s (1 - 1/SO) / t              | (R - NVL)/R
///   nvlink   = 1 - 1/SU                      | NVL/R (1 - 1/NVL)          (hybrid | direct)
///   need     = max over read, write of (bounded_gbs / bounded_traffic) * volume / rate per SM
///   SMs      = min(device, max(64 unless overlap is preferred, round_up(max(4, ceil(1.25 need)), 2)))
/// RDMA can be the bound only when SO > 1. H200 2 x 8, E 256, K 8, RDMA 50, NVLink 430.3: need 8.5496, 12
/// SMs, 129 QPs. Throws Error(usage) where DeepEP asserts or divides by zero: experts % ranks != 0, a gate
/// with groups, a rate that is 0 in hybrid mode; and for counts out of range or rates that are negative or
/// not finite. An NVLink rate of 0 in direct mode is accepted as DeepEP does: it answers 4 SMs.
DeepepSmTerms deepep_sms(const DeepepSmInput& in);

/// Queue pairs for `num_sms` SMs: min(16 n + 1, allocated) when hybrid is allowed, else min(n, 9, allocated).
int32_t deepep_qps(int32_t num_sms, bool allows_hybrid, int32_t allocated);
/// Queue pairs allocated when the caller names no number: hybrid 129, or 65 on a NIC with fast atomics;
/// direct 17.
int32_t deepep_allocated_qps(bool allows_hybrid, bool nic_has_fast_atomics);

/// Copies of a token that cross each kind of link, for a balanced gate; nodes of `grouping.scaleup` ranks.
struct CopiesPerToken {
  double expected_ranks = 0;
  double expected_nodes = 0;         // 0 on one node
  double rdma_direct = 0;            // t (1 - 1/SO)
  double rdma_hybrid = 0;            // s (1 - 1/SO)
  double nvlink_direct = 0;          // t (SU - 1) / R
  double nvlink_hybrid = 0;          // t (1 - 1/SU)
  double combine_multiple = 0;       // RDMA copies of combine, summed per node: s (1 - 1/SO)
  double combine_single = 0;         // not summed: t (1 - 1/SO)
  double combine_single_expand = 0;  // one per selection: K (1 - 1/SO)
};
/// E 256, K 8, 8 nodes of 8: RDMA copies 6.71628 direct, 4.63282 hybrid. Throws as expected_distinct().
CopiesPerToken copies_per_token(int32_t experts, int32_t topk, const Grouping& grouping);

/// A logical rate counts what stays in the own group too: physical = logical (1 - 1/groups). 90 GB/s, 2
/// nodes: 45.
double physical_rate(double logical, int32_t groups);
/// Seconds in which T tokens make a logical rate: T copies bytes / rate. 8192 tokens, 1.99302 nodes, 7488 B,
/// 90 GB/s: 1358.39 us.
double implied_seconds(int64_t tokens, double copies, int64_t row_bytes, double logical_bytes_per_second);

/// Per-SM rates that a published dispatch bandwidth implies with the volumes of this model: a lower bound
/// when the link, not the SMs, set the pace. SM100 EP8, 643 GB/s on 24 SMs: write 26.79, read 5.06 GB/s.
struct ImpliedSmRates {
  double sm_write_gbs = 0;
  double sm_read_gbs = 0;
  double link_utilisation = 0;  // physical rate over the rate of the bottleneck link
};
ImpliedSmRates implied_sm_rates(const DeepepSmInput& in, double logical_gbs, int32_t num_sms);

/// A call as DeepEP V2 checks it; 0 = not asked for.
struct DeepepCall {
  int32_t scaleout = 1;
  int32_t scaleup = 1;
  int32_t experts = 1;
  int32_t topk = 1;
  int32_t hidden = 256;
  int32_t element_bytes = 2;
  int32_t tokens = 0;
  int32_t max_tokens = 0;
  int32_t num_sms = 0;
  int32_t device_sms = 0;
  int32_t num_qps = 0;
  int32_t allocated_qps = 0;
  bool is_cached = false;
};
/// Why DeepEP V2 would not run this call, one line each with found and allowed values; empty when it would.
std::vector<std::string> deepep_refusals(const DeepepCall& call);

}  // namespace plumb

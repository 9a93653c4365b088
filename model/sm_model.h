// Our analytic model of a dispatch or combine: bytes on each link and through the SMs, how many SMs keep up
// with the slowest link, and the time that follows. It counts what DeepEP's own model (deepep_model.h) leaves
// out: RDMA in direct mode, rates per GPU type, group-limited, masked and skewed gates, barriers, epilogues,
// combine. See docs/sm_model.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/deepep_model.h"
#include "model/ids.h"
#include "model/program.h"
#include "model/routing.h"
#include "model/shape.h"
#include "model/units.h"

namespace plumb {

/// What a gate sends, per token; means over tokens.
struct GateCopies {
  double ranks = 0;       // t: distinct destination ranks, the own one included
  double nodes = 0;       // s: distinct destination nodes, the own one included
  double selections = 0;  // k: choices that are not masked
  double imbalance = 1;   // copies received by the fullest rank over the mean
};

/// Closed form for RoutingKind::uniform and group_limited, masked choices included: with p = masked_ratio the
/// number of choices left is binomial, so t = sum over j of C(K,j) (1-p)^j p^(K-j) hit(j), hit =
/// expected_distinct() or its group-limited form, and k = K (1 - p). The binomial stands for the exact count
/// per rank: right to O(1 / (T K)). E 256, R 8, K 8, p 0.5: t = 3.24264. Throws Error(usage) for other kinds,
/// naming counted_copies().
GateCopies expected_copies(const Shape& shape, const RoutingSpec& spec, const Grouping& grouping);

/// The same counted in a routing table, exactly, for any gate. Reads the rows of every rank; a batch without
/// tokens gives zeros and imbalance 1.
GateCopies counted_copies(const Shape& shape, const Routing& routing, const Grouping& grouping);

enum class Direction : uint8_t { dispatch, combine };

/// What is moved. Reads from Program: mode, placement, expand, multiple_reduction, num_biases.
struct SmWork {
  Direction direction = Direction::dispatch;
  Program program{};
  Grouping grouping{};  // nodes of NVLink ranks; hybrid on one node runs the direct kernels
  GateCopies copies{};
  int64_t tokens = 0;  // T, of a rank
  Bytes record{};      // B, of one copy on the wire: TokenLayout::record_bytes
  Bytes output_row{};  // O, of one combined row and of a bias row; combine only
};

/// What moves it: machine file (rates) and costs file (times).
struct SmMachine {
  BytesPerSecond rdma{};      // of one GPU, one direction
  BytesPerSecond nvlink{};    // of one GPU, one direction
  BytesPerSecond hbm{};       // read plus written; needed when there is an epilogue
  BytesPerSecond sm_read{};   // of one SM
  BytesPerSecond sm_write{};  // of one SM
  int32_t device_sms = 0;
  int32_t sm_granularity = 1;  // SM counts are multiples of it (2: clusters of two)
  Seconds first_barrier{};
  Seconds last_barrier{};
  Seconds notify{};  // count exchange, beside the data; 0 when cached
  Seconds fill{};    // from the first record read to the first byte delivered: the pipeline's latency
};

/// What sets the pace of the main kernel.
enum class Pace : uint8_t { none, notify, nvlink, rdma, sm };

std::string_view to_string(Pace pace);

/// Every term, per rank; bytes are expectations.
struct SmPrediction {
  double rdma_bytes = 0;
  double nvlink_bytes = 0;
  double sm_read_bytes = 0;
  double sm_write_bytes = 0;
  double epilogue_bytes = 0;  // of HBM traffic
  Seconds rdma_time{};
  Seconds nvlink_time{};
  Seconds link_time{};  // the larger of both
  LinkBound bound = LinkBound::none;
  double sm_need = 0;  // SMs whose time equals link_time; 0 when bound is none
  int32_t num_sms = 0;
  Seconds sm_time{};      // at num_sms
  bool keeps_up = false;  // sm_time <= (1 + tolerance) link_time
  Seconds main_time{};
  Seconds epilogue_time{};
  Seconds total_time{};
  Pace pace = Pace::none;
};

/// The prediction for a given number of SMs. With V = T B, far = (R - NVL)/R, near = NVL/R, peer = (NVL -
/// 1)/R, away = 1 - 1/SO, up = 1 - 1/SU, h = imbalance, q = expand ? k : t, O = output row; c = t and f = s,
/// but in combine without multiple reduction c = f = q:
///
///   direct: rdma V c h far, nvlink V c h peer
///     dispatch: sm_read V             sm_write V ([far > 0] + c near)
///     combine:  sm_read V h q         sm_write V h c
///   hybrid: rdma V f away, nvlink V c h up
///     dispatch: sm_read V (1 + s)     sm_write V (1 + s/SO + c)
///     combine:  sm_read V (h q + c)   sm_write V (h c + f)
///   epilogue in HBM
///     dispatch: staged V h (t + q), placed directly 2 V h (q - t): second and further experts of a row
///     combine:  V (direct c, hybrid f) + (1 + biases) T O
///   link = max(rdma / rdma rate, nvlink / nvlink rate);  sm(n) = max(write / (n w), read / (n r))
///   main = first barrier + max(notify, fill + max(link, sm(n))) + last barrier
///   total = main + epilogue / hbm rate
///
/// HBM traffic of the main kernel is not a limit here, and nodes are taken as equally loaded (rails share a
/// hot rank's traffic): h counts only where single ranks do. 16 ranks direct over nodes of 8, T 4096, B 7520,
/// t 6.52328, RDMA 50, NVLink 430.3, per SM 50 and 200 GB/s: link 2.00930 ms (RDMA), need 1.30659 SMs; at 2
/// SMs the SM time is 1.31266 ms. Throws Error(usage) naming the field for counts out of range, or a rate
/// that is 0 while bytes need it.
SmPrediction predict_sms(const SmWork& work, const SmMachine& machine, int32_t num_sms,
                         double tolerance = 0.02);

/// The smallest SM count (multiple of sm_granularity) with sm(n) <= (1 + tolerance) link. All SMs when no
/// count is enough (keeps_up is then false) or when no link carries bytes. Example above: 2, where DeepEP's
/// model says 18.
SmPrediction corrected_sms(const SmWork& work, const SmMachine& machine, double tolerance = 0.02);

/// Queue pairs for our kernels: one per channel, so that no two warps share a doorbell, plus one for the
/// count exchange; less when fewer are allocated, or when queue pairs times connections would overflow the
/// NIC's budget. The data queue pairs are then a multiple of num_sms while there is at least one per SM, so
/// that none is shared between SMs. 12 SMs, 8 channels, 129 allocated: 97; 65 allocated: 61. Direct mode:
/// channels_per_sm = 1.
struct QpNeed {
  int32_t num_sms = 1;
  int32_t channels_per_sm = 1;
  int32_t allocated = 1;
  int32_t peers = 1;            // ranks (nodes on a rail) that each queue pair context connects to
  int64_t nic_connections = 0;  // budget of the NIC, 0 = no limit
};
int32_t corrected_qps(const QpNeed& need);

}  // namespace plumb

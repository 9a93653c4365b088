// Constants of an implementation of dispatch and combine: what calibration fits. Kept apart from the machine,
// which holds hardware: a costs file (topologies/costs/*.yaml, docs/analytic.md) names the library (DeepEP
// V1, V2, ours) that its constants describe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/plan.h"

namespace plumb {

/// Rate at which one SM moves payload; `gpus` are words of Gpu::name, empty = any GPU.
struct SmRate {
  std::vector<std::string> gpus;
  Sourced<BytesPerSecond> rate;
};

/// Factor on the SM time of some phases, e.g. of those that also add.
struct SmFactor {
  std::vector<std::string> phases;
  std::vector<std::string> gpus;
  Sourced<double> factor{.value = 1, .source = ""};
  bool streamed = false;  // only where the phase follows another one over a `stream` edge
};

/// How much of a scale-up link n SMs of a rank can use in some phases, at most: usable rate x share x
/// n / (n + half_sms). Stores approach the rate of a link slowly, loads reach one of their own at once.
/// Source: bare movers of `plumb probe` (docs/validation.md).
struct SmFeed {
  std::vector<std::string> phases;
  Sourced<double> share{.value = 1, .source = ""};
  Sourced<double> half_sms{};  // with so many SMs the rate is half of what very many reach
  /// Part of the SM time of the phase's own rows that adds to the time of the link, in plans with phase
  /// `copy`.
  Sourced<double> own_rows{};
  bool pushed = false;  // only where holders push most of the rows that the phase reads (pushed_rows())
};

/// What the SMs of a rank pay for the rows that they move: (rows x row_time + bytes / rate) x factor / SMs.
struct SmCosts {
  std::vector<Link> links = {Link::local, Link::scale_up,
                             Link::scale_out};  // classes of path that cost SM time
  std::vector<std::string> free_phases;         // phases that cost none although they are on such a path
  Sourced<Seconds> row_time;
  std::vector<SmRate> rates;  // the first that names the GPU; none: the machine's sm_write_rate
  std::vector<SmFactor> factors;
  std::vector<SmFeed> feeds;  // the first that fits a phase; none: SMs take all that the link gives
};

/// Time that is paid once in a plan, when the first of `phases` starts.
struct FixedCost {
  std::vector<std::string> phases;
  std::vector<std::string>
      covers;  // phases that cost nothing beside, as this time was fitted with them in it
  Sourced<Seconds> time;
  Sourced<Seconds> per_doubling;  // for each doubling of the ranks above base_ranks
  int64_t base_ranks = 1;
  Sourced<Seconds> per_sm{};  // for each SM that the program gives the first of `phases` that names a number
};

/// Lists of phases hold names or patterns with one '*' at the end.
struct Costs {
  std::string name;
  std::string describes;
  Sourced<double> scale_up_share{.value = 1, .source = ""};  // of the nominal rate that payload can use
  Sourced<double> scale_out_share{.value = 1, .source = ""};
  Sourced<double> memory_share{.value = 1, .source = ""};  // of hbm_rate, in copies and sums
  Sourced<Seconds>
      scale_up_latency;  // one way, software included; the fabric's own latency when it is larger
  Sourced<Seconds> scale_out_latency;
  /// Hops on which a pipeline pays latency and one chunk before it streams; the others hide it in a
  /// FixedCost.
  std::vector<Link> fill_links = {Link::scale_up, Link::scale_out};
  Sourced<Seconds> message_time;  // of a rank's scale-out messages, one after the other
  Sourced<Seconds> scale_up_barrier;
  Sourced<Seconds> scale_out_barrier;
  Sourced<Seconds> kernel_gap;  // from the end of a kernel to the next one on the same stream
  Sourced<Seconds> host_sync;   // the CPU sees a count and launches what follows
  SmCosts sm;
  std::vector<FixedCost> fixed;
};

/// Reads the mapping of a costs file. `standard` holds the values of keys that are absent.
Costs read_costs(ConfigMap map);
Costs read_costs(ConfigMap map, Costs standard);

/// Reads DIRECTORY/NAME.yaml; a file that says `extends: OTHER` changes the values of OTHER.yaml beside it.
/// Throws ConfigError with all problems, Error(usage) for a missing file or a circle.
Costs load_costs(const std::string& directory, std::string_view name);

/// The costs of a program when neither experiment nor machine names any: "deepep_v1" for v1_*,
/// "deepep_v1_low_latency" for low_latency_*, else "plumb".
std::string_view default_costs(ProgramKind kind);

/// Whether a phase is in a list of names and patterns.
bool is_listed(const std::vector<std::string>& patterns, std::string_view phase);

/// The rate of one SM of that GPU, nothing when `sm` does not name it.
std::optional<BytesPerSecond> sm_rate(const SmCosts& sm, std::string_view gpu);
/// Product of the factors that name both the phase and the GPU; `streamed`: whether the phase follows another
/// one over a `stream` edge.
double sm_factor(const SmCosts& sm, std::string_view phase, std::string_view gpu, bool streamed);
/// The first feed that names the phase and fits it, nullptr when there is none. `pushed`: whether its rows
/// are.
const SmFeed* sm_feed(const SmCosts& sm, std::string_view phase, bool pushed);
/// Part of a scale-up link's usable rate that `sms` SMs of a rank can use: with a share of 1 and half_sms of
/// 2, 16 SMs reach 16 / 18 of it.
double part_of_link(const SmFeed& feed, double sms);

}  // namespace plumb

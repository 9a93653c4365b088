// The public record: measurements of dispatch and combine as their sources printed them
// (experiments/published/*.yaml). Facts only; what they are compared with is said in validate.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plumb {

/// One measurement. Text is empty and a number 0 where the source is silent.
struct PublishedRow {
  std::string id;
  std::string system;
  std::string mode;
  std::string arch;
  std::string gpu;
  std::string nic;
  std::string topology;  // "RxN": R ranks in a scale-up domain, N domains; "1xN": no scale-up link used; "ub"
  std::string op;
  std::string dispatch_type;
  std::string combine_type;
  std::string unit;      // "us", or what the bandwidth counts: logical_rdma, logical_nvlink, selections ...
  std::string quantity;  // "kernel" or "event" where the source tells them apart
  std::string source;
  std::string date;
  std::string seen;  // primary or secondary
  std::string note;
  int32_t ranks = 0;
  int32_t tokens = 0;
  int32_t hidden = 0;
  int32_t topk = 0;
  int32_t experts = 0;
  int32_t sms = 0;
  double value = 0;  // microseconds, or 1e9 bytes per second; the time where a source gives both
};

/// Reads a record with `entries` (published.yaml) or with `rows` of one host (peers_h200x2.yaml; one row for
/// each number of SMs, ids "HOST:SYSTEM OP TYPE Ttokens [Nsm] QUANTITY"). Throws ConfigError with all
/// problems: unknown keys, a row without any value, two rows of one id.
std::vector<PublishedRow> read_published(const std::string& path);

}  // namespace plumb

// Asks driver, runtime, /proc and nvidia-smi.
#include "hw/probe_system.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "hw/check.h"
#include "kernels/probe.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

/// The first word of the form 580.159.04; "" when there is none.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    const bool is_number =
        std::all_of(word.begin(), word.end(), [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
    if (is_number && word.find('.') != std::string::npos) return word;
  }
  return "";
}

std::string output_of(const char* command) {
  std::string text;
  FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return text;
  char buffer[4096];
  for (size_t read; (read = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, read);
  pclose(pipe);
  return text;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "attribute of a GPU");
  return value;
}

}  // namespace

Links links_of(std::string_view text) {
  Links links;
  for (size_t line = 0; line < text.size();) {
    const size_t end = std::min(text.find('\n', line), text.size());
    const std::string_view row = text.substr(line, end - line);
    line = end + 1;
    const size_t colon = row.find(':'), unit = row.find(" GB/s");
    if (row.find("Link ") == row.npos || colon == row.npos || unit == row.npos || colon + 2 > unit) continue;
    double gbs = 0;
    const auto [at, error] = std::from_chars(row.data() + colon + 2, row.data() + unit, gbs);
    if (error != std::errc() || at != row.data() + unit || !(gbs > 0)) continue;
    ++links.count;
    links.gbs = gbs;
  }
  return links;
}

void describe_system(Probe& probe) {
  std::string_view reason;
  const int count = device_count(&reason);
  if (count == 0) throw Error(ErrorKind::environment, fmt::format("no GPU to measure: {}", reason));
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "properties of GPU 0");
  if (properties.major < 9)
    throw Error(ErrorKind::environment,
                fmt::format("GPU 0 is a {} of compute capability {}.{}; allowed: 9.0 or newer (bulk copies)",
                            properties.name, properties.major, properties.minor));
  probe.gpu = properties.name;
  probe.sms = properties.multiProcessorCount;
  probe.l2_bytes = properties.l2CacheSize;
  probe.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  probe.gpus = std::min(count, kernels::kMaxProbeGpus);
  for (int32_t i = 1; i < probe.gpus; ++i) {
    check(cudaGetDeviceProperties(&properties, i), "properties of a GPU");
    if (probe.gpu != properties.name || probe.sms != properties.multiProcessorCount)
      throw Error(ErrorKind::environment,
                  fmt::format("GPU {} is a {} with {} SMs, GPU 0 a {} with {}; allowed: equal GPUs "
                              "(CUDA_VISIBLE_DEVICES chooses)",
                              i, properties.name, properties.multiProcessorCount, probe.gpu, probe.sms));
  }
  // Two bits a clock on each wire of the bus.
  probe.memory_gbs = 2.0 * attribute(cudaDevAttrMemoryClockRate, 0) * 1e3 *
                     attribute(cudaDevAttrGlobalMemoryBusWidth, 0) / 8 * 1e-9;
  probe.peers = ask_peer_access(probe.gpus);
  check(cudaDriverGetVersion(&probe.cuda_driver), "version of the driver");
  check(cudaRuntimeGetVersion(&probe.cuda_runtime), "version of the runtime");
  probe.driver = driver_version();
  probe.date = today();
  const Links links = links_of(output_of("nvidia-smi nvlink --status -i 0 2>/dev/null"));
  probe.links = links.count;
  probe.link_gbs = links.gbs;
}

}  // namespace plumb::hw

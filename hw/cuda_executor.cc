// Chooses world, and kernels or interpreter, lets the host check them, and makes the trace.
#include "hw/cuda_executor.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>

#include "hw/check.h"
#include "hw/interpreter.h"
#include "hw/kernel_run.h"
#include "model/error.h"

namespace plumb::hw {
namespace {

/// "NVIDIA H200, driver 13.0": name of the current device and the newest CUDA that its driver serves.
std::string describe_device() {
  int device = 0;
  int driver = 0;
  cudaDeviceProp properties;
  check(cudaGetDevice(&device), "current device");
  check(cudaGetDeviceProperties(&properties, device), "properties of the device");
  check(cudaDriverGetVersion(&driver), "version of the driver");
  return fmt::format("{}, driver for CUDA {}.{}", properties.name, driver / 1000, driver % 1000 / 10);
}

Trace start_trace(const Plan& plan) {
  Trace trace;
  trace.header.executor = "cuda";
  trace.header.plan = plan.digest();
  trace.header.program = to_string(plan.program());
  trace.header.clock = "globaltimer";
  for (const Phase& phase : plan.phases()) trace.header.phases.push_back(phase.name);
  return trace;
}

void check_ledger(const Plan& plan, const Ledger& measured) {
  const Ledger expected = account(plan);
  if (measured != expected)
    throw Error(ErrorKind::mismatch, "what the kernels counted is not what the plan accounts for:\n" +
                                         difference(plan, expected, measured));
}

/// Memories of the interpreter and the host, byte by byte.
void check_memory(const Plan& plan, const HostMemory& expected, const HostMemory& found) {
  for (size_t i = 0; i < plan.regions().size(); ++i)
    for (Rank r = 0; r < plan.grouping().ranks; ++r) {
      const auto region = static_cast<RegionId>(i);
      for (int64_t slot = 0; slot < expected.rows(region, r); ++slot) {
        const auto want = expected.row(region, r, slot);
        const auto have = found.row(region, r, slot);
        const auto [w, h] = std::ranges::mismatch(want, have);
        if (w == want.end()) continue;
        throw Error(
            ErrorKind::mismatch,
            fmt::format("row {} of '{}' on rank {}, which op {} writes, is not the host's: byte {} is "
                        "{:#04x}, expected {:#04x}",
                        slot, plan.regions()[i].name, r, expected.writer(region, r, slot), w - want.begin(),
                        std::to_integer<int>(*h), std::to_integer<int>(*w)));
      }
    }
}

}  // namespace

CudaExecutor::CudaExecutor(const HostInput& input, const CudaOptions& options)
    : shape_(input.shape), expert_(input.expert), host_options_(input.options), options_(options) {
  if (options_.repeat < 1) fail_usage("{} repetitions; allowed: 1 or more", options_.repeat);
  if (options_.world == WorldChoice::local) {
    std::string_view reason;
    gpus_.count = device_count(&reason);
    gpus_.reason = reason;
  } else {
    gpus_ = visible_gpus();
  }
  if (gpus_.count == 0) throw Error(ErrorKind::environment, fmt::format("no GPU: {}", gpus_.reason));
  window_ = std::make_unique<HostExecutor>(input);
  if (host_options_.window_bytes == 0) return;
  HostInput whole = input;
  whole.options.window_bytes = 0;
  whole_ = std::make_unique<HostExecutor>(whole);
}

CudaExecutor::~CudaExecutor() = default;

bool CudaExecutor::is_checked(const Plan& plan) const {
  if (options_.check != CheckBytes::automatic) return options_.check == CheckBytes::always;
  int64_t bytes = 0;
  for (const Region& region : plan.regions())
    for (const int64_t rows : region.rows) {
      int64_t more = 0;
      if (__builtin_mul_overflow(rows, region.row_bytes, &more) ||
          __builtin_add_overflow(bytes, more, &bytes))
        return false;
    }
  return bytes <= kCheckedBytes;
}

/// "" when the kernels run with a GPU for each rank.
std::string CudaExecutor::why_not_nvlink(const Plan& plan) const {
  if (const std::string reason = why_interpreted(plan, shape_, kernels::kMaxRanks); !reason.empty())
    return reason;
  if (!options_.nvlink.make_world) return "this build has no NCCL";
  const std::string why = why_not_together(gpus_.peers, shape_.ranks);
  return why.empty() || gpus_.reason.empty() ? why : why + ": " + gpus_.reason;
}

Trace CudaExecutor::run(const Plan& plan) {
  if (plan.grouping().ranks != shape_.ranks)
    fail_usage("the plan has {} ranks, the shape {}; pass the shape that the plan was built from",
               plan.grouping().ranks, shape_.ranks);
  const std::string interpreted = why_interpreted(plan, shape_);
  std::string why_local = options_.world == WorldChoice::local ? "asked for" : why_not_nvlink(plan);
  if (options_.world == WorldChoice::nvlink && !why_local.empty())
    throw Error(
        why_interpreted(plan, shape_, kernels::kMaxRanks).empty() ? ErrorKind::environment : ErrorKind::usage,
        fmt::format("run.world is nvlink: {}; allowed here: auto, local", why_local));
  if (why_local.empty() && options_.world == WorldChoice::automatic && shape_.ranks == 1)
    why_local = "one rank";
  Trace trace = why_local.empty() || interpreted.empty() ? run_kernels(plan, why_local)
                                                         : run_interpreter(plan, interpreted);
  check_ledger(plan, trace.ledger);
  return trace;
}

/// `why_local` "": in the NVLink world.
Trace CudaExecutor::run_kernels(const Plan& plan, const std::string& why_local) {
  HostExecutor& host = whole_ ? *whole_ : *window_;
  const bool is_compared = is_checked(plan);
  if (is_compared) host.run(plan);
  const KernelRunOptions options{.repeat = options_.repeat,
                                 .oracle = is_compared ? &host.result() : nullptr,
                                 .expert = expert_,
                                 .timeout_ns = options_.timeout_ns};
  ForkedRun run;
  if (why_local.empty()) {
    run = run_forked(options_.nvlink, plan, host.batch(), options, describe_device);
  } else {
    run.device = describe_device();
    const auto world = make_local_world(shape_.ranks);
    run.by_rank = hw::run_kernels(*world, plan, host.batch(), options);
  }
  const KernelRunResult result =
      join_records(plan, run.by_rank, why_local.empty() ? StampClock::per_rank : StampClock::shared);
  Trace trace = start_trace(plan);
  trace.spans = result.spans;
  trace.ledger = result.ledger;
  trace.waits = result.waits;
  summarise(trace);
  trace.total = result.total;
  // Reads and sums of combine are one stage of the kernel: its time stands at the sums.
  if (const auto up = plan.find_phase("combine_up")) trace.phase_times[*up].time = {};
  trace.header.note = fmt::format(
      "{}; {}; kernels, {} SMs for each of {} ranks{}; median of {} cold calls{}, counted ones take {:+.1f} "
      "%; {}",
      run.device,
      why_local.empty() ? "nvlink world, a GPU for each rank" : fmt::format("local world ({})", why_local),
      result.sms, shape_.ranks,
      result.has_fewer_sms ? fmt::format(" (not {}: {})", plan.program().num_sms,
                                         why_local.empty() ? "a GPU has no more" : "they share the GPU")
                           : "",
      options_.repeat, why_local.empty() ? " of the slowest rank" : "",
      (result.counted.value / result.total.value - 1) * 100,
      is_compared ? "bytes equal the host's" : "bytes not compared: too many for the host");
  return trace;
}

Trace CudaExecutor::run_interpreter(const Plan& plan, const std::string& reason) {
  const bool is_compared = is_checked(plan);
  if (is_compared) window_->run(plan);
  if (!plan.regions().empty() && !plan.has_items()) fail_usage("the plan has no rows; build it with items");
  HostMemory memory(plan, shape_, host_options_);
  fill_initial(plan, window_->batch(), expert_, memory);
  const InterpreterResult result =
      interpret(plan, window_->batch(), expert_,
                {.repeat = options_.repeat, .timeout_ns = options_.timeout_ns}, memory);
  if (is_compared) check_memory(plan, window_->result().memory(), memory);
  Trace trace = start_trace(plan);
  trace.spans = spans_of(plan, result);
  trace.ledger = Ledger(result.moved);
  trace.waits = waits_of(plan, result);
  summarise(trace);
  trace.total = {static_cast<double>(result.total_ns) / 1e9};
  trace.header.note =
      fmt::format("{}; interpreter ({}); median of {} runs; {}", describe_device(), reason, options_.repeat,
                  is_compared ? "bytes equal the host's" : "bytes not compared: too many for the host");
  return trace;
}

}  // namespace plumb::hw

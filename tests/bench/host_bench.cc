// Payload rate of the host executor: bytes of all rows moved per second, without making the batch.
#include <benchmark/benchmark.h>

#include "model/host_run.h"
#include "model/plans/builders.h"

namespace plumb {
namespace {

/// 8 ranks of one node, top-8 of 256 experts, 64 tokens a rank of 14 KiB. Argument: threads.
void dispatch_rows(benchmark::State& state) {
  Shape shape = uniform_shape(8, 256, 8, 64, 7168);
  shape.dispatch_type = DType::bf16;
  const Routing routing = Routing::generate(shape, {});
  const Program program;
  const Grouping grouping{8, 8};
  const Plan plan = build_plan({shape, routing, program, grouping, true});
  const HostBatch batch(shape, routing, 1, {});
  int64_t bytes = 0;
  for (auto _ : state) {
    state.PauseTiming();
    HostMemory memory(plan, shape, {});
    fill_initial(plan, batch, ExpertFunction::identity, memory);
    state.ResumeTiming();
    HostRun run(plan, batch, ExpertFunction::identity, static_cast<int32_t>(state.range(0)), memory);
    for (const LedgerEntry& entry : run.execute()) bytes += entry.bytes;
  }
  state.SetBytesProcessed(bytes);
}
BENCHMARK(dispatch_rows)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace plumb

BENCHMARK_MAIN();

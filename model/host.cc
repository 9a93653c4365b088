// HostExecutor: fills memory, runs the ops, proves ledger and delivery.
#include "model/host.h"

#include "model/error.h"
#include "model/host_run.h"

namespace plumb {
namespace {

constexpr int32_t kMaxThreads = 1024;

void check_options(const HostOptions& options) {
  if (options.window_bytes < 0)
    fail_usage("window of {} bytes; allowed: 0 (whole rows) or more", options.window_bytes);
  if (options.memory_limit <= 0)
    fail_usage("memory limit of {} bytes; allowed: 1 or more", options.memory_limit);
  if (options.threads < 1 || options.threads > kMaxThreads)
    fail_usage("{} threads; allowed: 1 .. {}", options.threads, kMaxThreads);
}

void check_runnable(const Plan& plan, const Shape& shape) {
  if (plan.ranks_per_op() != 1)
    fail_usage("the plan is coarse ({} ranks per op): its rows are not known; run the plan it was made of",
               plan.ranks_per_op());
  if (plan.grouping().ranks != shape.ranks)
    fail_usage("the plan has {} ranks, the shape {}; pass the shape that the plan was built from",
               plan.grouping().ranks, shape.ranks);
  for (const Op& op : plan.ops()) {
    const Phase& phase = plan.phases()[op.phase];
    const bool moves = op.kind == OpKind::put || op.kind == OpKind::get || op.kind == OpKind::copy ||
                       op.kind == OpKind::reduce;
    if (moves && phase.to != kNoRegion && op.rows > 0 && op.first_item == kNone)
      fail_usage("the plan has no rows (phase '{}', rank {} -> {}); build it with items", phase.name, op.src,
                 op.dst);
  }
}

/// One span per (rank, phase) that moved something, by rank of the issuer.
std::vector<Span> spans_of(const Plan& plan, std::span<const LedgerEntry> moved) {
  const size_t phases = plan.phases().size();
  std::vector<Span> sums(static_cast<size_t>(plan.grouping().ranks) * phases);
  for (size_t i = 0; i < moved.size(); ++i) {
    const Rank rank = issuer(plan.ops()[i]);
    Span& span = sums[static_cast<size_t>(rank) * phases + moved[i].phase];
    span.rank = rank;
    span.phase = moved[i].phase;
    span.messages += moved[i].messages;
    span.bytes += moved[i].bytes;
  }
  std::erase_if(sums, [](const Span& span) { return span.messages == 0 && span.bytes == 0; });
  return sums;
}

}  // namespace

HostExecutor::HostExecutor(const HostInput& input)
    : seed_(input.seed), expert_(input.expert), options_(input.options) {
  check_options(options_);
  batch_ = std::make_unique<HostBatch>(input.shape, input.routing, input.seed, input.values);
}

HostExecutor::~HostExecutor() = default;

const HostBatch& HostExecutor::batch() const { return *batch_; }

const HostResult& HostExecutor::result() const {
  PLUMB_CHECK(result_.has_value(), "the host executor has not run a plan to its end");
  return *result_;
}

Trace HostExecutor::run(const Plan& plan) {
  result_.reset();
  check_runnable(plan, batch_->shape());
  HostMemory memory(plan, batch_->shape(), options_);
  fill_initial(plan, *batch_, expert_, memory);
  const std::vector<LedgerEntry> moved = HostRun(plan, *batch_, expert_, options_.threads, memory).execute();

  Trace trace;
  trace.header.executor = name();
  trace.header.plan = plan.digest();
  trace.header.program = to_string(plan.program());
  trace.header.clock = "none";
  trace.header.seed = seed_;
  for (const Phase& phase : plan.phases()) trace.header.phases.push_back(phase.name);
  trace.spans = spans_of(plan, moved);
  trace.ledger = Ledger(moved);
  const Ledger expected = account(plan);
  if (trace.ledger != expected)
    throw Error(ErrorKind::mismatch, "the rows moved are not those that the plan accounts for:\n" +
                                         difference(plan, expected, trace.ledger));
  HostResult result(plan, *batch_, std::move(memory));
  result.check_delivery();
  result_.emplace(std::move(result));
  return trace;
}

}  // namespace plumb

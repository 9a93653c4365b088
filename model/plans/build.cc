// From a Program to its builder.
#include "model/error.h"
#include "model/plans/builders.h"
#include "model/plans/derive.h"

namespace plumb {
namespace {

Plan build_dispatch(const BuildInput& input) {
  // Between nodes hybrid forwards; on one node there is nothing to forward, as in DeepEP.
  return input.program.mode == Mode::hybrid && input.grouping.nodes() > 1 ? build_dispatch_hybrid(input)
                                                                          : build_dispatch_direct(input);
}

Plan build_first_hop(ProgramKind kind, const BuildInput& input) {
  Program program = input.program;
  program.kind = kind;
  const BuildInput dispatch{input.shape, input.routing, program, input.grouping, input.items};
  switch (kind) {
    case ProgramKind::v1_dispatch:
      return build_v1_dispatch(dispatch);
    case ProgramKind::low_latency_dispatch:
      return build_low_latency_dispatch(dispatch);
    default:
      return build_dispatch(dispatch);
  }
}

Plan build_combine(const BuildInput& input) {
  const ProgramKind dispatch = input.program.kind == ProgramKind::v1_combine ? ProgramKind::v1_dispatch
                               : input.program.kind == ProgramKind::low_latency_combine
                                   ? ProgramKind::low_latency_dispatch
                                   : ProgramKind::dispatch;
  return reverse(build_first_hop(dispatch, input), input.shape, input.program);
}

Plan build_round_trip(const BuildInput& input) {
  const Plan dispatch = build_first_hop(ProgramKind::dispatch, input);
  return append(dispatch, reverse(dispatch, input.shape, input.program),
                {.name = "experts", .engine = Engine::sm, .from = dispatch.find_region("received").value()});
}

void check_fits(const BuildInput& input) {
  const Grouping& grouping = input.grouping;
  if (grouping.scaleup < 1 || grouping.ranks % grouping.scaleup != 0)
    fail_usage("{} ranks do not fill scale-up domains of {}; allowed: multiples of {}", grouping.ranks,
               grouping.scaleup, grouping.scaleup);
  if (input.shape.ranks != grouping.ranks)
    fail_usage("the shape has {} ranks, the machine groups {}", input.shape.ranks, grouping.ranks);
  if (input.routing.topk() != input.shape.topk)
    fail_usage("the routing has top-{}, the shape top-{}", input.routing.topk(), input.shape.topk);
}

}  // namespace

Plan build_plan(const BuildInput& input) {
  validate(input.program);
  validate(input.shape);
  check_fits(input);
  switch (input.program.kind) {
    case ProgramKind::dispatch:
      return build_dispatch(input);
    case ProgramKind::combine:
    case ProgramKind::v1_combine:
    case ProgramKind::low_latency_combine:
      return build_combine(input);
    case ProgramKind::round_trip:
      return build_round_trip(input);
    case ProgramKind::all_to_all:
      return build_all_to_all(input);
    case ProgramKind::v1_dispatch:
      return build_v1_dispatch(input);
    case ProgramKind::low_latency_dispatch:
      return build_low_latency_dispatch(input);
    case ProgramKind::send_recv:
      return build_send_recv(input);
    case ProgramKind::all_gather:
      return build_all_gather(input);
    case ProgramKind::reduce_scatter:
      return build_reduce_scatter(input);
    case ProgramKind::engram:
      return build_engram(input);
    case ProgramKind::background:
      return build_background(input);
  }
  PLUMB_CHECK(false, "program kind {}", static_cast<int>(input.program.kind));
  return Plan(input.program, input.grouping);
}

}  // namespace plumb

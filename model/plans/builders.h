// The plan builders, one file each, and the derived plans. A builder makes the ops of rank r from the routing
// of rank r alone; the plan is their union. What each program moves, and in which order, is written in
// docs/plan.md.
#pragma once

#include <functional>
#include <string_view>

#include "model/plan.h"
#include "model/routing.h"
#include "model/shape.h"

namespace plumb {

/// What a builder builds from. `items` materialises the rows of each op: needed by the host and cuda
/// executors.
struct BuildInput {
  const Shape& shape;
  const Routing& routing;
  const Program& program;
  const Grouping& grouping;
  bool items = false;
};

/// Builds the plan of input.program. Throws Error(usage) when shape, program and grouping do not fit
/// together.
Plan build_plan(const BuildInput& input);

Plan build_dispatch_direct(const BuildInput& input);
Plan build_dispatch_hybrid(const BuildInput& input);
Plan build_all_to_all(const BuildInput& input);
Plan build_low_latency_dispatch(const BuildInput& input);
Plan build_v1_dispatch(const BuildInput& input);
Plan build_send_recv(const BuildInput& input);
Plan build_all_gather(const BuildInput& input);
Plan build_reduce_scatter(const BuildInput& input);
Plan build_engram(const BuildInput& input);
Plan build_background(const BuildInput& input);

}  // namespace plumb

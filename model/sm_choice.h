// Automatic SM and QP counts of a program: what num_sms 0 and num_qps 0 stand for.
#pragma once

#include "model/deepep_model.h"
#include "model/machine.h"
#include "model/program.h"
#include "model/routing.h"
#include "model/shape.h"
#include "model/sm_model.h"

namespace plumb {

struct SmChoiceInput {
  const Machine& machine;
  const Shape& shape;
  const RoutingSpec& routing;
  Grouping grouping;
  const Routing* table = nullptr;  // the routing itself, where the spec does not describe it: placed experts
};

/// The inputs of DeepEP's model for this machine. nvlink_gbs is 0.9 of the link rates that the driver
/// reports, as DeepEP computes it (docs/sm_model.md); the machine's nominal rate where the file states no
/// reported one.
DeepepSmInput deepep_input(const SmChoiceInput& in, Mode mode);

/// The inputs of our model for a dispatch or combine of `program`. Copies are closed forms for uniform and
/// group-limited gates, counted in the routing otherwise.
SmWork sm_work(const SmChoiceInput& in, const Program& program, Direction direction);
SmMachine sm_machine(const SmChoiceInput& in);

/// `program` with zeros replaced: dispatch, combine and round_trip take corrected_sms() and corrected_qps();
/// the V1 kernels 24 SMs, the default of DeepEP V1's tests; others keep 0, all SMs of the device.
Program choose_sms_and_qps(const SmChoiceInput& in, Program program);

}  // namespace plumb

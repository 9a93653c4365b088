// An experiment file: a machine, a program on a shape with a routing, and how to run it. A sweep or a list of
// points makes several experiments of one file. Format: docs/experiment.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/host.h"
#include "model/machine.h"
#include "model/placement.h"
#include "model/plan.h"
#include "model/program.h"
#include "model/routing.h"
#include "model/shape.h"
#include "model/sim_options.h"
#include "model/world_choice.h"

namespace plumb {

struct RunOptions {
  std::vector<std::string> on = {"host", "analytic"};  // executors, in the order of the table
  int32_t repeat = 1;
  WorldChoice world = WorldChoice::automatic;  // of cuda
  double tolerance = 0.15;                     // of compare: relative difference of total times
  HostOptions host;
  ExpertFunction expert = ExpertFunction::identity;
  uint64_t seed = 1;  // of payload and weights
};

/// One point of an experiment file, read and checked.
struct Experiment {
  std::string name;  // of the file, or its `name`
  std::string
      label;  // what sets this point apart: "program.num_sms=4 machine.nodes=2", "" when there is one point
  std::string machine_file;
  Machine machine;
  Shape shape;          // physical experts
  Shape logical_shape;  // what the gate chooses from; equal to shape without a placement
  RoutingSpec routing;
  std::optional<Placement> placement;
  Program program;  // num_sms and num_qps as given, 0 = automatic
  std::vector<Program> background;
  RunOptions run;
  SimOptions sim;
  std::vector<std::string> published;  // ids of published rows to print beside
  std::string validation_file;         // rules for these rows, docs/validation.md; "" = those that ship

  /// Ranks used, grouped as the machine groups them; fewer ranks than a node has form one group.
  Grouping grouping() const;
};

/// Reads all points of a file: the product of the `sweep` lists, first key slowest, or the `points` list.
/// Paths in the file are relative to the file. `overrides`: "shape.topk=4" and the like, applied first.
/// Throws ConfigError.
std::vector<Experiment> read_experiments(const std::string& path,
                                         const std::vector<std::string>& overrides = {});

/// The routing over physical experts.
Routing make_routing(const Experiment& experiment);

/// The program with automatic SM and QP counts replaced by those of the models (model/sm_model.h), as run.
/// `routing`: of make_routing().
Program resolved_program(const Experiment& experiment, const Routing& routing);

/// The plan of the resolved program, background traffic overlaid. `items`: materialise rows.
Plan make_plan(const Experiment& experiment, const Routing& routing, bool items);

}  // namespace plumb

// Constants of an implementation of dispatch and combine: what calibration fits. Kept apart from the machine,
// which holds hardware: a costs file names the library (DeepEP V1, V2, ours) that its constants describe.
#pragma once

#include <string>

#include "model/config.h"

namespace plumb {

struct Costs {
  std::string name;
};

Costs read_costs(ConfigMap map);

}  // namespace plumb

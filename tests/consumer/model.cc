// Builds a plan through the installed package and checks one number of it.
#include "model/ledger.h"
#include "model/plans/builders.h"

int main() {
  const plumb::Shape shape = plumb::uniform_shape(4, 8, 2, 16, 256);
  const plumb::Routing routing = plumb::Routing::generate(shape, {});
  const plumb::Program program;
  const plumb::Grouping grouping{.ranks = 4, .scaleup = 4};
  const plumb::Plan plan = plumb::build_plan({shape, routing, program, grouping});
  return plumb::account(plan).total().bytes > 0 ? 0 : 1;
}

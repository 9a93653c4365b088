// Asks SimGrid, through the coupling of the installed package, for its reference time.
#include <cmath>

#include "sim/simgrid/reference_network.h"

int main() { return std::abs(plumb::sim::check_reference_network().value - 21e-6) < 21e-9 ? 0 : 1; }

// Runs something in a process of its own: SimGrid's state is process-wide and allows one engine.
#pragma once

#include <functional>
#include <string>

namespace plumb::sim {

/// Forks, and returns what `body` returned in the child. An Error of the child is thrown here with its kind;
/// any other end of the child (exception, signal, exit) becomes Error(environment) that says which. The
/// caller should have no other threads: only the calling one exists in the child.
std::string run_in_child(const std::function<std::string()>& body);

}  // namespace plumb::sim

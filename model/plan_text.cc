// Text and Graphviz forms of a plan, and the names of its enumerations. Format: docs/plan.md.
#include <array>

#include "model/error.h"
#include "model/plan.h"

namespace plumb {
namespace {

template <class E, size_t N>
std::string_view name_of(E value, const std::array<std::string_view, N>& names) {
  const auto index = static_cast<size_t>(value);
  PLUMB_CHECK(index < N, "enumerator {} of {}", index, N);
  return names[index];
}

}  // namespace

std::string_view to_string(OpKind kind) {
  return name_of(
      kind, std::array<std::string_view, 7>{"put", "get", "copy", "reduce", "compute", "wait", "barrier"});
}
std::string_view to_string(Link link) {
  return name_of(link, std::array<std::string_view, 3>{"local", "scale_up", "scale_out"});
}
std::string_view to_string(On on) {
  return name_of(on, std::array<std::string_view, 3>{"sent", "arrived", "stream"});
}
std::string_view to_string(Engine engine) {
  return name_of(engine, std::array<std::string_view, 5>{"none", "sm", "copy_engine", "nic", "host"});
}

std::string to_text(const Plan& plan) {
  std::string out = "plumb.plan/1\n";
  out += fmt::format("program {}\n", to_string(plan.program()));
  out += fmt::format("grouping ranks {} scaleup {}\n", plan.grouping().ranks, plan.grouping().scaleup);
  if (plan.ranks_per_op() > 1) out += fmt::format("ranks_per_op {}\n", plan.ranks_per_op());
  for (size_t i = 0; i < plan.phases().size(); ++i) {
    const Phase& p = plan.phases()[i];
    out += fmt::format("phase {} {} engine {} sms {} qps {} chunk_rows {} row_bytes {}", i, p.name,
                       to_string(p.engine), p.sms, p.qps, p.chunk_rows, p.row_bytes);
    if (p.duration.value > 0) out += fmt::format(" duration_ns {}", p.duration.value * 1e9);
    out += '\n';
  }
  for (size_t i = 0; i < plan.barriers().size(); ++i)
    out += fmt::format("barrier {} {} members {}\n", i, to_string(plan.barriers()[i].link),
                       plan.barriers()[i].members);
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = plan.ops()[id];
    out += fmt::format("op {} {} {} class {} phase {} {} -> {} messages {} rows {} bytes {}", id,
                       to_string(op.kind), to_string(op.link), op.traffic_class, plan.phases()[op.phase].name,
                       op.src, op.dst, op.messages, op.rows, op.bytes);
    const auto deps = plan.deps(id);
    for (size_t d = 0; d < deps.size(); ++d)
      out += fmt::format("{}{}:{}", d == 0 ? " on " : ",", deps[d].op, to_string(deps[d].on));
    out += '\n';
  }
  return out;
}

std::string to_dot(const Plan& plan) {
  constexpr size_t kMaxOps = 2000;
  if (plan.ops().size() > kMaxOps)
    fail_usage("the plan has {} ops, a drawing takes at most {}; use fewer ranks", plan.ops().size(),
               kMaxOps);
  std::string out = "digraph plan {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n";
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = plan.ops()[id];
    out += fmt::format("  o{} [label=\"{} {}\\n{} -> {}\\n{} B\"];\n", id, plan.phases()[op.phase].name,
                       to_string(op.kind), op.src, op.dst, op.bytes);
    for (const Dep& dep : plan.deps(id))
      out += fmt::format("  o{} -> o{} [label=\"{}\"];\n", dep.op, id, to_string(dep.on));
  }
  return out + "}\n";
}

}  // namespace plumb

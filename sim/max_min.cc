// Progressive filling with a lazy heap of resources.
#include "sim/max_min.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace plumb::sim {

namespace {

constexpr double kOverfull = 0.5;       // beyond its capacity
constexpr double kSameLevel = 1 + 1e-12;  // rounding of what is left, far below a picosecond per second

}  // namespace

void MaxMin::set_capacities(std::vector<double> capacities) {
  resources_.assign(capacities.size(), {});
  for (size_t r = 0; r < capacities.size(); ++r)
    resources_[r].capacity = resources_[r].left = capacities[r];
  live_.clear();
  num_bounded_ = 0;
  is_overfull_ = false;
}

void MaxMin::widen(size_t num_uses) {
  const size_t old = stride_;
  while (stride_ < num_uses) stride_ *= 2;
  std::vector<ResourceUse> wider(flows_.size() * stride_);
  for (size_t f = 0; f < flows_.size(); ++f)
    std::copy_n(&uses_[f * old], flows_[f].num_uses, &wider[f * stride_]);
  uses_ = std::move(wider);
}

void MaxMin::add(uint32_t flow, std::span<const ResourceUse> uses, FlowDemand demand) {
  if (uses.size() > stride_) widen(uses.size());
  if (flow >= flows_.size()) {
    flows_.resize(flow + 1);
    if (uses_.capacity() < flows_.size() * stride_) uses_.reserve(2 * flows_.size() * stride_);
    uses_.resize(flows_.size() * stride_);
  }
  Flow& f = flows_[flow];
  f = {.demand = demand,
       .num_uses = static_cast<uint32_t>(uses.size()),
       .position = static_cast<uint32_t>(live_.size())};
  live_.push_back(flow);
  num_bounded_ += std::isfinite(demand.bound);
  std::copy(uses.begin(), uses.end(), &uses_[size_t{flow} * stride_]);
  f.rate = demand.bound;
  for (const ResourceUse& use : uses) {
    Resource& r = resources_[use.resource];
    r.demand += demand.weight * use.share;
    f.rate = std::min(f.rate, std::max(r.capacity * demand.weight / r.demand, r.left / use.share));
  }
  for (const ResourceUse& use : uses) {
    Resource& r = resources_[use.resource];
    r.left -= f.rate * use.share;
    is_overfull_ |= r.left < -kOverfull * r.capacity;
  }
}

void MaxMin::remove(uint32_t flow) {
  Flow& f = flows_[flow];
  for (const ResourceUse& use : uses(flow)) {
    Resource& r = resources_[use.resource];
    r.demand -= f.demand.weight * use.share;
    r.left += f.rate * use.share;
  }
  num_bounded_ -= std::isfinite(f.demand.bound);
  live_[f.position] = live_.back();
  flows_[live_.back()].position = f.position;
  live_.pop_back();
}

/// Sums and member lists of the resources.
void MaxMin::gather() {
  for (Resource& r : resources_) {
    r.left = r.capacity;
    r.open = 0;
    r.num_open = 0;
  }
  size_t total = 0;
  for (uint32_t flow : live_) {
    Flow& f = flows_[flow];
    f.is_fixed = false;
    total += f.num_uses;
    for (const ResourceUse& use : uses(flow)) {
      resources_[use.resource].open += f.demand.weight * use.share;
      ++resources_[use.resource].num_open;
    }
  }
  members_.resize(total);
  heap_.clear();
  uint32_t begin = 0;
  for (uint32_t i = 0; i < resources_.size(); ++i) {
    Resource& r = resources_[i];
    r.demand = r.open;
    r.begin = begin;
    begin += r.num_open;
    if (r.num_open > 0) heap_.push_back({level(r), i});
  }
  for (uint32_t flow : live_)
    for (const ResourceUse& use : uses(flow)) members_[resources_[use.resource].begin++] = flow;
  for (Resource& r : resources_) r.begin -= r.num_open;
  std::make_heap(heap_.begin(), heap_.end(), std::greater{});
  bounds_.clear();
  if (num_bounded_ == 0) return;
  for (uint32_t flow : live_)
    if (std::isfinite(flows_[flow].demand.bound))
      bounds_.push_back({flows_[flow].demand.bound / flows_[flow].demand.weight, flow});
  std::sort(bounds_.begin(), bounds_.end(), std::greater{});  // the smallest at the back
}

void MaxMin::fix(Flow& flow, uint32_t index, double rate) {
  flow.is_fixed = true;
  flow.rate = rate;
  for (const ResourceUse& use : uses(index)) {
    Resource& r = resources_[use.resource];
    r.left -= rate * use.share;
    r.open -= flow.demand.weight * use.share;
    --r.num_open;
  }
}

void MaxMin::solve() {
  gather();
  is_overfull_ = false;
  while (!heap_.empty() || !bounds_.empty()) {
    if (!bounds_.empty() && (heap_.empty() || bounds_.back().first <= heap_.front().first)) {
      const uint32_t index = bounds_.back().second;
      bounds_.pop_back();
      if (!flows_[index].is_fixed) fix(flows_[index], index, flows_[index].demand.bound);
      continue;
    }
    std::pop_heap(heap_.begin(), heap_.end(), std::greater{});
    const auto [old_level, index] = heap_.back();
    heap_.pop_back();
    Resource& r = resources_[index];
    if (r.num_open == 0) continue;
    const double now = level(r);
    if (now > old_level * kSameLevel) {  // flows that other resources stopped left it more for the others
      heap_.push_back({now, index});
      std::push_heap(heap_.begin(), heap_.end(), std::greater{});
      continue;
    }
    // fix() changes num_open: the list goes on until the last open flow.
    for (uint32_t i = r.begin; r.num_open > 0; ++i) {
      Flow& flow = flows_[members_[i]];
      if (!flow.is_fixed) fix(flow, members_[i], now * flow.demand.weight);
    }
  }
}

int64_t MaxMin::memory_bytes() const {
  return static_cast<int64_t>(
      resources_.capacity() * sizeof(Resource) + flows_.capacity() * sizeof(Flow) +
      uses_.capacity() * sizeof(ResourceUse) + (live_.capacity() + members_.capacity()) * sizeof(uint32_t) +
      (heap_.capacity() + bounds_.capacity()) * sizeof(std::pair<double, uint32_t>));
}

}  // namespace plumb::sim

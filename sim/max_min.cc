// Progressive filling with a lazy heap of resources.
#include "sim/max_min.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace plumb::sim {

namespace {

constexpr double kOverfull = 0.5;         // beyond its capacity
constexpr double kSameLevel = 1 + 1e-12;  // rounding of what is left, far below a picosecond per second

}  // namespace

void MaxMin::set_capacities(std::vector<double> capacities) {
  capacities_ = std::move(capacities);
  resources_.assign(capacities_.size(), {});
  for (size_t r = 0; r < capacities_.size(); ++r) resources_[r].left = capacities_[r];
  demands_.assign(capacities_.size(), 0);
  levels_.clear();
  weights_.clear();
  limits_.clear();
  num_uses_.clear();
  is_fixed_.clear();
  uses_.clear();
  num_bounded_ = 0;
  is_overfull_ = false;
}

void MaxMin::widen(size_t num_uses) {
  const size_t old = stride_;
  while (stride_ < num_uses) stride_ *= 2;
  std::vector<ResourceUse> wider(num_flows() * stride_);
  for (size_t f = 0; f < num_flows(); ++f)
    std::copy_n(uses_.begin() + static_cast<std::ptrdiff_t>(f * old), num_uses_[f], &wider[f * stride_]);
  uses_ = std::move(wider);
}

void MaxMin::add(std::span<const ResourceUse> uses, FlowDemand demand) {
  if (uses.size() > stride_) widen(uses.size());
  const uint32_t flow = num_flows();
  double level = demand.bound / demand.weight;
  if (!uses.empty()) num_bounded_ += std::isfinite(level);
  uses_.resize((flow + 1) * stride_);
  weights_.push_back(demand.weight);
  limits_.push_back(level);
  num_uses_.push_back(static_cast<uint32_t>(uses.size()));
  is_fixed_.push_back(0);
  ResourceUse* own = &uses_[flow * stride_];
  for (const ResourceUse& use : uses) {
    const double pull = demand.weight * use.share;
    *own++ = {pull, use.resource};
    demands_[use.resource] += pull;
    const double equal = capacities_[use.resource] / demands_[use.resource];
    level = std::min(level, std::max(equal, resources_[use.resource].left / pull));
  }
  levels_.push_back(level);
  for (const ResourceUse& use : weighted_uses(flow)) {
    double& left = resources_[use.resource].left;
    left -= level * use.share;
    is_overfull_ |= left < -kOverfull * capacities_[use.resource];
  }
}

void MaxMin::remove(uint32_t flow) {
  for (const ResourceUse& use : weighted_uses(flow)) {
    demands_[use.resource] -= use.share;
    resources_[use.resource].left += levels_[flow] * use.share;
  }
  if (num_uses_[flow] > 0) num_bounded_ -= std::isfinite(limits_[flow]);
  const uint32_t last = num_flows() - 1;
  std::copy_n(&uses_[last * stride_], num_uses_[last], &uses_[flow * stride_]);
  auto move_last = [&](auto& values) {
    values[flow] = values[last];
    values.pop_back();
  };
  move_last(levels_);
  move_last(weights_);
  move_last(limits_);
  move_last(num_uses_);
  is_fixed_.pop_back();
  uses_.resize(last * stride_);
}

/// Sums and member lists of the resources.
void MaxMin::gather() {
  for (size_t r = 0; r < resources_.size(); ++r) resources_[r] = {.left = capacities_[r]};
  size_t total = 0;
  for (uint32_t flow = 0; flow < num_flows(); ++flow) {
    is_fixed_[flow] = num_uses_[flow] == 0;
    total += num_uses_[flow];
    for (const ResourceUse& use : weighted_uses(flow)) {
      resources_[use.resource].open += use.share;
      ++resources_[use.resource].num_open;
    }
  }
  members_.resize(total);
  heap_.clear();
  uint32_t begin = 0;
  for (uint32_t i = 0; i < resources_.size(); ++i) {
    Resource& r = resources_[i];
    demands_[i] = r.open;
    r.begin = begin;
    begin += r.num_open;
    if (r.num_open > 0) heap_.push_back({level(r), i});
  }
  for (uint32_t flow = 0; flow < num_flows(); ++flow)
    for (const ResourceUse& use : weighted_uses(flow)) members_[resources_[use.resource].begin++] = flow;
  for (Resource& r : resources_) r.begin -= r.num_open;
  std::make_heap(heap_.begin(), heap_.end(), std::greater{});
  bounds_.clear();
  if (num_bounded_ == 0) return;
  for (uint32_t flow = 0; flow < num_flows(); ++flow)
    if (num_uses_[flow] > 0 && std::isfinite(limits_[flow])) bounds_.push_back({limits_[flow], flow});
  std::sort(bounds_.begin(), bounds_.end(), std::greater{});  // the smallest at the back
}

void MaxMin::fix(uint32_t flow, double level) {
  is_fixed_[flow] = 1;
  levels_[flow] = level;
  for (const ResourceUse& use : weighted_uses(flow)) {
    Resource& r = resources_[use.resource];
    r.left -= level * use.share;
    r.open -= use.share;
    --r.num_open;
  }
}

void MaxMin::solve() {
  gather();
  is_overfull_ = false;
  while (!heap_.empty() || !bounds_.empty()) {
    if (!bounds_.empty() && (heap_.empty() || bounds_.back().first <= heap_.front().first)) {
      const auto [limit, flow] = bounds_.back();
      bounds_.pop_back();
      if (!is_fixed_[flow]) fix(flow, limit);
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
    for (uint32_t i = r.begin; r.num_open > 0; ++i)
      if (!is_fixed_[members_[i]]) fix(members_[i], now);
  }
}

int64_t MaxMin::memory_bytes() const {
  auto bytes = []<class T>(const std::vector<T>& v) {
    return static_cast<int64_t>(v.capacity() * sizeof(T));
  };
  return bytes(resources_) + bytes(capacities_) + bytes(demands_) + bytes(levels_) + bytes(weights_) +
         bytes(limits_) + bytes(num_uses_) + bytes(is_fixed_) + bytes(uses_) + bytes(members_) +
         bytes(heap_) + bytes(bounds_);
}

}  // namespace plumb::sim

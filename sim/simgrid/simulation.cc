// Engine, hosts, actors, and the end of a run.
#include "sim/simgrid/simulation.h"

#include <cmath>
#include <exception>
#include <utility>

#include "model/error.h"
#include "sim/simgrid/compat.h"

namespace plumb::sim {

namespace s4u = simgrid::s4u;

namespace {

constexpr double kSpeed = 1e12;  // flop/s of an SM: one flop stands for a picosecond of it

}  // namespace

struct RunningKernel::Parts {
  std::vector<s4u::ActivityPtr> activities;
};

void RunningKernel::wait() {
  for (const s4u::ActivityPtr& activity : std::exchange(parts_->activities, {})) activity->wait();
}

struct Simulation::Parts {
  GpuSettings gpu;
  std::vector<s4u::Host*> hosts;
  std::vector<std::function<std::string()>> reporters;
  std::exception_ptr error;
  std::string stuck;

  std::string reports() const {
    std::string text;
    for (const auto& reporter : reporters) text += reporter();
    return text;
  }
  void note_deadlock();
};

/// SimGrid is about to kill all actors.
void Simulation::Parts::note_deadlock() {
  for (const s4u::ActorPtr& actor : s4u::Engine::get_instance()->get_all_actors())
    if (!actor->is_daemon())
      stuck +=
          fmt::format("actor '{}' on {} waits for ever\n", actor->get_name(), actor->get_host()->get_name());
  if (!stuck.empty()) stuck += reports();
}

Simulation::Simulation(Rank ranks, const GpuSettings& gpu) : parts_(std::make_shared<Parts>()) {
  if (ranks < 1 || gpu.sms < 1) fail_usage("a simulation of {} ranks with {} SMs each", ranks, gpu.sms);
  if (!s4u::Engine::has_instance()) {
    static_cast<void>(new s4u::Engine("plumb"));  // SimGrid keeps it until the process ends
  } else if (!s4u::Engine::get_instance()->get_all_hosts().empty()) {
    fail_usage("SimGrid's engine already has hosts; a process can have one simulation");
  }
  // Dates closer than this are one date to SimGrid; its default of 1 ns is as long as a small packet.
  s4u::Engine::set_config(compat::timing_precision("1e-12"));
  parts_->gpu = gpu;
  s4u::NetZone* zone = compat::empty_zone("ranks");
  for (Rank r = 0; r < ranks; ++r) {
    s4u::Host* host = compat::add_host(zone, fmt::format("rank {}", r), kSpeed);
    host->set_core_count(gpu.sms);
    if (gpu.hbm.value > 0) {
      s4u::Disk* disk = compat::add_disk(host, fmt::format("hbm {}", r), gpu.hbm.value);
      disk->set_sharing_policy(s4u::Disk::Operation::READWRITE, s4u::Disk::SharingPolicy::LINEAR);
      disk->set_readwrite_bandwidth(gpu.hbm.value);
    }
    parts_->hosts.push_back(host);
  }
  s4u::Engine::on_deadlock_cb([weak = std::weak_ptr<Parts>(parts_)] {
    if (const auto parts = weak.lock()) parts->note_deadlock();
  });
}

Simulation::~Simulation() = default;

s4u::Host* Simulation::host(Rank rank) const {
  if (rank < 0 || static_cast<size_t>(rank) >= parts_->hosts.size())
    fail_usage("rank {} of {}", rank, parts_->hosts.size());
  return parts_->hosts[static_cast<size_t>(rank)];
}

s4u::Disk* Simulation::hbm(Rank rank) const {
  const auto disks = host(rank)->get_disks();
  return disks.empty() ? nullptr : disks.front();
}

void Simulation::add_actor(Rank rank, const std::string& name, std::function<void()> body) {
  compat::add_actor(name, host(rank), [parts = parts_, run = std::move(body)] {
    try {
      run();
    } catch (const std::exception&) {  // not the one by which SimGrid kills
      if (!parts->error) parts->error = std::current_exception();
      s4u::Actor::kill_all();
    }
  });
}

RunningKernel Simulation::start(Rank rank, const Kernel& kernel) {
  if (kernel.sms < 1 || kernel.sms > parts_->gpu.sms)
    fail_usage("a kernel on {} SMs of rank {}, which has {}", kernel.sms, rank, parts_->gpu.sms);
  if (!(kernel.time.value >= 0) || kernel.hbm_bytes < 0)
    fail_usage("a kernel of {} s and {} bytes", kernel.time.value, kernel.hbm_bytes);
  RunningKernel running;
  running.parts_ = std::make_shared<RunningKernel::Parts>();
  if (kernel.time.value > 0) {
    // With several threads SimGrid's flops are those of each of them.
    s4u::ExecPtr exec = s4u::Exec::init();
    exec->set_flops_amount(kernel.time.value * kSpeed)->set_thread_count(kernel.sms)->set_host(host(rank));
    exec->start();
    running.parts_->activities.push_back(exec);
  }
  if (kernel.hbm_bytes > 0) {
    s4u::Disk* disk = hbm(rank);
    if (disk == nullptr)
      fail_usage("a kernel moves {} bytes of HBM, which is not modelled", kernel.hbm_bytes);
    running.parts_->activities.push_back(disk->read_async(static_cast<sg_size_t>(kernel.hbm_bytes)));
  }
  return running;
}

void Simulation::sleep(Seconds time) { s4u::this_actor::sleep_for(time.value); }

Seconds Simulation::now() { return {s4u::Engine::get_clock()}; }

void Simulation::add_reporter(std::function<std::string()> reporter) {
  parts_->reporters.push_back(std::move(reporter));
}

void Simulation::run() {
  s4u::Engine::get_instance()->run();
  if (parts_->error) std::rethrow_exception(std::exchange(parts_->error, nullptr));
  std::string wrong = std::exchange(parts_->stuck, {});
  if (wrong.empty()) wrong = parts_->reports();
  if (!wrong.empty())
    throw Error(ErrorKind::mismatch,
                fmt::format("the simulation stopped before all was done, at {:.6f} us\n{}",
                            s4u::Engine::get_clock() * 1e6, wrong));
}

}  // namespace plumb::sim

// Which point of a probe becomes which key of a machine file.
#include "hw/probe_machine.h"

#include "model/error.h"

namespace plumb::hw {
namespace {

/// A key with its value, source and an optional note.
std::string line(std::string_view key, std::string_view value, std::string_view source,
                 std::string_view note = "") {
  std::string text = fmt::format("  {}: {{value: {}, source: \"{}\"", key, value, source);
  if (!note.empty()) text += fmt::format(", note: \"{}\"", note);
  return text + "}\n";
}

std::string rate_text(double gbs) { return fmt::format("{:.4g} GB/s", gbs); }

template <class T>
std::string kept(std::string_view key, const std::string& value, const Sourced<T>& from) {
  return line(key, value, from.source);
}
std::string kept_rate(std::string_view key, const Sourced<BytesPerSecond>& from) {
  return kept(key, rate_text(gigabytes_per_second(from.value)), from);
}

class Writer {
 public:
  Writer(const Probe& probe, const Machine* base) : probe_(probe), base_(base) {}

  std::string head(std::string_view name) const {
    std::string text =
        fmt::format("# Written by plumb probe: {}; {} repetitions at most, median; spread = 10 to 90 %.\n",
                    measured_on(probe_).substr(9), most_repeats());
    for (const ProbeTime& t : probe_.times)
      text += fmt::format("# {}: {:.3f} us ({:.3f} .. {:.3f}), {}\n", t.name, t.time.median_us, t.time.low_us,
                          t.time.high_us, t.what);
    return text +
           fmt::format("schema: plumb.machine/1\nname: {}\ndescription: \"{} {} of one host{}\"\nnodes: 1\n",
                       name, probe_.gpus, probe_.gpu, probe_.gpus > 1 ? "" : ", no network");
  }

  std::string gpu() const {
    std::string text =
        fmt::format("\ngpu:\n  name: \"{}\"\n", base_ != nullptr ? base_->gpu.name : probe_.gpu);
    text += line("sms", std::to_string(probe_.sms), measured_on(probe_) + ": as the driver reports");
    text += base_ != nullptr
                ? kept_rate("hbm_rate", base_->gpu.hbm_rate)
                : line("hbm_rate", rate_text(probe_.memory_gbs),
                       measured_on(probe_) + ": nominal, memory clock x bus width as the driver reports");
    text += measured("sm_read_rate", "load", "local", "", 1);
    text += measured("sm_write_rate", "bulk_copy", "local", "", 1,
                     "payload copied: each byte read once and written once");
    text += measured("copy_rate", "bulk_copy", "local", "", probe_.sms);
    return text + measured("copy_engine_rate", "copy_engine", "local", "", 0);
  }

  std::string scale_up() const {
    if (probe_.gpus > 1 && !probe_.has_peers())
      throw Error(ErrorKind::environment,
                  fmt::format("{} GPUs make no scale-up domain, as {} do not reach each other's memory; {}",
                              probe_.gpus, probe_.peers.missing_pairs(), probe_.peers.advice()));
    std::string text = "\nscale_up:\n";
    if (probe_.gpus == 2)
      text += fmt::format("  topology: pairs\n  ranks: 2\n  cables: [{{between: [0, 1], count: {}}}]\n",
                          std::max(probe_.links, 1));
    else
      text += fmt::format("  topology: switched\n  ranks: {}\n  planes: 1\n", probe_.gpus);
    text += nominal_rate();
    if (probe_.links > 0 && probe_.gpus > 1)
      text += line("reported_rate", fmt::format("{:.6g} GB/s", probe_.links * probe_.link_gbs),
                   fmt::format("{}: nvidia-smi prints {} links of {} GB/s", measured_on(probe_), probe_.links,
                               probe_.link_gbs));
    text += latency();
    if (probe_.gpus == 1) return text;
    text += measured("store_rate", "bulk_copy", "both", "push", probe_.sms);
    text += measured("load_rate", "bulk_load", "both", "pull", probe_.sms);
    return text + measured("copy_engine_rate", "copy_engine", "both", "push", 0);
  }

 private:
  const ProbePoint& point(std::string_view how, std::string_view path, std::string_view way,
                          int32_t sms) const {
    const ProbePoint* found = probe_.find(how, path, way, sms);
    PLUMB_CHECK(found != nullptr, "the probe lacks {} {} {} at {} SMs", how, path, way, sms);
    return *found;
  }
  double time_us(std::string_view name) const {
    const ProbeTime* found = probe_.find_time(name);
    PLUMB_CHECK(found != nullptr, "the probe lacks {}", name);
    return found->time.median_us;
  }
  int32_t most_repeats() const {
    int32_t most = 0;
    for (const ProbePoint& p : probe_.points) most = std::max(most, p.time.repeats);
    return most;
  }
  std::string measured(std::string_view key, std::string_view how, std::string_view path,
                       std::string_view way, int32_t sms, std::string_view note = "") const {
    const ProbePoint& p = point(how, path, way, sms);
    std::string source = fmt::format("{}: {}", measured_on(probe_), how);
    if (sms > 0) source += fmt::format(" by {} SM{}", sms, sms > 1 ? "s" : "");
    if (path != "local") source += ", both ways at once";
    source += fmt::format(", {} MiB, {}, spread {:.1f} %", p.bytes >> 20, p.is_cold ? "cold" : "warm",
                          p.time.relative() * 100);
    return line(key, rate_text(p.gbs()), source, note);
  }
  std::string nominal_rate() const {
    if (base_ != nullptr) return kept_rate("rate", base_->scale_up.rate);
    if (probe_.gpus == 1)
      return line("rate", rate_text(point("copy_engine", "local", "", 0).gbs()),
                  "assumed since one rank has no link; its copy engine's rate stands here");
    return line("rate", rate_text(point("copy_engine", "0->1", "push", 0).gbs()),
                "assumed payload of a copy engine one way; the nominal rate is not known");
  }
  std::string latency() const {
    if (probe_.gpus == 1) {
      if (base_ != nullptr)
        return kept("latency", fmt::format("{:.4g} ns", base_->scale_up.latency.value.value * 1e9),
                    base_->scale_up.latency);
      return line("latency", fmt::format("{:.0f} ns", time_us("load_local") * 1e3),
                  "assumed since one rank has no link; a load from its own memory");
    }
    const double peer = time_us("load_peer") * 1e3, local = time_us("load_local") * 1e3;
    return line(
        "latency", fmt::format("{:.0f} ns", (peer - local) / 2),
        fmt::format("{}: ({:.0f} ns of a dependent load from the peer - {:.0f} ns of a local one) / 2",
                    measured_on(probe_), peer, local));
  }

  const Probe& probe_;
  const Machine* base_;
};

}  // namespace

std::string measured_on(const Probe& probe) {
  return fmt::format("measured {}{}, driver {}, CUDA {}.{}, {}",
                     probe.gpus > 1 ? fmt::format("{} x ", probe.gpus) : "", probe.gpu,
                     probe.driver.empty() ? "unknown" : probe.driver, probe.cuda_runtime / 1000,
                     probe.cuda_runtime % 1000 / 10, probe.date);
}

std::string machine_file(const Probe& probe, std::string_view name, const Machine* base) {
  if (base != nullptr && base->gpu.sms.value != probe.sms)
    fail_usage("the base file is of a GPU with {} SMs, this one has {}", base->gpu.sms.value, probe.sms);
  const Writer writer(probe, base);
  const std::string text =
      writer.head(name) + writer.gpu() + writer.scale_up() + "\nscale_out:\n  topology: none\n";
  try {
    ConfigFile file = ConfigFile::parse(text, std::string(name));
    read_machine(file.root(), 0);
    file.finish();
  } catch (const ConfigError& error) {
    throw LogicError(fmt::format("the probe wrote a machine file that is refused:\n{}", error.what()));
  }
  return text;
}

}  // namespace plumb::hw

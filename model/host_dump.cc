// Tensor files and their index.
#include "model/host_dump.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>

#include <nlohmann/json.hpp>

#include "model/error.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw Error(ErrorKind::environment, fmt::format("output '{}': {}", path.string(), what));
}

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
  const fs::path temporary = path.string() + ".tmp";
  errno = 0;
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) {
    const int code = errno;
    std::error_code ignored;
    fs::remove(temporary, ignored);
    fail(path, fmt::format("cannot be written ({})", code == 0 ? "unknown reason" : std::strerror(code)));
  }
  std::error_code error;
  fs::rename(temporary, path, error);
  if (error) fail(path, fmt::format("cannot be renamed from '{}' ({})", temporary.string(), error.message()));
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

/// Name and elements of a tensor; `shape` lists all dimensions.
struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string region;  // where it comes from, "" for what the caller passes
};

class Dump {
 public:
  Dump(const HostResult& result, fs::path directory)
      : result_(result), shape_(result.batch().shape()), directory_(std::move(directory)) {}

  void write() {
    const auto& regions = result_.plan().regions();
    for (Rank r = 0; r < shape_.ranks; ++r) {
      const bool has_tokens = has_region("input") && result_.format("input").is_record();
      if (has_tokens || has_region("expert_out")) write_choices(r);
      if (result_.has_received()) write_received(r);
      for (const Region& region : regions) {
        const bool is_payload = region.name == "input" || region.name == "expert_out" ||
                                region.name == "bias" || region.name == "combined";
        if (is_payload && result_.format(region.name).is_record())
          write_records(r, region.name);
        else if (is_payload || region.name == "table" || region.name == "received")
          write_raw(r, region.name);
      }
    }
    write_index();
  }

 private:
  bool has_region(std::string_view name) const { return result_.plan().find_region(name).has_value(); }
  static const char* name_of(DType type) { return type == DType::bf16 ? "bf16" : "fp8_e4m3"; }

  void add(Rank rank, const Tensor& tensor, std::span<const std::byte> bytes) {
    const std::string file = fmt::format("rank{}_{}.bin", rank, tensor.name);
    write_file(directory_ / file, bytes);
    tensors_.push_back(Json{{"name", tensor.name},
                            {"rank", rank},
                            {"dtype", tensor.dtype},
                            {"shape", tensor.shape},
                            {"file", file},
                            {"region", tensor.region}});
  }

  void add_scales(Rank rank, const std::string& name, const std::string& region, int64_t rows,
                  std::span<const std::byte> bytes) {
    const RowFormat& format = result_.format(region);
    if (format.scales == kAbsent) return;
    const bool is_fp32 = format.scale_format == ScaleFormat::fp32;
    add(rank,
        {name,
         is_fp32 ? "fp32" : "ue8m0",
         {rows, is_fp32 ? format.scales_bytes / 4 : format.scales_bytes},
         region},
        bytes);
  }

  /// What the caller of dispatch passes beside x.
  void write_choices(Rank rank) {
    const int64_t tokens = shape_.tokens[static_cast<size_t>(rank)];
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (int32_t t = 0; t < tokens; ++t)
      for (int32_t k = 0; k < shape_.topk; ++k) {
        ids.push_back(result_.batch().choices(rank, t)[static_cast<size_t>(k)]);
        weights.push_back(result_.batch().weight(rank, t, k));
      }
    add(rank, {"topk_idx", "int32", {tokens, shape_.topk}, ""}, bytes_of(ids));
    add(rank, {"topk_weights", "fp32", {tokens, shape_.topk}, ""}, bytes_of(weights));
  }

  void write_received(Rank rank) {
    const Received received = result_.received(rank);
    const RowFormat& format = result_.format("received");
    const int64_t rows = received.rows;
    const std::string region = "received";
    add(rank, {"received_x", name_of(format.type), {rows, format.elements()}, region}, received.x);
    add_scales(rank, "received_scales", region, rows, received.scales);
    add(rank, {"received_source", "int32", {rows}, region}, bytes_of(received.source));
    if (!received.topk_idx.empty())
      add(rank, {"received_topk_idx", "int32", {rows, shape_.topk}, region}, bytes_of(received.topk_idx));
    if (!received.weights.empty()) {
      std::vector<int64_t> dimensions = {rows};
      if (!received.topk_idx.empty()) dimensions.push_back(shape_.topk);
      add(rank, {"received_weights", "fp32", dimensions, region}, bytes_of(received.weights));
    }
    const auto counts = [&](const char* name, const std::vector<int32_t>& values) {
      add(rank, {name, "int32", {static_cast<int64_t>(values.size())}, region}, bytes_of(values));
    };
    counts("psum_per_scaleup_rank", received.psum_per_scaleup_rank);
    counts("num_per_expert", received.unaligned_per_expert);
    counts("psum_per_expert", received.psum_per_expert);
  }

  void write_records(Rank rank, const std::string& region) {
    const RowFormat& format = result_.format(region);
    const int64_t rows = result_.rows(region, rank);
    std::vector<std::byte> x;
    std::vector<std::byte> scales;
    std::vector<float> weights;
    for (int64_t slot = 0; slot < rows; ++slot) {
      const auto row = result_.row(region, rank, slot);
      const auto part = [&](int64_t begin, int64_t bytes) {
        return row.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
      };
      const auto hidden = part(format.hidden, format.hidden_bytes);
      x.insert(x.end(), hidden.begin(), hidden.end());
      if (format.scales != kAbsent) {
        const auto factors = part(format.scales, format.scales_bytes);
        scales.insert(scales.end(), factors.begin(), factors.end());
      }
      for (int32_t k = 0; region == "combined" && format.has_metadata() && k < shape_.topk; ++k)
        weights.push_back(load_weight(format, row, k));
    }
    const std::string name = region == "combined" ? region : region + "_x";
    add(rank, {name, name_of(format.type), {rows, format.elements()}, region}, x);
    add_scales(rank, region + "_scales", region, rows, scales);
    if (region == "combined" && format.has_metadata())
      add(rank, {"combined_weights", "fp32", {rows, shape_.topk}, region}, bytes_of(weights));
  }

  void write_raw(Rank rank, const std::string& region) {
    if (result_.format(region).is_record()) return;
    std::vector<std::byte> bytes;
    const int64_t rows = result_.rows(region, rank);
    for (int64_t slot = 0; slot < rows; ++slot) {
      const auto row = result_.row(region, rank, slot);
      bytes.insert(bytes.end(), row.begin(), row.end());
    }
    add(rank, {region, "uint8", {rows, result_.format(region).row_bytes}, region}, bytes);
  }

  void write_index() {
    const Json index{{"format", "plumb.dump/1"},
                     {"complete", true},
                     {"plan", to_string(result_.plan().digest())},
                     {"program", to_string(result_.plan().program())},
                     {"seed", result_.batch().seed()},
                     {"shape",
                      {{"ranks", shape_.ranks},
                       {"experts", shape_.experts},
                       {"topk", shape_.topk},
                       {"hidden", shape_.hidden},
                       {"tokens", shape_.tokens},
                       {"max_tokens", shape_.max_tokens},
                       {"dispatch_type", to_string(shape_.dispatch_type)},
                       {"scale_format", to_string(shape_.scale_format)},
                       {"scale_block", shape_.scale_block},
                       {"alignment", shape_.alignment}}},
                     {"tensors", tensors_}};
    const std::string text = index.dump(1) + "\n";
    write_file(directory_ / "index.json", std::as_bytes(std::span(text)));
  }

  const HostResult& result_;
  const Shape& shape_;
  const fs::path directory_;
  Json tensors_ = Json::array();
};

}  // namespace

void check_dump_directory(const std::string& directory) {
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (path.empty()) fail(directory, "is no path of a directory");
  std::error_code error;
  const auto status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_directory(status)) fail(path, "exists and is not a directory");
  if (!fs::exists(status)) {
    const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
    if (!fs::is_directory(parent, error)) fail(path, fmt::format("'{}' is no directory", parent.string()));
    fs::create_directory(path, error);
    if (error) fail(path, fmt::format("cannot be created ({})", error.message()));
  }
  const fs::path probe = path / ".plumb_write_test";
  write_file(probe, {});
  fs::remove(probe, error);
}

void dump(const HostResult& result, const std::string& directory) {
  check_dump_directory(directory);
  std::error_code error;
  fs::remove(fs::path(directory) / "index.json", error);
  if (error) fail(fs::path(directory) / "index.json", fmt::format("cannot be removed ({})", error.message()));
  Dump(result, directory).write();
}

}  // namespace plumb

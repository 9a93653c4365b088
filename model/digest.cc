// XXH3-128 over a fixed byte order. The hash itself is the same on little- and big-endian machines.
#include "model/digest.h"

#include "model/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

namespace plumb {
namespace {

template <class T>
auto little_endian(T value) {
  std::array<unsigned char, sizeof(T)> bytes{};
  for (unsigned char& byte : bytes) {
    byte = static_cast<unsigned char>(value & 0xFF);
    value = static_cast<T>(value >> 8);
  }
  return bytes;
}

}  // namespace

std::string to_string(const Digest& digest) { return fmt::format("{:016x}{:016x}", digest.high, digest.low); }

Digest parse_digest(std::string_view text) {
  const auto is_hex = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  };
  if (text.size() != 32 || !std::all_of(text.begin(), text.end(), is_hex))
    fail_usage("digest '{}' has {} characters, expected 32 hexadecimal digits", text.substr(0, 64),
               text.size());
  Digest digest;
  std::from_chars(text.data(), text.data() + 16, digest.high, 16);
  std::from_chars(text.data() + 16, text.data() + 32, digest.low, 16);
  return digest;
}

struct DigestBuilder::State {
  XXH3_state_t hash;
};

DigestBuilder::DigestBuilder() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->hash); }

DigestBuilder::~DigestBuilder() = default;

DigestBuilder& DigestBuilder::add(int64_t value) {
  const auto bytes = little_endian(static_cast<uint64_t>(value));
  XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
  return *this;
}

DigestBuilder& DigestBuilder::add(double value) {
  // Equal numbers must give equal digests: -0 + 0 is +0.
  return add(std::bit_cast<int64_t>(value + 0.0));
}

DigestBuilder& DigestBuilder::add(std::string_view text) {
  add(static_cast<int64_t>(text.size()));
  XXH3_128bits_update(&state_->hash, text.data(), text.size());
  return *this;
}

DigestBuilder& DigestBuilder::add(std::span<const int32_t> values) {
  add(static_cast<int64_t>(values.size()));
  if constexpr (std::endian::native == std::endian::little) {
    XXH3_128bits_update(&state_->hash, values.data(), values.size_bytes());
  } else {
    for (const int32_t value : values) {
      const auto bytes = little_endian(static_cast<uint32_t>(value));
      XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
    }
  }
  return *this;
}

Digest DigestBuilder::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->hash);
  return {.high = hash.high64, .low = hash.low64};
}

}  // namespace plumb

// A 128-bit digest of plain data, the same on every machine (XXH3 of little-endian fields).
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace plumb {

struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const Digest&) const = default;
};

/// 32 hexadecimal digits.
std::string to_string(const Digest& digest);
/// Reads 32 hexadecimal digits; throws Error(usage) otherwise.
Digest parse_digest(std::string_view text);

/// Feeds values to a digest: an int64_t or a double (IEEE 754, -0 as 0) as 8 little-endian bytes, text and
/// arrays by their length (8 bytes) and then their elements.
class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  DigestBuilder& add(int64_t value);
  template <std::integral T>
  DigestBuilder& add(T value) {
    return add(static_cast<int64_t>(value));
  }
  DigestBuilder& add(double value);
  DigestBuilder& add(std::string_view text);
  DigestBuilder& add(std::span<const int32_t> values);  // 4 bytes each
  /// The digest of all that was fed so far; more may follow.
  Digest finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace plumb

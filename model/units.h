// Quantities with units: arithmetic allows only meaningful combinations; parsing and printing carry the unit.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace plumb {

/// A number of bytes.
struct Bytes {
  int64_t count = 0;
  auto operator<=>(const Bytes&) const = default;
};

/// A duration in seconds.
struct Seconds {
  double value = 0;
  auto operator<=>(const Seconds&) const = default;
};

/// A data rate in bytes per second.
struct BytesPerSecond {
  double value = 0;
  auto operator<=>(const BytesPerSecond&) const = default;
};

/// A rate of events (messages, doorbells) per second.
struct PerSecond {
  double value = 0;
  auto operator<=>(const PerSecond&) const = default;
};

constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
constexpr Bytes operator*(Bytes a, int64_t n) { return {a.count * n}; }
constexpr Seconds operator+(Seconds a, Seconds b) { return {a.value + b.value}; }
constexpr Seconds operator-(Seconds a, Seconds b) { return {a.value - b.value}; }
constexpr Seconds operator*(Seconds a, double f) { return {a.value * f}; }
constexpr BytesPerSecond operator*(BytesPerSecond a, double f) { return {a.value * f}; }
constexpr Seconds operator/(Bytes b, BytesPerSecond r) { return {static_cast<double>(b.count) / r.value}; }
constexpr BytesPerSecond operator/(Bytes b, Seconds t) { return {static_cast<double>(b.count) / t.value}; }
constexpr double operator/(Seconds a, Seconds b) { return a.value / b.value; }

constexpr Seconds nanoseconds(double n) { return {n * 1e-9}; }
constexpr Seconds microseconds(double n) { return {n * 1e-6}; }
constexpr double microseconds(Seconds s) { return s.value * 1e6; }
constexpr BytesPerSecond gigabytes_per_second(double n) { return {n * 1e9}; }
constexpr double gigabytes_per_second(BytesPerSecond r) { return r.value * 1e-9; }

/// Parses "400 Gbit/s", "400Gbps", "50 GB/s", "50000MBps", "46.566 GiB/s": number, optional space, unit.
/// A lower-case b is a bit, an upper-case B a byte. Prefixes: k M G T P, of 1000; Ki Mi Gi Ti Pi, of 1024 (K
/// alone is either, so it is refused). Returns nothing when the text is not exactly that form, the unit is
/// missing or the number is negative or not finite. The four parsers below share these rules.
std::optional<BytesPerSecond> parse_rate(std::string_view text);
/// Parses "512 B", "64 KiB", "1.5 MB"; the result must be a whole number of bytes that fits 63 bits.
std::optional<Bytes> parse_bytes(std::string_view text);
/// Parses "700 ps", "150 ns", "1.2us", "3 ms", "2 s".
std::optional<Seconds> parse_seconds(std::string_view text);
/// Parses "200 M/s", "5e6/s".
std::optional<PerSecond> parse_per_second(std::string_view text);
/// Parses "15 %" to 0.15.
std::optional<double> parse_percent(std::string_view text);

/// Print with at most four significant digits and a readable unit: "50.00 GB/s", "64.00 KiB", "1.250 us".
/// The units are those that the parsers above read.
std::string to_string(BytesPerSecond rate);
std::string to_string(Bytes bytes);
std::string to_string(Seconds seconds);
std::string to_string(PerSecond rate);

}  // namespace plumb

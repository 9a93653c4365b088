// Parsing and printing of quantities, without any locale: from_chars and fmt only.
#include "model/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <system_error>

namespace plumb {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 11> kPrefixes{{{"", 1},
                                          {"k", 1e3},
                                          {"M", 1e6},
                                          {"G", 1e9},
                                          {"T", 1e12},
                                          {"P", 1e15},
                                          {"Ki", 0x1p10},
                                          {"Mi", 0x1p20},
                                          {"Gi", 0x1p30},
                                          {"Ti", 0x1p40},
                                          {"Pi", 0x1p50}}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Split {
  std::string_view number;
  std::string_view unit;
  double value = 0;
};

/// Splits "1.5 MB" into number and unit. The number starts with a digit, so that signs, inf and nan are
/// refused.
std::optional<Split> split(std::string_view text) {
  if (text.empty() || !is_digit(text.front())) return std::nullopt;
  Split result;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, result.value, std::chars_format::general);
  if (error != std::errc()) return std::nullopt;
  result.number = text.substr(0, static_cast<size_t>(rest - text.data()));
  result.unit = text.substr(result.number.size());
  if (result.unit.starts_with(' ')) result.unit.remove_prefix(1);
  return result;
}

/// The factor of "GiB" when `bare` is "B"; 0 when `unit` is not a prefix before `bare`.
double prefixed(std::string_view unit, std::string_view bare) {
  if (!unit.ends_with(bare)) return 0;
  unit.remove_suffix(bare.size());
  for (const Unit& prefix : kPrefixes)
    if (unit == prefix.name) return prefix.factor;
  return 0;
}

std::optional<double> finite(double value) {
  if (value == 0 || !std::isfinite(value)) return std::nullopt;
  return value;
}

/// Returns number * factor when that is a whole number of 63 bits. In decimal integers: 64-bit doubles hold
/// no byte count above 2^53, and 0.1 * 10 would depend on rounding.
std::optional<int64_t> whole_product(std::string_view number, int64_t factor) {
  __extension__ using Wide = __int128;
  const Wide limit = std::numeric_limits<int64_t>::max();
  Wide mantissa = 0;
  int exponent = 0;
  size_t i = 0;
  bool after_point = false;
  for (; i < number.size() && (is_digit(number[i]) || number[i] == '.'); ++i) {
    if (number[i] == '.') {
      after_point = true;
      continue;
    }
    if (mantissa > limit) return std::nullopt;  // more digits than any count of bytes needs
    mantissa = mantissa * 10 + (number[i] - '0');
    if (after_point) --exponent;
  }
  if (i < number.size()) {  // "e6", "e+6", "E-3"
    const size_t start = i + (number.substr(i + 1).starts_with('+') ? 2 : 1);
    int given = 0;
    std::from_chars(number.data() + start, number.data() + number.size(), given);
    if (given < -400 || given > 400) return std::nullopt;
    exponent += given;
  }
  Wide product = mantissa * factor;  // < 2^67 * 2^50: fits
  for (; exponent > 0 && product != 0; --exponent) {
    if (product > limit) return std::nullopt;
    product *= 10;
  }
  for (; exponent < 0 && product != 0; ++exponent) {
    if (product % 10 != 0) return std::nullopt;
    product /= 10;
  }
  if (product > limit) return std::nullopt;
  return static_cast<int64_t>(product);
}

/// Four significant digits of a value below 1000 (or 1024): 3 to 0 decimals.
std::string four_digits(double value) {
  const double size = std::fabs(value);
  const int decimals = size < 9.9995 ? 3 : size < 99.995 ? 2 : size < 999.95 ? 1 : 0;
  return fmt::format("{:.{}f}", value, decimals);
}

/// Prints in the largest of `units` (ascending) that leaves at least 1, so that rounding never shows 1000.0.
std::string print(double value, std::span<const Unit> units, double step) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{} {}", value, units.front().name);
  const Unit* best = units.data();
  for (const Unit& unit : units)
    if (std::fabs(value) >= unit.factor * (1 - 0.5 / (step * 10))) best = &unit;
  return four_digits(value / best->factor) + " " + std::string(best->name);
}

}  // namespace

std::optional<BytesPerSecond> parse_rate(std::string_view text) {
  const std::optional<Split> parts = split(text);
  if (!parts) return std::nullopt;
  std::string_view unit = parts->unit;
  if (!unit.ends_with("/s") && !unit.ends_with("ps")) return std::nullopt;
  unit.remove_suffix(2);
  double factor = prefixed(unit, "B");
  for (const std::string_view bit : {"bit", "b"})
    if (factor == 0) factor = prefixed(unit, bit) / 8;
  const std::optional<double> value = finite(parts->value * factor);
  if (factor == 0 || !value) return std::nullopt;
  return BytesPerSecond{*value};
}

std::optional<Bytes> parse_bytes(std::string_view text) {
  const std::optional<Split> parts = split(text);
  if (!parts) return std::nullopt;
  const double factor = prefixed(parts->unit, "B");
  if (factor == 0) return std::nullopt;
  const std::optional<int64_t> count = whole_product(parts->number, static_cast<int64_t>(factor));
  if (!count) return std::nullopt;
  return Bytes{*count};
}

std::optional<Seconds> parse_seconds(std::string_view text) {
  // Divisors, not factors: 150 / 1e9 is the double nearest to 150 ns, 150 * 1e-9 need not be.
  constexpr std::array<Unit, 5> kDivisors{{{"ps", 1e12}, {"ns", 1e9}, {"us", 1e6}, {"ms", 1e3}, {"s", 1}}};
  const std::optional<Split> parts = split(text);
  if (!parts) return std::nullopt;
  for (const Unit& unit : kDivisors)
    if (parts->unit == unit.name) return Seconds{parts->value / unit.factor};
  return std::nullopt;
}

std::optional<PerSecond> parse_per_second(std::string_view text) {
  const std::optional<Split> parts = split(text);
  if (!parts) return std::nullopt;
  const double factor = prefixed(parts->unit, "/s");
  const std::optional<double> value = finite(parts->value * factor);
  if (factor == 0 || !value) return std::nullopt;
  return PerSecond{*value};
}

std::optional<double> parse_percent(std::string_view text) {
  const std::optional<Split> parts = split(text);
  if (!parts || parts->unit != "%") return std::nullopt;
  return parts->value / 100;
}

std::string to_string(BytesPerSecond rate) {
  constexpr std::array<Unit, 6> kUnits{
      {{"B/s", 1}, {"kB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}, {"PB/s", 1e15}}};
  return print(rate.value, kUnits, 1000);
}

std::string to_string(Bytes bytes) {
  if (bytes.count > -1024 && bytes.count < 1024) return fmt::format("{} B", bytes.count);
  constexpr std::array<Unit, 5> kUnits{
      {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50}}};
  return print(static_cast<double>(bytes.count), kUnits, 1024);
}

std::string to_string(Seconds seconds) {
  constexpr std::array<Unit, 4> kUnits{{{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};
  return print(seconds.value, kUnits, 1000);
}

std::string to_string(PerSecond rate) {
  constexpr std::array<Unit, 4> kUnits{{{"/s", 1}, {"k/s", 1e3}, {"M/s", 1e6}, {"G/s", 1e9}}};
  return print(rate.value, kUnits, 1000);
}

}  // namespace plumb

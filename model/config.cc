// The strict reader: finds, converts and bounds values, and records each problem with its position.
#include "model/config.h"

#include "model/config_tree.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <system_error>
#include <type_traits>

namespace plumb {
namespace {

using detail::ConfigNode;
using detail::ConfigState;
using detail::in_path;
using detail::shown;
using Kind = ConfigNode::Kind;

constexpr std::array<std::string_view, 6> kSources{"datasheet", "measured",  "paper",
                                                   "assumed",   "published", "fitted"};

struct Percent {
  double value = 0;
  auto operator<=>(const Percent&) const = default;
};

std::optional<int64_t> parse_integer(std::string_view text) {
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;  // octal to some readers
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (digits.empty() || digits.front() < '0' || digits.front() > '9')
    return std::nullopt;  // also inf and nan
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

/// How values of a type are read from a scalar and shown. `size` is infinite (or huge) for "no bound".
template <class T>
struct Reading;

template <>
struct Reading<int64_t> {
  static constexpr std::string_view expected = "an integer";
  static constexpr std::string_view form = " in plain decimal digits, of 64 bits";
  static constexpr bool allows_quotes = false;
  static std::optional<int64_t> parse(std::string_view text) { return parse_integer(text); }
  static std::string show(int64_t value) { return fmt::format("{}", value); }
  static double size(int64_t value) { return value == INT64_MIN || value == INT64_MAX ? HUGE_VAL : 0; }
};

template <>
struct Reading<double> {
  static constexpr std::string_view expected = "a number";
  static constexpr std::string_view form = " such as 0.25 or 1e-3";
  static constexpr bool allows_quotes = false;
  static std::optional<double> parse(std::string_view text) { return parse_number(text); }
  static std::string show(double value) { return fmt::format("{}", value); }
  static double size(double value) { return value; }
};

template <>
struct Reading<Percent> {
  static constexpr std::string_view expected = "a percentage";
  static constexpr std::string_view form = " such as 15 %";
  static constexpr bool allows_quotes = true;
  static std::optional<Percent> parse(std::string_view text) {
    const std::optional<double> value = parse_percent(text);
    if (!value) return std::nullopt;
    return Percent{*value};
  }
  static std::string show(Percent value) { return fmt::format("{:.6g} %", value.value * 100); }
  static double size(Percent value) { return value.value; }
};

template <>
struct Reading<Bytes> {
  static constexpr std::string_view expected = "a whole number of bytes";
  static constexpr std::string_view form = " with a unit such as 512 B, 64 KiB or 1.5 MB";
  static constexpr bool allows_quotes = true;
  static std::optional<Bytes> parse(std::string_view text) { return parse_bytes(text); }
  static std::string show(Bytes value) { return to_string(value); }
  static double size(Bytes value) { return Reading<int64_t>::size(value.count); }
};

template <>
struct Reading<Seconds> {
  static constexpr std::string_view expected = "a time";
  static constexpr std::string_view form = " with a unit such as 150 ns or 1.2 us";
  static constexpr bool allows_quotes = true;
  static std::optional<Seconds> parse(std::string_view text) { return parse_seconds(text); }
  static std::string show(Seconds value) { return to_string(value); }
  static double size(Seconds value) { return value.value; }
};

template <>
struct Reading<BytesPerSecond> {
  static constexpr std::string_view expected = "a rate";
  static constexpr std::string_view form = " with a unit such as 50 GB/s or 400 Gbit/s";
  static constexpr bool allows_quotes = true;
  static std::optional<BytesPerSecond> parse(std::string_view text) { return parse_rate(text); }
  static std::string show(BytesPerSecond value) { return to_string(value); }
  static double size(BytesPerSecond value) { return value.value; }
};

template <>
struct Reading<PerSecond> {
  static constexpr std::string_view expected = "a rate of events";
  static constexpr std::string_view form = " with a unit such as 200 M/s";
  static constexpr bool allows_quotes = true;
  static std::optional<PerSecond> parse(std::string_view text) { return parse_per_second(text); }
  static std::string show(PerSecond value) { return to_string(value); }
  static double size(PerSecond value) { return value.value; }
};

/// "1 .. 32", "at least 1", "at most 32".
template <class T>
std::string allowed(Range<T> range) {
  using R = Reading<T>;
  const auto is_limit = [](T value) {
    return std::fabs(R::size(value)) >= std::numeric_limits<double>::max();
  };
  if (is_limit(range.max)) return "at least " + R::show(range.min);
  if (is_limit(range.min)) return "at most " + R::show(range.max);
  return R::show(range.min) + " .. " + R::show(range.max);
}

/// A rate that fits once its bytes are read as bits, or the reverse, is most likely such a mistake.
template <class T>
std::string unit_hint(T value, Range<T> range) {
  if constexpr (std::is_same_v<T, BytesPerSecond>) {
    const auto fits = [&](T other) { return other >= range.min && other <= range.max; };
    if (fits(value * 8) || fits(value * 0.125)) return " (b is a bit, B is a byte)";
  }
  return "";
}

/// Returns the value, or nothing after recording why there is none. `name` is what messages call it.
template <class T>
std::optional<T> read_value(ConfigState& state, const ConfigNode& node, const std::string& name,
                            Range<T> range) {
  using R = Reading<T>;
  const auto refuse = [&](const std::string& what) { state.add(node.place, "'" + name + "' " + what); };
  if (node.kind == Kind::scalar && node.is_quoted && !R::allows_quotes) {
    refuse(fmt::format("is text, expected {}", R::expected));
    return std::nullopt;
  }
  const std::optional<T> value = node.kind == Kind::scalar ? R::parse(node.value) : std::nullopt;
  if (!value) {
    const std::string found = node.kind == Kind::scalar ? "is '" + shown(node.value) + "'" : describe(node);
    refuse(fmt::format("{}, expected {}{}", found, R::expected, R::form));
    return std::nullopt;
  }
  if (*value < range.min || *value > range.max) {
    refuse(fmt::format("is {}, allowed {}{}", shown(node.value), allowed(range), unit_hint(*value, range)));
    return std::nullopt;
  }
  return value;
}

/// The child of that key, marked as known; null when there is none.
ConfigNode* find(ConfigNode& map, std::string_view key) {
  const auto found = map.by_key.find(key);
  if (found != map.by_key.end()) {
    found->second->is_known = true;
    return found->second;
  }
  if (std::find(map.wanted.begin(), map.wanted.end(), key) == map.wanted.end()) map.wanted.emplace_back(key);
  return nullptr;
}

/// find() that records a missing key, except in a mapping that is itself missing.
ConfigNode* require(ConfigState& state, ConfigNode& map, std::string_view key) {
  ConfigNode* const node = find(map, key);
  if (node == nullptr && map.kind != Kind::absent)
    state.add(map.key_place, fmt::format("missing key '{}'{}", shown(key), in_path(map)));
  return node;
}

template <class T>
T read_key(ConfigState& state, ConfigNode& map, std::string_view key, Range<T> range,
           std::optional<T> fallback) {
  const ConfigNode* const node = fallback ? find(map, key) : require(state, map, key);
  const T otherwise = fallback.value_or(range.min);
  return node == nullptr ? otherwise : read_value<T>(state, *node, shown(key), range).value_or(otherwise);
}

/// Text of any scalar; records a problem for anything else.
std::optional<std::string> read_text(ConfigState& state, const ConfigNode& node) {
  if (node.kind == Kind::scalar) return node.value;
  wrong_type(state, node, "text");
  return std::nullopt;
}

/// The node opened as a collection of that kind; null after recording the problem when it is none.
ConfigNode* open(ConfigState& state, ConfigNode& node, Kind kind) {
  node.is_open = node.kind == kind;
  if (node.is_open) return &node;
  if (node.kind != Kind::absent) wrong_type(state, node, kind == Kind::mapping ? "a mapping" : "a list");
  return nullptr;
}

/// The collection of that key, or a stand-in after recording the problem.
ConfigNode* require_open(ConfigState& state, ConfigNode& map, std::string_view key, Kind kind) {
  ConfigNode* const node = require(state, map, key);
  ConfigNode* const opened = node == nullptr ? nullptr : open(state, *node, kind);
  return opened != nullptr ? opened : state.stand_in(map, std::string(key), 0);
}

ConfigNode* optional_open(ConfigState& state, ConfigNode& map, std::string_view key, Kind kind) {
  ConfigNode* const node = find(map, key);
  return node == nullptr ? nullptr : open(state, *node, kind);
}

/// True when the text is one of kSources, a space, and something more.
bool is_source(std::string_view text) {
  return std::any_of(kSources.begin(), kSources.end(), [&](std::string_view word) {
    return text.starts_with(word) && text.substr(word.size()).starts_with(' ') &&
           text.find_first_not_of(' ', word.size()) != std::string_view::npos;
  });
}

std::string read_source(ConfigState& state, ConfigNode& pair, const std::string& name) {
  const ConfigNode* const node = require(state, pair, "source");
  if (node == nullptr) return "";
  if (node->kind == Kind::scalar && is_source(node->value)) return node->value;
  state.add(node->place,
            fmt::format("the source of '{}' {}, expected one of the words {} and then which or why", name,
                        node->kind == Kind::scalar ? "is '" + shown(node->value) + "'" : describe(*node),
                        fmt::join(kSources, ", ")));
  return "";
}

template <class T>
Sourced<T> read_sourced(ConfigState& state, ConfigNode& map, std::string_view key, Range<T> range,
                        std::optional<Sourced<T>> fallback) {
  ConfigNode* const pair = fallback ? find(map, key) : require(state, map, key);
  Sourced<T> result = fallback.value_or(Sourced<T>{range.min, ""});
  if (pair == nullptr) return result;
  if (pair->kind != Kind::mapping) {
    wrong_type(state, *pair, "{value: ..., source: ...}");
    return result;
  }
  pair->is_open = true;
  if (const ConfigNode* const value = require(state, *pair, "value"))
    result.value = read_value<T>(state, *value, shown(key), range).value_or(result.value);
  result.source = read_source(state, *pair, shown(key));
  if (const ConfigNode* const note = find(*pair, "note")) read_text(state, *note);
  return result;
}

}  // namespace

bool ConfigMap::has(std::string_view key) const { return node_->by_key.contains(key); }

Location ConfigMap::key_location(std::string_view key) const {
  const auto found = node_->by_key.find(key);
  return state_->location(found == node_->by_key.end() ? node_->key_place : found->second->key_place);
}

Location ConfigMap::location(std::string_view key) const {
  const auto found = node_->by_key.find(key);
  return state_->location(found == node_->by_key.end() ? node_->key_place : found->second->place);
}

void ConfigMap::schema(std::string_view expected) {
  const std::string found = text("schema", "");
  if (found == expected) return;
  fail("schema", found.empty() ? fmt::format("'schema' is missing, expected '{}'", expected)
                               : fmt::format("'schema' is '{}', expected '{}'", found, expected));
}

std::string ConfigMap::text(std::string_view key) {
  const ConfigNode* const node = require(*state_, *node_, key);
  return node == nullptr ? "" : read_text(*state_, *node).value_or("");
}

std::string ConfigMap::text(std::string_view key, std::string_view fallback) {
  const ConfigNode* const node = find(*node_, key);
  return node == nullptr ? std::string(fallback) : read_text(*state_, *node).value_or(std::string(fallback));
}

bool ConfigMap::flag(std::string_view key, bool fallback) {
  const ConfigNode* const node = find(*node_, key);
  if (node == nullptr) return fallback;
  if (node->kind == Kind::scalar && !node->is_quoted && (node->value == "true" || node->value == "false"))
    return node->value == "true";
  wrong_type(*state_, *node, "true or false");
  return fallback;
}

int64_t ConfigMap::integer(std::string_view key, Range<int64_t> range) {
  return read_key<int64_t>(*state_, *node_, key, range, std::nullopt);
}

int64_t ConfigMap::integer(std::string_view key, Range<int64_t> range, int64_t fallback) {
  return read_key<int64_t>(*state_, *node_, key, range, fallback);
}

double ConfigMap::number(std::string_view key, Range<double> range) {
  return read_key<double>(*state_, *node_, key, range, std::nullopt);
}

double ConfigMap::number(std::string_view key, Range<double> range, double fallback) {
  return read_key<double>(*state_, *node_, key, range, fallback);
}

double ConfigMap::percent(std::string_view key, Range<double> range, double fallback) {
  return read_key<Percent>(*state_, *node_, key, {{range.min}, {range.max}}, Percent{fallback}).value;
}

template <class T>
T ConfigMap::quantity(std::string_view key, Range<T> range) {
  return read_key<T>(*state_, *node_, key, range, std::nullopt);
}

template <class T>
T ConfigMap::quantity(std::string_view key, Range<T> range, T fallback) {
  return read_key<T>(*state_, *node_, key, range, fallback);
}

template <class T>
Sourced<T> ConfigMap::sourced(std::string_view key, Range<T> range) {
  return read_sourced<T>(*state_, *node_, key, range, std::nullopt);
}

template <class T>
Sourced<T> ConfigMap::sourced(std::string_view key, Range<T> range, Sourced<T> fallback) {
  return read_sourced<T>(*state_, *node_, key, range, std::move(fallback));
}

template Bytes ConfigMap::quantity(std::string_view, Range<Bytes>);
template Bytes ConfigMap::quantity(std::string_view, Range<Bytes>, Bytes);
template Seconds ConfigMap::quantity(std::string_view, Range<Seconds>);
template Seconds ConfigMap::quantity(std::string_view, Range<Seconds>, Seconds);
template BytesPerSecond ConfigMap::quantity(std::string_view, Range<BytesPerSecond>);
template BytesPerSecond ConfigMap::quantity(std::string_view, Range<BytesPerSecond>, BytesPerSecond);
template PerSecond ConfigMap::quantity(std::string_view, Range<PerSecond>);
template PerSecond ConfigMap::quantity(std::string_view, Range<PerSecond>, PerSecond);

template Sourced<Bytes> ConfigMap::sourced(std::string_view, Range<Bytes>);
template Sourced<Bytes> ConfigMap::sourced(std::string_view, Range<Bytes>, Sourced<Bytes>);
template Sourced<Seconds> ConfigMap::sourced(std::string_view, Range<Seconds>);
template Sourced<Seconds> ConfigMap::sourced(std::string_view, Range<Seconds>, Sourced<Seconds>);
template Sourced<BytesPerSecond> ConfigMap::sourced(std::string_view, Range<BytesPerSecond>);
template Sourced<BytesPerSecond> ConfigMap::sourced(std::string_view, Range<BytesPerSecond>,
                                                    Sourced<BytesPerSecond>);
template Sourced<PerSecond> ConfigMap::sourced(std::string_view, Range<PerSecond>);
template Sourced<PerSecond> ConfigMap::sourced(std::string_view, Range<PerSecond>, Sourced<PerSecond>);
template Sourced<int64_t> ConfigMap::sourced(std::string_view, Range<int64_t>);
template Sourced<int64_t> ConfigMap::sourced(std::string_view, Range<int64_t>, Sourced<int64_t>);
template Sourced<double> ConfigMap::sourced(std::string_view, Range<double>);
template Sourced<double> ConfigMap::sourced(std::string_view, Range<double>, Sourced<double>);

ConfigMap ConfigMap::map(std::string_view key) {
  return {state_, require_open(*state_, *node_, key, Kind::mapping)};
}

std::optional<ConfigMap> ConfigMap::optional_map(std::string_view key) {
  ConfigNode* const node = optional_open(*state_, *node_, key, Kind::mapping);
  if (node == nullptr) return std::nullopt;
  return ConfigMap(state_, node);
}

ConfigList ConfigMap::list(std::string_view key) {
  return {state_, require_open(*state_, *node_, key, Kind::sequence)};
}

std::optional<ConfigList> ConfigMap::optional_list(std::string_view key) {
  ConfigNode* const node = optional_open(*state_, *node_, key, Kind::sequence);
  if (node == nullptr) return std::nullopt;
  return ConfigList(state_, node);
}

std::vector<std::string> ConfigMap::text_list(std::string_view key, std::vector<std::string> fallback) {
  const ConfigNode* const node = optional_open(*state_, *node_, key, Kind::sequence);
  if (node == nullptr) return fallback;
  std::vector<std::string> result;
  for (const auto& child : node->children) result.push_back(read_text(*state_, *child).value_or(""));
  return result;
}

std::vector<int64_t> ConfigMap::integer_list(std::string_view key, Range<int64_t> range) {
  ConfigList elements = list(key);
  std::vector<int64_t> result;
  for (size_t i = 0; i < elements.size(); ++i) result.push_back(elements.integer(i, range));
  return result;
}

std::vector<std::string> ConfigMap::keys() const {
  std::vector<std::string> result;
  for (const auto& child : node_->children) result.push_back(child->key);
  return result;
}

void ConfigMap::ignore(std::string_view key) { find(*node_, key); }

void ConfigMap::fail(std::string_view key, const std::string& message) {
  const auto found = node_->by_key.find(key);
  state_->add(found == node_->by_key.end() ? node_->key_place : found->second->place, message);
}

std::string ConfigMap::raw(std::string_view key) {
  const ConfigNode* const node = find(*node_, key);
  return node == nullptr ? "" : node->value;
}

size_t ConfigMap::choice_index(std::string_view key, const std::vector<std::string_view>& names,
                               std::optional<size_t> fallback) {
  PLUMB_CHECK(!names.empty(), "choice '{}' without names", key);
  const ConfigNode* const node = fallback ? find(*node_, key) : require(*state_, *node_, key);
  if (node == nullptr) return fallback.value_or(0);
  const bool is_scalar = node->kind == Kind::scalar;
  const auto found = is_scalar ? std::find(names.begin(), names.end(), node->value) : names.end();
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  const std::string nearest = is_scalar ? nearest_name(node->value, names) : "";
  state_->add(node->place, fmt::format("'{}' {}, allowed: {}{}", shown(key),
                                       is_scalar ? "is '" + shown(node->value) + "'" : describe(*node),
                                       fmt::join(names, ", "),
                                       nearest.empty() ? "" : " (did you mean '" + nearest + "'?)"));
  return fallback.value_or(0);
}

size_t ConfigList::size() const { return node_->children.size(); }

ConfigMap ConfigList::map(size_t i) {
  ConfigNode* const opened = open(*state_, element(i), Kind::mapping);
  return {state_, opened != nullptr ? opened : state_->stand_in(*node_, "", i)};
}

std::string ConfigList::text(size_t i) { return read_text(*state_, element(i)).value_or(""); }

int64_t ConfigList::integer(size_t i, Range<int64_t> range) {
  const ConfigNode& node = element(i);
  return read_value<int64_t>(*state_, node, label(node), range).value_or(range.min);
}

Location ConfigList::location(size_t i) const { return state_->location(element(i).place); }

void ConfigList::fail(size_t i, const std::string& message) { state_->add(element(i).place, message); }

ConfigNode& ConfigList::element(size_t i) const {
  PLUMB_CHECK(i < size(), "element {} of a list of {}", i, size());
  return *node_->children[i];
}

}  // namespace plumb

// Strict reader for the YAML files of the project. A struct's reader names each field once, with type, unit,
// range and default; everything it did not name is an unknown key. All problems of a file are collected and
// thrown together.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/error.h"
#include "model/units.h"

namespace plumb {

/// Inclusive bounds of a value; the message of a violation prints them.
template <class T>
struct Range {
  T min;
  T max;
};

/// A number of hardware with where it comes from: "datasheet NAME", "measured TRACE", "paper REF", ...
template <class T>
struct Sourced {
  T value{};
  std::string source;
};

namespace detail {
struct ConfigState;  // the parsed document, its text and the problems found so far
struct ConfigNode;   // a YAML node
}  // namespace detail

class ConfigList;

/// A mapping of a configuration file. Cheap to copy: a view into its ConfigFile, which must outlive it.
///
/// Every reading member marks the key as known. On a problem (missing key, wrong type, no unit, out of range,
/// name not in a choice) it records the problem with its position and returns the fallback, or else the lower
/// bound, the first choice or nothing, so that reading goes on and all problems of the file are found. Keys
/// left unread are reported by ConfigFile::finish().
class ConfigMap {
 public:
  bool has(std::string_view key) const;
  Location location(std::string_view key) const;      // of the key's value; of the map itself when absent
  Location key_location(std::string_view key) const;  // of the key itself; likewise

  /// Reads the key `schema`, which must be `expected`: kind and version of the file, e.g. "plumb.machine/1".
  void schema(std::string_view expected);

  std::string text(std::string_view key);
  std::string text(std::string_view key, std::string_view fallback);
  bool flag(std::string_view key, bool fallback);
  int64_t integer(std::string_view key, Range<int64_t> range);
  int64_t integer(std::string_view key, Range<int64_t> range, int64_t fallback);
  double number(std::string_view key, Range<double> range);  // dimensionless
  double number(std::string_view key, Range<double> range, double fallback);
  double percent(std::string_view key, Range<double> range, double fallback);  // "15 %" -> 0.15

  /// A value with a unit, as text: Bytes, Seconds, BytesPerSecond or PerSecond. A bare number is an error
  /// that names the units allowed.
  template <class T>
  T quantity(std::string_view key, Range<T> range);
  template <class T>
  T quantity(std::string_view key, Range<T> range, T fallback);

  /// A number of hardware: {value: 400 Gbit/s, source: datasheet ConnectX-7}; T as quantity(), or int64_t or
  /// double for a count or ratio. The source must begin with datasheet, measured, paper, assumed, published
  /// or fitted and say more. An optional `note` is text.
  template <class T>
  Sourced<T> sourced(std::string_view key, Range<T> range);
  template <class T>
  Sourced<T> sourced(std::string_view key, Range<T> range, Sourced<T> fallback);

  /// The value of the pair whose name stands in the file. A wrong name is answered with all names.
  template <class E>
  E choice(std::string_view key, const std::vector<std::pair<std::string_view, E>>& names) {
    return names[choice_index(key, first_names(names), std::nullopt)].second;
  }
  template <class E>
  E choice(std::string_view key, const std::vector<std::pair<std::string_view, E>>& names, E fallback) {
    size_t fallback_index = 0;
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i].second == fallback) fallback_index = i;
    return names[choice_index(key, first_names(names), fallback_index)].second;
  }

  ConfigMap map(std::string_view key);                          // required
  std::optional<ConfigMap> optional_map(std::string_view key);  // nullopt when absent
  ConfigList list(std::string_view key);                        // required
  std::optional<ConfigList> optional_list(std::string_view key);
  std::vector<std::string> text_list(std::string_view key, std::vector<std::string> fallback);
  std::vector<int64_t> integer_list(std::string_view key, Range<int64_t> range);

  /// The keys in file order; for maps whose keys are names given by the user. Marks nothing as known.
  std::vector<std::string> keys() const;

  /// Marks a key as known without reading it, e.g. one that another reader takes.
  void ignore(std::string_view key);

  /// Records a problem at the key's value (at the map when absent).
  void fail(std::string_view key, const std::string& message);

  /// The raw scalar of a key, empty when absent or no scalar. Marks the key as known.
  std::string raw(std::string_view key);

 private:
  friend class ConfigFile;
  friend class ConfigList;
  ConfigMap(detail::ConfigState* state, detail::ConfigNode* node) : state_(state), node_(node) {}
  size_t choice_index(std::string_view key, const std::vector<std::string_view>& names,
                      std::optional<size_t> fallback);
  template <class E>
  static std::vector<std::string_view> first_names(const std::vector<std::pair<std::string_view, E>>& names) {
    std::vector<std::string_view> result;
    for (const auto& pair : names) result.push_back(pair.first);
    return result;
  }

  detail::ConfigState* state_;
  detail::ConfigNode* node_;
};

/// A sequence of a configuration file.
class ConfigList {
 public:
  size_t size() const;
  ConfigMap map(size_t i);     // element i as a mapping
  std::string text(size_t i);  // element i as text
  int64_t integer(size_t i, Range<int64_t> range);
  Location location(size_t i) const;
  void fail(size_t i, const std::string& message);

 private:
  friend class ConfigMap;
  ConfigList(detail::ConfigState* state, detail::ConfigNode* node) : state_(state), node_(node) {}
  detail::ConfigNode& element(size_t i) const;
  detail::ConfigState* state_;
  detail::ConfigNode* node_;
};

/// Where an assignment's key and value stand in the file that it is applied to.
struct AssignmentSource {
  Location key;
  Location value;
};

/// One YAML document. Refused when it is parsed: syntax errors, a second document, a duplicate key (both
/// lines are named), a merge key (<<), an anchor or alias, a tag, a non-scalar key, more than 64 levels, 64
/// MiB or a million values, bytes that are no UTF-8 text. These throw at once with all that was found.
class ConfigFile {
 public:
  /// Reads a file; a missing or unreadable one is Error(usage) that names the path.
  static ConfigFile load(const std::string& path);
  /// Parses text; `name` stands for the file in messages.
  static ConfigFile parse(std::string_view text, std::string name);

  ConfigFile(ConfigFile&&) noexcept;
  ConfigFile& operator=(ConfigFile&&) noexcept;
  ~ConfigFile();

  ConfigMap root();  // the top mapping; anything else at the top is a problem
  const std::string& name() const;

  /// Throws ConfigError with every problem found so far and every key that nobody read (with the nearest
  /// known name).
  void finish();

  /// Applies "a.b.c=value" to the document before root(): sweeps, points and --set. The value is YAML; it
  /// replaces the key's value or is added, with the mappings on its way. Problems point to `source`, or into
  /// the assignment, as file "<set>". Throws Error(usage) on a bad form, a bad value, or a path through
  /// something else than mappings.
  void set(std::string_view assignment, const std::optional<AssignmentSource>& source = std::nullopt);

 private:
  explicit ConfigFile(std::unique_ptr<detail::ConfigState> state);
  std::unique_ptr<detail::ConfigState> state_;
};

}  // namespace plumb

// The YAML tree behind model/config.h: nodes with positions, built from the parser's events because only
// those show anchors, tags, duplicate keys and where a key stands. For config.cc only.
#pragma once

#include "model/error.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace plumb::detail {

inline constexpr size_t kMaxConfigBytes = size_t{64} << 20;
inline constexpr size_t kMaxConfigNodes = 1'000'000;  // keeps the tree of a hostile file below about 0.5 GB
inline constexpr int kMaxConfigDepth = 64;

/// Where something stands: in the file, or (in_set) in the text of the assignments given to ConfigFile::set.
struct ConfigPlace {
  bool in_set = false;
  int line = 1;    // from 1
  int column = 1;  // from 1, in bytes
  int length = 1;  // bytes to underline
};

struct ConfigNode {
  enum class Kind : uint8_t {
    absent,  // stands for a required mapping or list that is missing: reads as empty and causes no more
             // problems
    null,
    scalar,
    sequence,
    mapping,
  };

  Kind kind = Kind::null;
  bool is_quoted = false;  // a scalar in quotes or a block scalar: text, never a number
  bool is_known = false;   // some reader named it
  bool is_open = false;  // a reader holds it as ConfigMap or ConfigList, so its unread keys are unknown keys
  ConfigNode* parent = nullptr;
  std::string key;        // when the parent is a mapping
  size_t index = 0;       // position among the parent's children
  ConfigPlace key_place;  // of the key; equal to `place` when there is none
  ConfigPlace
      place;  // of the value; of the key for null and block collections, which show no mark of their own
  std::string value;  // of a scalar
  std::vector<std::unique_ptr<ConfigNode>> children;
  std::map<std::string, ConfigNode*, std::less<>> by_key;  // of a mapping
  std::vector<std::string> wanted;                         // keys that a reader asked for in vain
};

struct ConfigProblem {
  ConfigPlace place;
  std::string message;
};

/// Which text parse_yaml reads and where it stands.
struct ConfigText {
  std::string_view text;
  bool in_set = false;
  int first_line = 1;
};

/// Returns the tree of one document; of an empty text a null node. Adds every problem found, and stops at the
/// first that leaves no tree to go on with (syntax, second document, too deep, too large): then the result
/// may be partial.
std::unique_ptr<ConfigNode> parse_yaml(const ConfigText& text, std::vector<ConfigProblem>& problems);

/// Adds `child` to a mapping (by child->key) or a sequence. A duplicate key is kept out of by_key.
void attach(ConfigNode& parent, std::unique_ptr<ConfigNode> child);

/// "links[2].rate"; empty for the root.
std::string path(const ConfigNode& node);

/// " in 'links[2]'", or nothing for the root.
std::string in_path(const ConfigNode& map);

/// Text of the user for a message: control characters escaped, at most 60 bytes.
std::string shown(std::string_view text);

/// A parsed file and the problems found so far.
struct ConfigState {
  std::string name;
  std::string text;
  std::string set_text;  // one line per assignment of ConfigFile::set
  int assignments = 0;
  std::unique_ptr<ConfigNode> root;
  std::deque<ConfigNode> absent;  // what stands for missing mappings and lists
  std::vector<ConfigProblem> problems;
  ConfigNode* top = nullptr;  // what ConfigFile::root() gave out, null before

  void add(const ConfigPlace& place, std::string message) { problems.push_back({place, std::move(message)}); }
  Location location(const ConfigPlace& place) const;
  /// Throws a ConfigError of all problems, each with its source line.
  [[noreturn]] void raise();
  /// A new node for a mapping or list that should be there: child `key`, or element `index`, of `parent`.
  ConfigNode* stand_in(ConfigNode& parent, std::string key, size_t index);
};

/// "is a list", "is '400'", "has no value".
std::string describe(const ConfigNode& node);

/// The key of a value, or "links[2]" for an element of a list.
std::string label(const ConfigNode& node);

/// Records that a value is not what was `expected`.
void wrong_type(ConfigState& state, const ConfigNode& node, std::string_view expected);

/// Returns the text with \n for \r\n and without a byte order mark. Adds a problem for the first byte that is
/// no UTF-8 text: then the result is empty.
std::string clean_text(std::string_view raw, std::vector<ConfigProblem>& problems);

}  // namespace plumb::detail

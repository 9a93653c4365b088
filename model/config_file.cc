// ConfigFile: loading, assignments from outside, unknown keys, and the one exception with all problems.
#include "model/config.h"
#include "model/config_tree.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <system_error>
#include <tuple>

namespace plumb {
namespace detail {

Location ConfigState::location(const ConfigPlace& place) const {
  return {.file = place.in_set ? "<set>" : name, .line = place.line, .column = place.column};
}

void ConfigState::raise() {
  constexpr size_t kMaxShownLine = 400;  // bytes; a whole file in one line is not worth showing
  const auto position = [](const ConfigProblem& problem) {
    return std::tuple(problem.place.in_set, problem.place.line, problem.place.column);
  };
  std::stable_sort(problems.begin(), problems.end(),
                   [&](const ConfigProblem& a, const ConfigProblem& b) { return position(a) < position(b); });
  const auto same = [&](const ConfigProblem& a, const ConfigProblem& b) {  // found by two reads of one key
    return position(a) == position(b) && a.message == b.message;
  };
  problems.erase(std::unique(problems.begin(), problems.end(), same), problems.end());
  std::vector<Problem> result;
  std::string_view rest = text;
  int line = 1;
  bool in_set = false;
  for (ConfigProblem& problem : problems) {
    if (problem.place.in_set && !in_set) {
      rest = set_text;
      line = 1;
      in_set = true;
    }
    for (; line < problem.place.line; ++line)
      rest.remove_prefix(std::min(rest.find('\n'), rest.size() - 1) + 1);
    const size_t length = std::min(rest.substr(0, kMaxShownLine + 1).find('\n'), rest.size());
    result.push_back({.where = location(problem.place),
                      .message = std::move(problem.message),
                      .source_line = std::string(length <= kMaxShownLine ? rest.substr(0, length) : ""),
                      .length = problem.place.length});
  }
  problems.clear();
  throw ConfigError(std::move(result));
}

ConfigNode* ConfigState::stand_in(ConfigNode& parent, std::string key, size_t index) {
  ConfigNode& node = absent.emplace_back();
  node.kind = ConfigNode::Kind::absent;
  node.parent = &parent;
  node.key = std::move(key);
  node.index = index;
  node.key_place = parent.key_place;
  node.place = parent.key_place;
  return &node;
}

std::string describe(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::scalar:
      return node.is_quoted ? "is text" : "is '" + shown(node.value) + "'";
    case ConfigNode::Kind::sequence:
      return "is a list";
    case ConfigNode::Kind::mapping:
      return "is a mapping";
    default:
      return node.parent == nullptr ? "is empty" : "has no value";
  }
}

std::string label(const ConfigNode& node) {
  if (node.parent == nullptr) return "the file";
  if (node.parent->kind != ConfigNode::Kind::mapping && node.parent->kind != ConfigNode::Kind::absent)
    return label(*node.parent) + fmt::format("[{}]", node.index);
  return shown(node.key);
}

void wrong_type(ConfigState& state, const ConfigNode& node, std::string_view expected) {
  const std::string name = node.parent == nullptr ? label(node) : "'" + label(node) + "'";
  state.add(node.place, fmt::format("{} {}, expected {}", name, describe(node), expected));
}

}  // namespace detail

namespace {

using detail::ConfigNode;
using detail::ConfigPlace;
using detail::ConfigProblem;
using detail::ConfigState;
using detail::in_path;
using detail::shown;
using Kind = ConfigNode::Kind;

/// The mappings that lack a key which their reader asked for, by that key.
using WantedKeys = std::map<std::string, std::vector<const ConfigNode*>, std::less<>>;

void collect_wanted(const ConfigNode& node, WantedKeys& wanted) {
  for (const std::string& key : node.wanted) wanted[key].push_back(&node);
  for (const auto& child : node.children) collect_wanted(*child, wanted);
}

/// " (it belongs in 'shape')" when a reader missed the key elsewhere, else " (did you mean 'topk'?)" or "".
std::string unknown_key_hint(const ConfigNode& unknown, const std::vector<std::string_view>& known,
                             const WantedKeys& wanted) {
  const ConfigNode& map = *unknown.parent;
  const auto places = wanted.find(unknown.key);
  if (places != wanted.end()) {
    const auto is_near = [&](const ConfigNode* other) {
      return other->parent == &map || other == map.parent;
    };
    const auto near = std::find_if(places->second.begin(), places->second.end(), is_near);
    const ConfigNode* const best = near == places->second.end() ? places->second.front() : *near;
    const std::string where = path(*best);
    return where.empty() ? " (it belongs at the top)" : " (it belongs in '" + where + "')";
  }
  const std::string nearest = nearest_name(unknown.key, known);
  return nearest.empty() ? "" : " (did you mean '" + nearest + "'?)";
}

void report_unknown_keys(ConfigState& state, const ConfigNode& node, const WantedKeys& wanted) {
  std::vector<std::string_view> known(node.wanted.begin(), node.wanted.end());
  for (const auto& child : node.children)
    if (child->is_known) known.push_back(child->key);
  for (const auto& child : node.children) {
    if (node.kind == Kind::mapping && !child->is_known) {
      state.add(child->key_place, fmt::format("unknown key '{}'{}{}", shown(child->key), in_path(node),
                                              unknown_key_hint(*child, known, wanted)));
    } else if (child->is_open) {
      report_unknown_keys(state, *child, wanted);
    }
  }
}

std::string read_file(const std::string& path) {
  const auto fail = [&] { fail_usage("cannot read '{}': {}", path, std::system_category().message(errno)); };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) fail();
  std::string text;
  std::array<char, 65536> block;
  while (const size_t size = std::fread(block.data(), 1, block.size(), file.get())) {
    text.append(block.data(), size);
    if (text.size() > detail::kMaxConfigBytes) break;  // ConfigFile::parse refuses it
  }
  if (std::ferror(file.get()) != 0) fail();
  return text;
}

/// An assignment as text, and where problems with it stand.
class Assigned {
 public:
  Assigned(ConfigState& state, std::string text, const std::optional<AssignmentSource>& source)
      : state_(state), text_(std::move(text)), source_(source) {}

  const std::string& text() const { return text_; }
  /// The place of a part of the key.
  ConfigPlace key_place(size_t begin, size_t length) const {
    const int column = static_cast<int>(begin) + 1;
    const int size = static_cast<int>(length);
    if (!source_) return {true, state_.assignments, column, size};
    return {false, source_->key.line, source_->key.column + column - 1, size};
  }
  /// Moves a place in the value to where the value stands in the file, if it does.
  void place(ConfigPlace& place) const {
    if (source_) place = {false, source_->value.line, source_->value.column, place.length};
  }
  void place(ConfigNode& node) const {
    place(node.place);
    place(node.key_place);
    for (const auto& child : node.children) place(*child);
  }
  [[noreturn]] void refuse(const std::string& why) const {
    const std::string message = fmt::format("cannot set '{}': {}", shown(text_), why);
    if (!source_) fail_usage("{}", message);
    state_.add(key_place(0, std::min(text_.find('='), text_.size())), message);
    state_.raise();
  }

 private:
  ConfigState& state_;
  std::string text_;
  const std::optional<AssignmentSource>& source_;
};

/// The mapping that `key` names in `map`, made when there is none. A value of another kind is refused.
ConfigNode& descend(ConfigNode& map, std::string_view key, const ConfigPlace& place,
                    const Assigned& assigned) {
  const auto found = map.by_key.find(key);
  if (found == map.by_key.end()) {
    auto made = std::make_unique<ConfigNode>();
    made->kind = Kind::mapping;
    made->key = key;
    made->key_place = made->place = place;
    attach(map, std::move(made));
    return *map.children.back();
  }
  ConfigNode& node = *found->second;
  if (node.kind == Kind::null) node.kind = Kind::mapping;
  if (node.kind != Kind::mapping)
    assigned.refuse(fmt::format("'{}' {}, not a mapping", path(node), describe(node)));
  return node;
}

/// Puts `value` in the place of the child with its key, or adds it.
void put(ConfigNode& map, std::unique_ptr<ConfigNode> value) {
  const auto found = map.by_key.find(value->key);
  if (found == map.by_key.end()) return attach(map, std::move(value));
  value->parent = &map;
  value->index = found->second->index;
  found->second = value.get();
  map.children[value->index] = std::move(value);
}

/// The tree of the text after '='. Blanks stand for what is before it, so that columns are those of the
/// assignment.
std::unique_ptr<ConfigNode> parse_assigned(ConfigState& state, const Assigned& assigned, size_t equals) {
  const std::string padded = std::string(equals + 1, ' ') + assigned.text().substr(equals + 1);
  auto value =
      detail::parse_yaml({.text = padded, .in_set = true, .first_line = state.assignments}, state.problems);
  for (ConfigProblem& problem : state.problems) assigned.place(problem.place);
  if (!state.problems.empty()) state.raise();
  if (value->kind == Kind::null) assigned.refuse("no value after '='");
  assigned.place(*value);
  return value;
}

}  // namespace

ConfigFile::ConfigFile(std::unique_ptr<ConfigState> state) : state_(std::move(state)) {}
ConfigFile::ConfigFile(ConfigFile&&) noexcept = default;
ConfigFile& ConfigFile::operator=(ConfigFile&&) noexcept = default;
ConfigFile::~ConfigFile() = default;

ConfigFile ConfigFile::load(const std::string& path) { return parse(read_file(path), path); }

ConfigFile ConfigFile::parse(std::string_view text, std::string name) {
  if (text.size() > detail::kMaxConfigBytes)
    fail_usage("'{}' is larger than {}", name, to_string(Bytes{detail::kMaxConfigBytes}));
  auto state = std::make_unique<ConfigState>();
  state->name = std::move(name);
  state->text = detail::clean_text(text, state->problems);
  if (state->problems.empty()) state->root = detail::parse_yaml({.text = state->text}, state->problems);
  if (!state->problems.empty()) state->raise();
  return ConfigFile(std::move(state));
}

ConfigMap ConfigFile::root() {
  ConfigNode& node = *state_->root;
  if (state_->top == nullptr) {
    node.is_open = true;
    state_->top = node.kind == Kind::mapping ? &node : state_->stand_in(node, "", 0);
    if (node.kind != Kind::mapping) wrong_type(*state_, node, "a mapping");
  }
  return {state_.get(), state_->top};
}

const std::string& ConfigFile::name() const { return state_->name; }

void ConfigFile::finish() {
  root();  // a file that is no mapping is a problem even when nobody read it
  WantedKeys wanted;
  collect_wanted(*state_->root, wanted);
  for (const ConfigNode& node : state_->absent) collect_wanted(node, wanted);
  report_unknown_keys(*state_, *state_->root, wanted);
  if (!state_->problems.empty()) state_->raise();
}

void ConfigFile::set(std::string_view assignment, const std::optional<AssignmentSource>& source) {
  PLUMB_CHECK(state_->top == nullptr, "set('{}') after root(): views into the document would dangle",
              assignment);
  const Assigned assigned(*state_, detail::clean_text(assignment, state_->problems), source);
  const std::string& text = assigned.text();
  const size_t equals = text.find('=');
  const auto dots =
      std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(std::min(equals, text.size())), '.');
  if (equals == std::string::npos || text.find('\n') != std::string::npos ||
      dots >= detail::kMaxConfigDepth) {
    state_->problems.clear();
    fail_usage("cannot set '{}': expected the form key=value or key.key=value in one line",
               shown(assignment));
  }
  ++state_->assignments;
  state_->set_text += text + "\n";
  std::unique_ptr<ConfigNode> value = parse_assigned(*state_, assigned, equals);

  ConfigNode* map = state_->root.get();
  if (map->kind == Kind::null) map->kind = Kind::mapping;
  if (map->kind != Kind::mapping) assigned.refuse(fmt::format("the file {}, not a mapping", describe(*map)));
  for (size_t begin = 0; begin <= equals;) {
    const size_t end = std::min(text.find('.', begin), equals);
    const std::string key = text.substr(begin, end - begin);
    if (key.empty()) assigned.refuse("a key is empty");
    const ConfigPlace place = assigned.key_place(begin, key.size());
    if (end == equals) {
      value->key = key;
      value->key_place = place;
      put(*map, std::move(value));
      return;
    }
    map = &descend(*map, key, place, assigned);
    begin = end + 1;
  }
}

}  // namespace plumb

// Builds the tree of a YAML file from yaml-cpp's events, and refuses what configuration files do not need:
// anchors, aliases, tags, merge keys, duplicate keys, further documents, and anything large enough to hurt.
#include "model/config_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace plumb::detail {
namespace {

using Kind = ConfigNode::Kind;

/// Thrown through the parser to end it early; the problem is recorded already.
struct Stop {};

/// Bytes from `begin` to the end of a quoted scalar, or of its first line.
int quoted_length(std::string_view text, size_t begin) {
  const char quote = text[begin];
  size_t i = begin + 1;
  for (; i < text.size() && text[i] != '\n'; ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      ++i;
      if (quote == '"' || i >= text.size() || text[i] != quote) break;  // '' is a quote inside '...'
    }
  }
  return static_cast<int>(std::min(i, text.size()) - begin);
}

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const ConfigText& text, std::vector<ConfigProblem>& problems)
      : text_(text), problems_(problems) {}

  std::unique_ptr<ConfigNode> take() {
    if (root_ == nullptr) root_ = make(Kind::null, place(YAML::Mark()));
    return std::move(root_);
  }

  void syntax_error(const YAML::Exception& error) {
    YAML::Mark mark = error.mark;
    if (offset(mark) >=
        text_.text.size()) {  // show the end of the last line that has text, not the line after it
      const std::string_view used = text_.text.substr(0, text_.text.find_last_not_of(" \n") + 1);
      mark.line = static_cast<int>(std::count(used.begin(), used.end(), '\n'));
      mark.column = static_cast<int>(used.size() - (used.rfind('\n') + 1));
    }
    report(place(mark), "not valid YAML: " + error.msg);
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ == 1) return;
    if (rest(mark).starts_with("---")) stop(mark, 3, "a second document begins here, only one is allowed");
    stop(mark, 1, "unexpected text after the end of the document");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (key_is_next()) stop(mark, 1, "a key must be text, found no key");
    // An omitted value has the mark of whatever follows it: show its key, or the list, instead.
    ConfigPlace where = place(mark);
    if (frames_.empty())
      where = place(YAML::Mark());
    else
      where = frames_.back().has_key ? frames_.back().key_place : frames_.back().node->place;
    add(make(Kind::null, where));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    const std::string_view name = rest(mark).substr(0, rest(mark).find_first_of(" \t\n,]}"));
    const int length = static_cast<int>(name.size());
    if (key_is_next())
      stop(mark, length, fmt::format("a key must be text, found the alias '{}'", shown(name)));
    report(place(mark, length), fmt::format("alias '{}' is not allowed, write the value out", shown(name)));
    add(make(Kind::null, place(mark, length)));
  }

  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    const int length = static_cast<int>(name.size()) + 1;
    report(place(mark, length),
           fmt::format("anchor '&{}' is not allowed, write the value out where it is used", shown(name)));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    refuse_tag(mark, tag);
    const bool is_quoted = tag == "!";
    int length = static_cast<int>(value.size());
    if (is_quoted) {
      const bool is_block = rest(mark).starts_with('|') || rest(mark).starts_with('>');
      length = is_block || rest(mark).empty() ? 1 : quoted_length(text_.text, offset(mark));
    }
    const ConfigPlace where = place(mark, std::max(length, 1));
    if (value.find('\0') != std::string::npos) report(where, "text with a NUL character is not allowed");
    if (key_is_next()) return take_key(value, where);
    std::unique_ptr<ConfigNode> node = make(Kind::scalar, where);
    node->is_quoted = is_quoted;
    node->value = value;
    add(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value style) override {
    open(Kind::sequence, mark, tag, style);
  }
  void OnSequenceEnd() override { frames_.pop_back(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value style) override {
    open(Kind::mapping, mark, tag, style);
  }
  void OnMapEnd() override { frames_.pop_back(); }

 private:
  /// A collection that is being filled; of a mapping, also the key whose value comes next.
  struct Frame {
    ConfigNode* node = nullptr;
    bool has_key = false;
    std::string key{};
    ConfigPlace key_place{};
  };

  size_t offset(const YAML::Mark& mark) const {
    return std::min(static_cast<size_t>(std::max(mark.pos, 0)), text_.text.size());
  }
  std::string_view rest(const YAML::Mark& mark) const { return text_.text.substr(offset(mark)); }

  ConfigPlace place(const YAML::Mark& mark, int length = 1) const {
    return {.in_set = text_.in_set,
            .line = text_.first_line + std::max(mark.line, 0),
            .column = std::max(mark.column, 0) + 1,
            .length = length};
  }

  void report(const ConfigPlace& where, std::string message) {
    problems_.push_back({.place = where, .message = std::move(message)});
  }
  [[noreturn]] void stop(const YAML::Mark& mark, int length, std::string message) {
    report(place(mark, length), std::move(message));
    throw Stop{};
  }

  bool key_is_next() const {
    return !frames_.empty() && frames_.back().node->kind == Kind::mapping && !frames_.back().has_key;
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    // yaml-cpp gives "?" to untagged nodes and "!" to quoted text, but also to a bare '!' in the source.
    const bool has_tag = (tag != "?" && tag != "!" && !tag.empty()) || rest(mark).starts_with('!');
    if (!has_tag) return;
    const size_t length = std::min(rest(mark).find_first_of(" \t\n,]}"), rest(mark).size());
    report(place(mark, static_cast<int>(std::max<size_t>(length, 1))),
           fmt::format("tag '{}' is not allowed, types follow from the key",
                       shown(rest(mark).substr(0, length))));
  }

  void take_key(const std::string& key, const ConfigPlace& where) {
    Frame& frame = frames_.back();
    if (key == "<<") report(where, "merge key '<<' is not allowed, write the keys out");
    const auto first = frame.node->by_key.find(key);
    if (first != frame.node->by_key.end())
      report(where, fmt::format("duplicate key '{}'{}, first given in line {}", shown(key),
                                in_path(*frame.node), first->second->key_place.line));
    frame.has_key = true;
    frame.key = key;
    frame.key_place = where;
  }

  std::unique_ptr<ConfigNode> make(Kind kind, const ConfigPlace& where) {
    if (++nodes_ > kMaxConfigNodes) {
      report(where, fmt::format("more than {} values in one file", kMaxConfigNodes));
      throw Stop{};
    }
    auto node = std::make_unique<ConfigNode>();
    node->kind = kind;
    node->place = where;
    node->key_place = where;
    return node;
  }

  ConfigNode* add(std::unique_ptr<ConfigNode> node) {
    ConfigNode* const result = node.get();
    if (frames_.empty()) {
      root_ = std::move(node);
      return result;
    }
    Frame& frame = frames_.back();
    if (frame.has_key) {
      node->key = std::exchange(frame.key, {});
      node->key_place = frame.key_place;
      frame.has_key = false;
    }
    attach(*frame.node, std::move(node));
    return result;
  }

  void open(Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::EmitterStyle::value style) {
    const std::string_view name = kind == Kind::mapping ? "mapping" : "list";
    // yaml-cpp also takes an unclosed '[' or '{' at the start of a line for a key.
    if (key_is_next())
      stop(mark, 1, fmt::format("a key must be text, found a {} (or one without its closing bracket)", name));
    if (frames_.size() >= kMaxConfigDepth)
      stop(mark, 1, fmt::format("more than {} levels of mappings and lists", kMaxConfigDepth));
    refuse_tag(mark, tag);
    std::unique_ptr<ConfigNode> node = make(kind, place(mark));
    if (style != YAML::EmitterStyle::Flow && !frames_.empty() && frames_.back().has_key)
      node->place = frames_.back().key_place;
    frames_.push_back({.node = add(std::move(node))});
  }

  ConfigText text_;
  std::vector<ConfigProblem>& problems_;
  std::unique_ptr<ConfigNode> root_;
  std::vector<Frame> frames_;
  int documents_ = 0;
  size_t nodes_ = 0;
};

/// Length of the UTF-8 character at the front of `text`, 0 when it is not valid: too long a form, a
/// surrogate, or above U+10FFFF (the table of the Unicode standard, section 3.9).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return follows(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool is_valid = lead == 0xE0 ? byte(1) >= 0xA0 : lead == 0xED ? byte(1) <= 0x9F : true;
    return is_valid && follows(1) && follows(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool is_valid = lead == 0xF0 ? byte(1) >= 0x90 : lead == 0xF4 ? byte(1) <= 0x8F : true;
    return is_valid && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && byte != '\t' && byte != '\n') || byte == 0x7F;
}

}  // namespace

std::unique_ptr<ConfigNode> parse_yaml(const ConfigText& text, std::vector<ConfigProblem>& problems) {
  TreeBuilder builder(text, problems);
  try {
    std::istringstream stream{std::string(text.text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Stop&) {
  } catch (const YAML::Exception& error) {
    builder.syntax_error(error);
  }
  return builder.take();
}

void attach(ConfigNode& parent, std::unique_ptr<ConfigNode> child) {
  child->parent = &parent;
  child->index = parent.children.size();
  if (parent.kind == Kind::mapping) parent.by_key.emplace(child->key, child.get());
  parent.children.push_back(std::move(child));
}

std::string path(const ConfigNode& node) {
  if (node.parent == nullptr) return "";
  std::string result = path(*node.parent);
  if (node.parent->kind == Kind::sequence) return result + fmt::format("[{}]", node.index);
  return result + (result.empty() ? "" : ".") + shown(node.key);
}

std::string in_path(const ConfigNode& map) {
  const std::string where = path(map);
  return where.empty() ? "" : " in '" + where + "'";
}

std::string shown(std::string_view text) {
  constexpr size_t kMaxBytes = 60;
  std::string result;
  for (size_t i = 0; i < text.size();) {
    if (result.size() >= kMaxBytes) return result + "...";
    const size_t length = std::max<size_t>(utf8_length(text.substr(i)), 1);
    if (text[i] == '\n')
      result += "\\n";
    else if (text[i] == '\t')
      result += "\\t";
    else if (is_control(text[i]))
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    else
      result += text.substr(i, length);
    i += length;
  }
  return result;
}

std::string clean_text(std::string_view raw, std::vector<ConfigProblem>& problems) {
  if (raw.starts_with("\xEF\xBB\xBF")) raw.remove_prefix(3);
  std::string result;
  result.reserve(raw.size());
  ConfigPlace where;
  for (size_t i = 0; i < raw.size();) {
    if (raw.substr(i).starts_with("\r\n")) ++i;
    const size_t length = utf8_length(raw.substr(i));
    if (length == 0 || is_control(raw[i])) {
      const std::string_view what = length == 0 ? "invalid UTF-8: byte" : "control character";
      problems.push_back(
          {where, fmt::format("{} 0x{:02x} is not allowed", what, static_cast<unsigned char>(raw[i]))});
      return "";
    }
    result += raw.substr(i, length);
    where.column += static_cast<int>(length);
    if (raw[i] == '\n') where = {.line = where.line + 1};
    i += length;
  }
  return result;
}

}  // namespace plumb::detail

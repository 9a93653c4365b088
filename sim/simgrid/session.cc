// Queues of what actors have sent, counters of what has arrived, and the actors that wait for either.
#include "sim/simgrid/session.h"

#include <algorithm>
#include <utility>

#include "model/error.h"
#include "sim/simgrid/compat.h"
#include "sim/simgrid/simulation.h"

namespace plumb::sim {

namespace s4u = simgrid::s4u;

/// A blocked actor; lives on its stack.
struct Session::Waiter {
  enum class For : uint8_t { landed, sent, arrived };
  For what = For::landed;
  bool done = false;
  Rank at = 0;
  Expect expect{};
  Transfer transfer{};
  s4u::ActorPtr actor{};
  Waiter* next = nullptr;  // of the same counter or transfer
};

struct Session::Queue {
  struct Item {
    uint32_t transfer = 0;
    Send one{};                         // without `next`
    std::function<bool(Send&)> next{};  // of a list
  };
  std::vector<Item> items;
  size_t first = 0;  // not yet started

  bool empty() const { return first == items.size(); }
  void pop() {
    items[first].next = nullptr;
    if (++first < 64 && first < items.size()) return;
    if (first * 2 < items.size()) return;
    items.erase(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(first));
    first = 0;
  }
};

struct Session::Counter {
  uint32_t tag = 0;
  int64_t messages = 0;
  int64_t bytes = 0;
  int64_t least_messages = 0;  // nobody waits for fewer: spares a look at the waiters' stacks, which costs
  int64_t least_bytes = 0;     // a cache miss per message
  Waiter* waiters = nullptr;

  bool meets(const Expect& expect) const { return messages >= expect.messages && bytes >= expect.bytes; }
  void expect_at_least(const Expect& expect) {
    least_messages = waiters == nullptr ? expect.messages : std::min(least_messages, expect.messages);
    least_bytes = waiters == nullptr ? expect.bytes : std::min(least_bytes, expect.bytes);
  }
};

struct Session::State {
  uint32_t generation = 0;
  Rank src = 0;
  bool report_sent = false;
  bool all_started = false;
  int64_t unsent = 0;     // started; counted with report_sent only
  int64_t under_way = 0;  // started and not landed
  Waiter* waiters = nullptr;

  bool is_sent() const { return all_started && unsent == 0; }
  bool is_landed() const { return all_started && under_way == 0; }
};

Session::Session(Rank ranks, int32_t num_classes) : ranks_(ranks), num_classes_(num_classes) {
  if (ranks < 1 || num_classes < 1) fail_usage("a session of {} ranks and {} classes", ranks, num_classes);
  queues_.resize(static_cast<size_t>(ranks) * 2 * static_cast<size_t>(num_classes));
  counters_.resize(static_cast<size_t>(ranks));
}
Session::~Session() = default;

void Session::couple(Network& network, Simulation& simulation, FabricModelSettings settings) {
  if (network_ != nullptr) fail_usage("the session already has a network");
  model_ = std::make_unique<FabricModel>(network, settings, [this] { resume_ready(); });
  network_ = &network;
  const bool may_leave = settings.ends_with_actors;
  simulation.add_reporter([this, may_leave] {
    const bool is_stuck = !waiting_.empty() || (!may_leave && network_->messages_under_way() > 0);
    return is_stuck ? describe_waits() : std::string();
  });
}

void Session::set_listener(std::function<void(const Message&, uint32_t, Ps)> listener) {
  listener_ = std::move(listener);
}

Session::Queue& Session::queue(Rank src, Link network, uint8_t traffic_class) {
  if (src < 0 || src >= ranks_ || traffic_class >= num_classes_)
    fail_usage("rank {} of {}, traffic class {} of {}", src, ranks_, traffic_class, num_classes_);
  const size_t side = network == Link::scale_up ? 0 : 1;  // messages to oneself come from either
  return queues_[(static_cast<size_t>(src) * 2 + side) * static_cast<size_t>(num_classes_) + traffic_class];
}

Transfer Session::send(Rank src, const Send& what, bool report_sent) {
  if (what.dst < 0 || what.dst >= ranks_ || what.bytes < 0)
    fail_usage("rank {} sends {} bytes to rank {} of {}", src, what.bytes, what.dst, ranks_);
  const uint32_t index = open(src, report_sent);
  queue(src, what.network, what.traffic_class).items.push_back({index, what, nullptr});
  return announce(index, what.network, what.traffic_class);
}

Transfer Session::send(Rank src, SendList list) {
  if (!list.next) fail_usage("rank {} sends a list without a function that makes its messages", src);
  const uint32_t index = open(src, list.report_sent);
  queue(src, list.network, list.traffic_class).items.push_back({index, {}, std::move(list.next)});
  return announce(index, list.network, list.traffic_class);
}

/// A place for a transfer of the rank.
uint32_t Session::open(Rank src, bool report_sent) {
  if (network_ == nullptr) fail_usage("rank {} sends before the session has a network", src);
  uint32_t index = static_cast<uint32_t>(transfers_.size());
  if (free_transfers_.empty()) {
    transfers_.emplace_back();
  } else {
    index = free_transfers_.back();
    free_transfers_.pop_back();
  }
  transfers_[index].src = src;
  transfers_[index].report_sent = report_sent;
  return index;
}

/// The network asks for the messages at the engine's date.
Transfer Session::announce(uint32_t index, Link network, uint8_t traffic_class) {
  const State& state = transfers_[index];
  const uint32_t generation = state.generation;
  const Link side = network == Link::scale_up ? Link::scale_up : Link::scale_out;
  network_->wake(state.src, side, traffic_class, model_->clock());
  return {index, generation};
}

bool Session::next(Rank src, Link network, uint8_t traffic_class, Message& message) {
  Queue& waiting = queue(src, network, traffic_class);
  while (!waiting.empty()) {
    Queue::Item& item = waiting.items[waiting.first];
    const uint32_t index = item.transfer;
    Send what = item.one;
    const bool is_list = static_cast<bool>(item.next);
    if (is_list && !item.next(what)) {
      waiting.pop();
      transfers_[index].all_started = true;
      settle(index);
      continue;
    }
    State& state = transfers_[index];
    if (!is_list) {
      waiting.pop();
      state.all_started = true;
    }
    ++state.under_way;
    if (state.report_sent) ++state.unsent;
    message = {.src = src,
               .dst = what.dst,
               .network = network,
               .traffic_class = traffic_class,
               .order = what.order,
               .report_sent = state.report_sent,
               .bytes = what.bytes,
               .packet_bytes = what.packet_bytes,
               .cookie = uint64_t{index} << 32 | what.tag};
    return true;
  }
  return false;
}

void Session::on_sent(const Message& message, Ps) {
  const uint32_t index = static_cast<uint32_t>(message.cookie >> 32);
  --transfers_[index].unsent;
  settle(index);
}

void Session::on_arrived(const Message& message, Ps at) {
  const uint32_t index = static_cast<uint32_t>(message.cookie >> 32);
  const uint32_t tag = static_cast<uint32_t>(message.cookie);
  Counter& count = counter(message.dst, tag);
  ++count.messages;
  count.bytes += message.bytes;
  if (count.waiters != nullptr && count.messages >= count.least_messages && count.bytes >= count.least_bytes)
    wake(count.waiters, [&](const Waiter& w) { return count.meets(w.expect); });
  if (listener_) listener_(message, tag, at);
  --transfers_[index].under_way;
  settle(index);
}

template <class Claim>
void Session::wake(Waiter*& list, const Claim& is_met) {
  for (Waiter** link = &list; *link != nullptr;) {
    Waiter& waiter = **link;
    if (!is_met(waiter)) {
      link = &waiter.next;
      continue;
    }
    *link = waiter.next;
    waiter.done = true;
    ready_.push_back(&waiter);
    model_->request_stop();
  }
}

/// Wakes who waits for the transfer, and gives its place to another one once nothing of it is left.
void Session::settle(uint32_t index) {
  State& state = transfers_[index];
  if (!state.all_started) return;
  wake(state.waiters,
       [&](const Waiter& w) { return w.what == Waiter::For::sent ? state.is_sent() : state.is_landed(); });
  if (!state.is_sent() || !state.is_landed()) return;
  const uint32_t generation = state.generation + 1;
  state = {};
  state.generation = generation;
  free_transfers_.push_back(index);
}

Session::State* Session::find(Transfer transfer) {
  if (transfer.index >= transfers_.size()) fail_usage("this transfer was never sent in this session");
  State& state = transfers_[transfer.index];
  return state.generation == transfer.generation ? &state : nullptr;
}

Session::Counter& Session::counter(Rank at, uint32_t tag) {
  auto& all = counters_[static_cast<size_t>(at)];
  const auto place = std::lower_bound(all.begin(), all.end(), tag,
                                      [](const Counter& c, uint32_t wanted) { return c.tag < wanted; });
  if (place != all.end() && place->tag == tag) return *place;
  return *all.insert(place, Counter{.tag = tag});
}

void Session::wait(Transfer transfer) {
  State* state = find(transfer);
  if (state == nullptr || state->is_landed()) return;
  Waiter waiter{.what = Waiter::For::landed, .at = state->src, .transfer = transfer};
  block(waiter);
}

void Session::wait_sent(Transfer transfer) {
  State* state = find(transfer);
  if (state == nullptr) return;
  if (!state->report_sent)
    fail_usage("rank {} waits until a transfer has left that was sent without report_sent", state->src);
  if (state->is_sent()) return;
  Waiter waiter{.what = Waiter::For::sent, .at = state->src, .transfer = transfer};
  block(waiter);
}

void Session::wait_arrived(Rank at, const Expect& expect) {
  if (at < 0 || at >= ranks_) fail_usage("rank {} of {} waits", at, ranks_);
  if (counter(at, expect.tag).meets(expect)) return;
  counter(at, expect.tag).expect_at_least(expect);
  Waiter waiter{.what = Waiter::For::arrived, .at = at, .expect = expect};
  block(waiter);
}

Session::Waiter*& Session::list_of(const Waiter& waiter) {
  return waiter.what == Waiter::For::arrived ? counter(waiter.at, waiter.expect.tag).waiters
                                             : transfers_[waiter.transfer.index].waiters;
}

/// Suspension is the cheapest wait that SimGrid has. Others may resume the actor, so it looks again; when it
/// is killed meanwhile, its stack and the waiter go.
void Session::block(Waiter& waiter) {
  if (s4u::Actor::is_maestro()) fail_usage("only an actor can wait for messages");
  struct Enrolled {
    Session& session;
    Waiter& waiter;
    Enrolled(Session& s, Waiter& w) : session(s), waiter(w) {
      waiter.next = std::exchange(session.list_of(waiter), &waiter);
      session.waiting_.push_back(&waiter);
    }
    ~Enrolled() {
      std::erase(session.waiting_, &waiter);
      std::erase(session.ready_, &waiter);
      if (waiter.done) return;  // wake() took it out of its list
      Waiter** link = &session.list_of(waiter);
      while (*link != &waiter) link = &(*link)->next;
      *link = waiter.next;
    }
  };
  waiter.actor = s4u::Actor::self();
  const Enrolled enrolled(*this, waiter);
  while (!waiter.done) s4u::this_actor::suspend();
}

void Session::resume_ready() {
  for (Waiter* waiter : std::exchange(ready_, {})) waiter->actor->resume();
}

Arrived Session::arrived(Rank at, uint32_t tag) const {
  if (at < 0 || at >= ranks_) fail_usage("rank {} of {}", at, ranks_);
  for (const Counter& c : counters_[static_cast<size_t>(at)])
    if (c.tag == tag) return {c.messages, c.bytes};
  return {};
}

void Session::forget(Rank at, uint32_t tag) {
  if (at < 0 || at >= ranks_) fail_usage("rank {} of {}", at, ranks_);
  std::erase_if(counters_[static_cast<size_t>(at)], [&](const Counter& c) {
    if (c.tag == tag && c.waiters != nullptr)
      fail_usage("rank {} forgets tag {} while somebody waits for it", at, tag);
    return c.tag == tag;
  });
}

std::string Session::describe_waits() const {
  std::string text;
  for (const Waiter* w : waiting_) {
    text += fmt::format("rank {} (actor '{}') waits ", w->at, w->actor->get_name());
    if (w->what == Waiter::For::arrived) {
      const Arrived have = arrived(w->at, w->expect.tag);
      text += fmt::format("for {} messages and {} bytes with tag {}, {} and {} have arrived",
                          w->expect.messages, w->expect.bytes, w->expect.tag, have.messages, have.bytes);
      if (!w->expect.what.empty()) text += fmt::format(": {}", w->expect.what);
    } else {
      const State& state = transfers_[w->transfer.index];
      text += fmt::format("until what it sent has {}: {} messages have not{}",
                          w->what == Waiter::For::sent ? "left" : "landed",
                          w->what == Waiter::For::sent ? state.unsent : state.under_way,
                          state.all_started ? "" : ", others have not started");
    }
    text += '\n';
  }
  if (network_ == nullptr || network_->messages_under_way() == 0) return text;
  return text + fmt::format("{} messages are under way\n{}", network_->messages_under_way(),
                            network_->stuck_report());
}

}  // namespace plumb::sim

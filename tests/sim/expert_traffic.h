// Traffic of an expert-parallel dispatch, drawn as it is asked for: for benches and for comparing fidelities.
#pragma once

#include <algorithm>
#include <vector>

#include "model/random.h"
#include "sim/traffic.h"

namespace plumb::sim {

struct ExpertTraffic {
  Rank ranks = 64;
  int32_t tokens = 128;  // per rank
  int32_t topk = 8;      // distinct ranks that a token goes to
  int32_t row_bytes = 7408;
  bool per_pair = false;       // one message per (source, destination) instead of one per copy of a token
  int32_t ranks_per_node = 0;  // copies inside a node travel over scale_up; 0 = all scale_out
};

/// Each rank sends copies of its tokens to `topk` ranks at random, itself among them.
class Dispatch : public Traffic {
 public:
  explicit Dispatch(const ExpertTraffic& what) : what_(what), queues_(static_cast<size_t>(what.ranks)) {
    for (Queue& q : queues_) q.next = {0, 0};
  }

  bool next(Rank src, Link network, uint8_t, Message& message) override {
    Queue& q = queues_[src];
    if (!q.is_drawn) draw(src, q);
    const size_t n = network == Link::scale_out;
    for (size_t& i = q.next[n]; i < q.copies.size();) {
      const Copies c = q.copies[i++];
      if (link_of(src, c.dst) != network) continue;
      message = {.src = src, .dst = c.dst, .network = network, .bytes = int64_t{c.count} * what_.row_bytes};
      return true;
    }
    if (q.next[0] == q.copies.size() && q.next[1] == q.copies.size()) q.copies = {};
    q.next = {std::min(q.next[0], q.copies.size()), std::min(q.next[1], q.copies.size())};
    return false;
  }
  void on_arrived(const Message& message, Ps at) override {
    ++arrived;
    bytes += message.bytes;
    last = at;
  }

  int64_t arrived = 0;
  int64_t bytes = 0;
  Ps last = 0;
  int64_t drawn = 0;  // messages

 private:
  struct Copies {
    Rank dst;
    int32_t count;
  };
  struct Queue {
    std::vector<Copies> copies;
    std::array<size_t, 2> next;  // by network
    bool is_drawn = false;
  };

  Link link_of(Rank src, Rank dst) const {
    const int32_t n = what_.ranks_per_node;
    return n > 0 && src / n == dst / n ? Link::scale_up : Link::scale_out;
  }

  /// In the order of tokens; per pair in that of the first copies.
  void draw(Rank src, Queue& q) {
    q.is_drawn = true;
    Random random(1, RandomStream::test, static_cast<uint64_t>(src));
    std::vector<int32_t> place(what_.per_pair ? static_cast<size_t>(what_.ranks) : 0, -1);
    std::vector<Rank> picks(static_cast<size_t>(what_.topk));
    for (int32_t t = 0; t < what_.tokens; ++t) {
      for (int32_t k = 0; k < what_.topk;) {
        const Rank dst = static_cast<Rank>(random.below(static_cast<uint64_t>(what_.ranks)));
        if (std::find(picks.begin(), picks.begin() + k, dst) != picks.begin() + k) continue;
        picks[k++] = dst;
        if (what_.per_pair && place[dst] >= 0) {
          ++q.copies[place[dst]].count;
          continue;
        }
        if (what_.per_pair) place[dst] = static_cast<int32_t>(q.copies.size());
        q.copies.push_back({dst, 1});
      }
    }
    drawn += static_cast<int64_t>(q.copies.size());
    q.copies.shrink_to_fit();
  }

  ExpertTraffic what_;
  std::vector<Queue> queues_;
};

}  // namespace plumb::sim

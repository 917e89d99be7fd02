#pragma once

#include <algorithm>
#include <vector>

#include "transport/guarded.h"
#include "transport/verbs/connection.h"
#include "transport/verbs/resources.h"

namespace erdma::transport::verbs {

/// Ends the connection if its completion queue was given up.
inline void end_if_blind(Connection& connection, const CompletionQueues& queues) noexcept {
  if (queues.given_up(connection.share.group)) [[unlikely]]
    connection.broken(-FI_EIO, "its completion queue is broken");
}

/// Hands completions to the connections that they belong to.
class Completions {
 public:
  explicit Completions(Resources& shared) : x_shared(shared) { reserve(0); }
  /// Makes room for put_first(); there is always room for one batch.
  void reserve(size_t early) { x_kept.reserve(x_kept.size() + early + kBatch); }
  void put_first(const std::vector<ibv_wc>& early) noexcept {
    x_kept.insert(x_kept.begin(), early.begin(), early.end());
  }
  /// The connection with this number ends.
  void forget(uint32_t id) noexcept {
    std::erase_if(x_kept, [id](const ibv_wc& wc) { return owner(wc) == id; });
  }

  /// Returns the number of completions. `broken` is set if a queue was given up.
  int poll(Sink& sink, bool& broken) noexcept {
    int moved = 0;
    if (!x_kept.empty()) [[unlikely]] {
      moved = dispatch(x_kept.data(), int(x_kept.size()), sink);
      x_kept.erase(x_kept.begin(), x_kept.begin() + moved);
      if (any()) return moved;
    }
    ibv_wc completions[kBatch];
    for (uint32_t i = 0, count = x_shared.queues.count(); i < count; ++i) {
      if (x_shared.queues.given_up(i)) [[unlikely]]
        continue;
      const int found = ibv_poll_cq(x_shared.queues.at(i), kBatch, completions);
      if (found < 0) [[unlikely]] {
        x_shared.queues.give_up(i);
        broken = true;
      }
      if (found <= 0) continue;
      const int taken = dispatch(completions, found, sink);
      moved += taken;
      if (taken < found) [[unlikely]] {
        x_kept.assign(completions + taken, completions + found);
        break;
      }
    }
    return moved;
  }
  /// After this many calls of poll(), all completions that are in the queues now have been taken.
  uint32_t polls_for_all() const noexcept;
  /// The next completion wakes the process. False: there is one already.
  bool arm() noexcept;
  /// Completions were kept: memory was lacking, or arm() found them.
  bool any() const noexcept { return !x_kept.empty(); }

 private:
  static constexpr int kBatch = 32;  ///< per queue and poll()

  static uint32_t owner(const ibv_wc& wc) noexcept { return uint32_t(wc.wr_id >> 32); }
  /// Returns how many are finished. The next one, if any, lacked memory and must be handled again.
  int dispatch(const ibv_wc* completions, int count, Sink& sink) noexcept {
    int i = 0;
    try {
      for (; i < count; ++i)
        if (Connection* connection = x_shared.table.find(owner(completions[i])))
          connection->on_completion(completions[i], sink);
    } catch (const std::bad_alloc&) {
      say_out_of_memory("taking a packet");
      Connection& connection = *x_shared.table.find(owner(completions[i]));
      // without a link, the packet was not taken
      if (connection.link()) connection.receiver.put_back();
    }
    return i;
  }

  Resources& x_shared;
  std::vector<ibv_wc> x_kept;  ///< precede those in the queues
};

inline uint32_t Completions::polls_for_all() const noexcept {
  int entries = 0;
  for (uint32_t i = 0; i < x_shared.queues.count(); ++i)
    entries = std::max(entries, x_shared.queues.at(i)->cqe);
  return uint32_t(entries / kBatch) + 2;  // the last batch is not full, and some may be kept
}

inline bool Completions::arm() noexcept {
  ibv_wc completions[kBatch];
  if (!x_shared.queues.arm()) return false;
  for (uint32_t i = 0; i < x_shared.queues.count(); ++i) {
    if (x_shared.queues.given_up(i)) continue;
    const int count = ibv_poll_cq(x_shared.queues.at(i), kBatch, completions);
    if (count > 0) x_kept.assign(completions, completions + count);
    if (count != 0) return false;
  }
  return true;
}

}  // namespace erdma::transport::verbs

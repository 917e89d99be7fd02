#pragma once

#include <utility>
#include <vector>

#include "transport/verbs/connection.h"
#include "transport/verbs/resources.h"

namespace erdma::transport::verbs {

/// Takes completions to the connections that they belong to.
class Completions {
 public:
  explicit Completions(Resources& shared) noexcept : x_shared(shared) {}
  /// So that arm() need not allocate.
  void reserve() { x_stash.reserve(2 * kBatch); }

  /// Returns how many there were. `broken`: a queue is.
  int poll(Sink& sink, bool& broken) noexcept {
    int moved = 0;
    if (!x_stash.empty()) [[unlikely]] {
      const std::vector<ibv_wc> stash = std::exchange(x_stash, {});
      dispatch(stash.data(), int(stash.size()), sink);
      moved = int(stash.size());
    }
    ibv_wc completions[kBatch];
    for (uint32_t i = 0, count = x_shared.queues.count(); i < count; ++i) {
      const int found = ibv_poll_cq(x_shared.queues.at(i), kBatch, completions);
      if (found < 0) [[unlikely]]
        broken = true;
      if (found <= 0) continue;
      dispatch(completions, found, sink);
      moved += found;
    }
    return moved;
  }
  /// The next completion wakes. False: there is one already.
  bool arm() noexcept;
  bool any() const noexcept { return !x_stash.empty(); }

 private:
  static constexpr int kBatch = 32;  ///< of one queue in one poll()

  void dispatch(const ibv_wc* completions, int count, Sink& sink) noexcept {
    for (int i = 0; i < count; ++i) {
      Connection* connection = x_shared.table.find(uint32_t(completions[i].wr_id >> 32));
      if (connection) connection->on_completion(completions[i], sink);
    }
  }

  Resources& x_shared;
  std::vector<ibv_wc> x_stash;  ///< found by arm()
};

inline bool Completions::arm() noexcept {
  ibv_wc completions[kBatch];
  if (!x_shared.queues.arm()) return false;
  for (uint32_t i = 0; i < x_shared.queues.count(); ++i) {
    const int count = ibv_poll_cq(x_shared.queues.at(i), kBatch, completions);
    // Room for a batch was made when the first connection came up.
    if (count > 0) x_stash.assign(completions, completions + count);
    if (count != 0) return false;
  }
  return true;
}

}  // namespace erdma::transport::verbs

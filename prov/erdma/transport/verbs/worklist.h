#pragma once

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "transport/deferred_dones.h"
#include "transport/verbs/connection.h"

namespace erdma::transport::verbs {

/// What poll() must look at besides completions: connections with packets to send or receives to
/// repost, those that wait for a block, and rare events.
class Worklist {
 public:
  void mark(Connection& connection) noexcept {
    if (!hook(connection).linked()) x_dirty.push_back(connection);
  }
  /// Marks the connection again once a block is free.
  void await_block(Connection& connection) noexcept try {
    if (std::find(x_starved.begin(), x_starved.end(), &connection) == x_starved.end())
      x_starved.push_back(&connection);
  } catch (const std::bad_alloc&) {
    mark(connection);
  }
  /// Call when blocks may be free.
  void feed() noexcept {
    if (!x_starved.empty()) [[unlikely]]
      for (Connection* connection : std::exchange(x_starved, {})) mark(*connection);
  }
  void forget(Connection& connection) noexcept {
    std::erase(x_starved, &connection);
    if (hook(connection).linked()) hook(connection).unlink();
  }
  bool any_dirty() const noexcept { return !x_dirty.empty(); }
  /// Runs each marked connection once; one that has more to do marks itself again.
  void progress() noexcept {
    util::IntrusiveList<Connection, DirtyTag> now;
    while (Connection* connection = x_dirty.pop_front()) now.push_back(*connection);
    while (Connection* connection = now.pop_front()) connection->progress();
  }

  DeferredDones dones;     ///< zero-length transfers
  bool attention = false;  ///< the next poll() must also handle rare events

 private:
  static util::ListHook<DirtyTag>& hook(Connection& connection) noexcept { return connection; }

  util::IntrusiveList<Connection, DirtyTag> x_dirty;
  std::vector<Connection*> x_starved;
};

}  // namespace erdma::transport::verbs

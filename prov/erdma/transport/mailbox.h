#pragma once

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include <rdma/fi_errno.h>

#include "transport/guarded.h"

namespace erdma::transport {

/// Messages from any thread to the one thread that takes them. An endpoint has two such mailboxes:
/// mail from its connector to the polling thread, and commands from the polling thread to the
/// connector.
///
/// pending() is one relaxed load. Before it sleeps, the taking thread calls arm(); then the next
/// message rings the bell, once. `Bell` has ring() const noexcept, which may wait for memory only.
template <typename Message, typename Bell>
class Mailbox {
 public:
  /// `bell` outlives the mailbox.
  explicit Mailbox(const Bell& bell) noexcept : x_bell(bell) {}

  /// 0, or -FI_ENOMEM; then `message` is unchanged.
  [[nodiscard]] int try_post(Message&& message) noexcept try {
    {
      const std::lock_guard guard(x_mutex);
      x_messages.push_back(std::move(message));
    }
    x_pending.store(true);
    if (x_armed.exchange(false)) x_bell.ring();
    return 0;
  } catch (const std::bad_alloc&) {
    return -FI_ENOMEM;
  }
  /// For messages that must not be lost: waits until there is memory.
  void post(Message message) noexcept {
    while (try_post(std::move(message))) ::usleep(1000);
  }

  /// Asks a question, a message without contents. Several questions that are not taken yet count
  /// as one. Any thread may call it.
  void ask() noexcept {
    x_asked.store(true);
    x_pending.store(true);
    if (x_armed.exchange(false)) x_bell.ring();
  }
  /// To be called after read(). True: ask() was called since the last time.
  bool take_question() noexcept {
    return x_asked.load(std::memory_order_relaxed) && x_asked.exchange(false);
  }

  /// Makes pending() true, and wakes nobody: a thread that polls shall look for more than messages.
  void remind() noexcept { x_pending.store(true); }

  bool pending() const noexcept { return x_pending.load(std::memory_order_relaxed); }
  std::vector<Message> take() noexcept {
    x_pending.store(false);
    const std::lock_guard guard(x_mutex);
    return std::exchange(x_messages, {});
  }
  /// Calls `handle` for each message, in order, and returns the number of messages handled. If
  /// `handle` throws std::bad_alloc, its message and the later ones stay pending, and the next
  /// read() starts with that message.
  template <typename Handle>
  int read(Handle&& handle) noexcept {
    int handled = 0;
    const bool done = guarded("reading mail", [&] {
      for (; receive(); ++x_next, ++handled) handle(x_taken[x_next]);
    });
    if (!done) x_pending.store(true);
    return handled;
  }
  /// False: a message is pending, and the bell may not ring for it.
  bool arm() noexcept {
    x_armed.store(true);
    return !x_pending.load();
  }
  void disarm() noexcept { x_armed.store(false); }

 private:
  static_assert(std::is_nothrow_move_constructible_v<Message>);

  /// True: x_taken[x_next] is the next message for read().
  bool receive() noexcept {
    if (x_next < x_taken.size()) return true;
    x_next = 0;
    x_taken.clear();
    if (!x_pending.exchange(false)) return false;
    const std::lock_guard guard(x_mutex);
    x_taken.swap(x_messages);
    return !x_taken.empty();
  }

  std::mutex x_mutex;
  std::vector<Message> x_messages;
  // Used by the taking thread only.
  std::vector<Message> x_taken;
  size_t x_next = 0;  ///< in x_taken
  std::atomic<bool> x_pending = false;
  std::atomic<bool> x_armed = false;
  std::atomic<bool> x_asked = false;
  const Bell& x_bell;
};

}  // namespace erdma::transport

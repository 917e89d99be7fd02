#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "transport/verbs/handles.h"
#include "util/private_fds.h"

namespace erdma::transport::verbs {

class Device;

/// A reservation for all completions that one queue pair can have outstanding.
struct CqShare {
  ibv_cq* cq = nullptr;
  uint32_t group = 0;
  uint32_t entries = 0;
};

/// The completion queues of one endpoint. They cannot be resized, and an overrun goes unnoticed. So
/// each queue pair reserves entries for all that it can have outstanding, and each new queue is
/// four times as big as the last: the number of queues to poll grows with the logarithm of the
/// number of connections. Any thread: reserve(), release(), fail(). Polling thread: everything
/// else.
class CompletionQueues {
 public:
  explicit CompletionQueues(const Device& device) noexcept : x_device(device) {}
  ~CompletionQueues();
  CompletionQueues(const CompletionQueues&) = delete;
  CompletionQueues& operator=(const CompletionQueues&) = delete;

  /// Makes the completion channel for sleeping.
  int open() noexcept;
  /// -FI_ENOMEM: the device has no more completion queues (logged).
  int reserve(uint32_t entries, CqShare& share) noexcept;
  /// Call after the queue pair was destroyed.
  void release(const CqShare& share) noexcept;
  /// This queue no longer reports completions: no queue pair gets it from now on. Ignores the
  /// queues of other endpoints.
  void fail(const ibv_cq* cq) noexcept;
  /// Polling this queue failed. It is not polled again, and its connections are lost.
  void give_up(uint32_t index) noexcept {
    x_groups[index].given_up = true;
    fail(at(index));
  }
  bool given_up(uint32_t index) const noexcept { return x_groups[index].given_up; }

  /// At the end of the endpoint, for a queue pair that was not destroyed: its queue and the channel
  /// cannot be destroyed either.
  void leave_open(const CqShare& share) noexcept;

  uint32_t count() const noexcept { return x_count.load(std::memory_order_acquire); }
  ibv_cq* at(uint32_t index) const noexcept { return x_groups[index].cq.get(); }

  int channel_fd() const noexcept { return x_channel->fd; }
  /// The next completion on any queue makes channel_fd() readable, unless an earlier one already
  /// has. Repeated calls do not ask a queue again before its event was taken, because the kernel
  /// keeps a list of events; so each queue has at most one. A queue that failed is not asked, as
  /// its connections end without it. False: a queue refused.
  bool arm() noexcept;
  /// Takes the events that arm() may have caused, and clears its requests. False: the channel is
  /// broken, and may stay readable for ever.
  [[nodiscard]] bool take_events() noexcept;

 private:
  struct Group {
    CompletionQueue cq;
    uint32_t entries = 0;
    uint32_t reserved = 0;
    unsigned events = 0;  ///< taken, not yet acknowledged
    bool asked = false;   ///< for an event, since events were last taken
    bool given_up = false;
    std::atomic<bool> failed = false;
  };
  /// The largest would have at least 2^24 entries, which no device offers.
  static constexpr size_t kMaxGroups = 24;
  static constexpr uint32_t kFirstEntries = 1024;

  int add_group(uint32_t entries) noexcept;

  const Device& x_device;
  CompletionChannel x_channel;
  util::PrivateFd x_channel_fd;
  std::atomic<uint32_t> x_count = 0;
  std::mutex x_mutex;  ///< guards reservations, and adding a group
  std::array<Group, kMaxGroups> x_groups;
};

}  // namespace erdma::transport::verbs

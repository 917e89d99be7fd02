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

/// Places for all completions that one queue pair can have outstanding.
struct CqShare {
  ibv_cq* cq = nullptr;
  uint32_t group = 0;
  uint32_t entries = 0;
};

/// The completion queues of one endpoint. They cannot be resized, and an overrun goes unnoticed: so
/// each queue pair reserves what it can have outstanding, and the next queue is four times as big
/// as the last. Hence the number to poll grows with the logarithm of the number of connections.
/// reserve() and release(): any thread. All else: polling thread.
class CompletionQueues {
 public:
  explicit CompletionQueues(const Device& device) noexcept : x_device(device) {}
  ~CompletionQueues();
  CompletionQueues(const CompletionQueues&) = delete;
  CompletionQueues& operator=(const CompletionQueues&) = delete;

  /// Makes the channel for sleeping.
  int open() noexcept;
  /// -FI_ENOMEM: the device has no more completion queues (logged).
  int reserve(uint32_t entries, CqShare& share) noexcept;
  /// After the queue pair is destroyed.
  void release(const CqShare& share) noexcept;

  /// At the end, for a queue pair that was not destroyed: nor can its queue be, nor the channel.
  void strand(const CqShare& share) noexcept;

  uint32_t count() const noexcept { return x_count.load(std::memory_order_acquire); }
  ibv_cq* at(uint32_t index) const noexcept { return x_groups[index].cq.get(); }

  int channel_fd() const noexcept { return x_channel->fd; }
  /// The next completion on any queue makes channel_fd() readable, or it is, from an earlier one.
  /// So there is at most one event of each queue that nobody has taken, however often it is asked
  /// for in between: the kernel keeps a list of them. False: a queue refused.
  bool arm() noexcept;
  /// Takes the events that arm() may have caused, and what it asked for.
  void take_events() noexcept;

 private:
  struct Group {
    CompletionQueue cq;
    uint32_t entries = 0;
    uint32_t reserved = 0;
    unsigned events = 0;  ///< taken, not yet acknowledged
    bool asked = false;   ///< for an event, since events were last taken
  };
  /// The largest has 2^24 entries and more, which no device offers.
  static constexpr size_t kMaxGroups = 24;
  static constexpr uint32_t kFirstEntries = 1024;

  int add_group(uint32_t entries) noexcept;

  const Device& x_device;
  CompletionChannel x_channel;
  util::PrivateFd x_channel_fd;
  std::atomic<uint32_t> x_count = 0;
  std::mutex x_mutex;  ///< reservations, and adding a group
  std::array<Group, kMaxGroups> x_groups;
};

}  // namespace erdma::transport::verbs

#pragma once

#include <cstdint>

#include "transport/verbs/device.h"

namespace erdma::transport::verbs {

/// Who wants to know when a device says that a queue fails. Called on another endpoint's thread.
class AsyncListener {
 public:
  virtual void on_queue_pair_event(uint64_t id, const char* what) noexcept = 0;
  virtual void on_completion_queue_event(const ibv_cq* queue) noexcept = 0;
  virtual void on_device_fatal() noexcept = 0;

 protected:
  ~AsyncListener() = default;
};

/// A device has one queue of asynchronous events for all endpoints on it: whoever reads one tells
/// all of them, and they know by the id whether it is theirs. One per listener; thread-safe.
class AsyncEvents {
 public:
  AsyncEvents(const Device& device, AsyncListener& listener);
  ~AsyncEvents();
  AsyncEvents(const AsyncEvents&) = delete;
  AsyncEvents& operator=(const AsyncEvents&) = delete;

  int fd() const noexcept;
  /// Reads what there is.
  void dispatch() noexcept;

 private:
  void handle(const ibv_async_event& event) noexcept;

  const Device& x_device;
  AsyncListener& x_listener;
};

}  // namespace erdma::transport::verbs

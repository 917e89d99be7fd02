#pragma once

#include <cstdint>

#include "transport/verbs/device.h"

namespace erdma::transport::verbs {

/// A device says that something of it failed: one of these, or the device itself.
struct DeviceEvent {
  uint64_t queue_pair = 0;                   ///< its context
  const ibv_cq* completion_queue = nullptr;  ///< to compare only
  const char* what = nullptr;                ///< static text
};

/// Tells all who listen to events of this device.
void tell_all(const ibv_context* context, const DeviceEvent& event) noexcept;

/// Wants to know of such events. Called on another endpoint's thread.
class AsyncListener {
 public:
  virtual void on_device_event(const DeviceEvent& event) noexcept = 0;

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
  void handle(const ibv_async_event& event) const noexcept;

  const Device& x_device;
  AsyncListener& x_listener;
};

}  // namespace erdma::transport::verbs

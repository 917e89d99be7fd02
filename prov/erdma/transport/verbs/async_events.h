#pragma once

#include <cstdint>

#include "transport/verbs/device.h"

namespace erdma::transport::verbs {

/// A failure that the device reports: of a queue pair, of a completion queue, or of the device
/// itself.
struct DeviceEvent {
  uint64_t queue_pair = 0;                   ///< its context
  const ibv_cq* completion_queue = nullptr;  ///< to compare only
  const char* what = nullptr;                ///< static text
};

/// Tells all listeners to events of this device.
void tell_all(const ibv_context* context, const DeviceEvent& event) noexcept;

/// Receives such events. Called on another endpoint's thread, under the lock of all listeners: it
/// neither waits nor subscribes.
class AsyncListener {
 public:
  virtual void on_device_event(const DeviceEvent& event) noexcept = 0;

 protected:
  ~AsyncListener() = default;
};

/// A device has one queue of asynchronous events for all its endpoints. Whichever endpoint reads an
/// event tells all of them, and each knows by the id whether the event concerns it. One object per
/// listener; thread-safe.
class AsyncEvents {
 public:
  AsyncEvents(const Device& device, AsyncListener& listener);
  ~AsyncEvents();
  AsyncEvents(const AsyncEvents&) = delete;
  AsyncEvents& operator=(const AsyncEvents&) = delete;

  int fd() const noexcept;
  /// Reads all pending events. False: there will be no more, and fd() stays ready for ever.
  bool dispatch() noexcept;

 private:
  void handle(const ibv_async_event& event) const noexcept;
  void tell_of_port(int port, bool active) const noexcept;

  const Device& x_device;
  AsyncListener& x_listener;
};

}  // namespace erdma::transport::verbs

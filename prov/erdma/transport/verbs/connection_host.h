#pragma once

namespace erdma::transport::verbs {

/// What the parts of a connection tell the whole.
class ConnectionHost {
 public:
  /// The connection ends: the peer broke a rule, or the device failed.
  virtual void broken(int status, const char* why) noexcept = 0;
  /// Something waits for credits or room: progress() soon, in this poll().
  virtual void progress_soon() noexcept = 0;
  /// Likewise, once a block is free.
  virtual void await_block() noexcept = 0;

 protected:
  ~ConnectionHost() = default;
};

}  // namespace erdma::transport::verbs

#pragma once

#include <cstdint>

#include "fi_erdma/pair/endpoint.h"
#include "fi_erdma/pair/memory.h"
#include "fi_erdma/pair/sides.h"

namespace fi_erdma::pair {

/// The other side, as this one's endpoint knows it.
struct Peer {
  fi_addr_t address = FI_ADDR_UNSPEC;
  uint64_t remote = 0;  ///< of its window
  uint64_t key = 0;
};

/// One endpoint at each side, traffic both ways at the same time, and every byte checked where it
/// arrives.
class Exchange {
 public:
  Exchange(const Options& options, Side side, Channel& channel, uint64_t caps);

  Endpoint& endpoint() noexcept { return x_endpoint; }
  Side side() const noexcept { return x_side; }
  /// kWindow messages each way; both sides must call it with the same arguments.
  void messages(size_t size, int iterations);
  /// kWindow reads or writes of the other side's window (caps: FI_RMA).
  void reads(size_t size, int iterations);
  void writes(size_t size, int iterations);
  enum class Kind { message, read, write };
  /// The one of these three that the kind names.
  void compared(Kind kind, size_t size, int iterations);
  /// As many messages, reads or writes one after the other, kWindow at a time, that nobody checks:
  /// bytes per second that this side sent, read or wrote. Both sides call it.
  double speed(Kind kind, size_t size, int iterations);
  Channel::Drive drive() {
    return [this] { x_endpoint.progress(); };
  }
  void barrier() { x_channel.barrier(drive()); }
  /// What this side has sent, received, read and wrote.
  uint64_t operations() const noexcept { return x_operations; }
  uint64_t bytes() const noexcept { return x_bytes; }

  static constexpr size_t kWindow = 4;

 private:
  void meet();
  uint64_t seed(Side from, size_t slot) const noexcept;
  void check(const Buffer& buffer, size_t slot, size_t size, uint64_t seed) const;
  void send_and_receive(size_t size);
  void post_receive(size_t slot, size_t size);
  void post_send(size_t slot, size_t size);
  void finish_receives(size_t size);
  void post_one_sided(size_t slot, size_t size, bool read);
  void one_sided(size_t size, bool read);
  void finish(const char* what, size_t size);
  size_t offset(size_t slot) const noexcept { return slot * x_stride; }

  const Options& x_options;
  const Side x_side, x_other;
  Channel& x_channel;
  const size_t x_stride;  ///< between the slots of a buffer, bytes
  const bool x_rma;
  Endpoint x_endpoint;
  Buffer x_out, x_in, x_window;
  Peer x_peer;
  Operation x_sends[kWindow], x_receives[kWindow];
  uint64_t x_round = 0, x_operations = 0, x_bytes = 0;
};

}  // namespace fi_erdma::pair

#pragma once

#include <cstdint>

#include "fi_erdma/pair/endpoint.h"
#include "fi_erdma/pair/memory.h"
#include "fi_erdma/pair/sides.h"

namespace fi_erdma::pair {

/// The other side, as seen by this side's endpoint.
struct Peer {
  fi_addr_t address = FI_ADDR_UNSPEC;
  uint64_t remote = 0;  ///< address of its window
  uint64_t key = 0;
};

/// One endpoint on each side, with traffic in both directions at once. The receiver of each byte
/// checks it.
class Exchange {
 public:
  Exchange(const Options& options, Side side, Channel& channel, uint64_t caps);

  Endpoint& endpoint() noexcept { return x_endpoint; }
  Side side() const noexcept { return x_side; }
  /// Sends kWindow messages in each direction. Both sides must call it with the same arguments.
  void messages(size_t size, int iterations);
  /// Does kWindow reads or writes of the other side's window (needs FI_RMA in caps).
  void reads(size_t size, int iterations);
  void writes(size_t size, int iterations);
  enum class Kind { message, read, write };
  /// Calls the function for this kind.
  void compared(Kind kind, size_t size, int iterations);
  /// Does unchecked messages, reads or writes, kWindow at a time. Returns the bytes per second that
  /// this side sent, read or wrote. Both sides must call it.
  double speed(Kind kind, size_t size, int iterations);
  Channel::Drive drive() {
    return [this] { x_endpoint.progress(); };
  }
  void barrier() { x_channel.barrier(drive()); }
  /// The bytes that this side has sent, received, read and written.
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

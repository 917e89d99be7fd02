#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/direct_source.h"
#include "util/socket_address.h"

namespace erdma::transport::staging {

/// Flushes what a NIC wrote to devices, by READs of them over the NIC's link to itself: one READ
/// per registration for all that was complete when it was posted. Nothing of it is done within
/// add(); errors of a READ are those of everyone that it was for. Not thread-safe.
class Flusher {
 public:
  /// Of READs of ours among the tokens of the inner transport.
  static constexpr uint64_t kToken = uint64_t(1) << 63;

  Flusher(Transport& inner, DirectSource* direct, const util::SocketAddress& name)
      : x_inner(inner), x_direct(direct), x_name(name) {}
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;
  ~Flusher();

  /// 0: there is nothing to flush; kSettling: on_done(token) comes out of poll(); else why it can't
  /// be flushed.
  int add(const iovec* memory, size_t count, uint64_t token) noexcept;
  /// Posts what it can, and reports what is over. Returns the number of steps forward.
  int poll(Sink& sink) noexcept;
  /// One of the READs is over.
  void on_read(int status) noexcept;
  /// A link of the inner transport is down. If it is the NIC's to itself, what waits for it ends
  /// with this round; the next one tries anew.
  void on_link_down(const Link& link, int status) noexcept;
  /// There is something to post.
  bool owes() const noexcept { return x_posted < x_targets.size() || !x_next_tokens.empty(); }

 private:
  int post(const FlushTarget& target) noexcept;
  int begin() noexcept;
  int end(Sink& sink) noexcept;

  Transport& x_inner;
  DirectSource* const x_direct;
  const util::SocketAddress x_name;
  const Link* x_loop = nullptr;  ///< to ourselves, once it was asked for
  // For the next round.
  std::vector<FlushTarget> x_next;
  std::vector<uint64_t> x_next_tokens;
  // This round's.
  std::vector<FlushTarget> x_targets;  ///< each of another registration
  std::vector<uint64_t> x_tokens, x_over;
  size_t x_posted = 0;  ///< of x_targets
  size_t x_done = 0;    ///< of those
  int x_status = 0;
  std::byte x_sink{};  ///< read into, never looked at
};

}  // namespace erdma::transport::staging

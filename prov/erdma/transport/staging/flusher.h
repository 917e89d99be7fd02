#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/direct_source.h"
#include "util/socket_address.h"

namespace erdma::transport::staging {

/// Flushes what a NIC wrote to devices, by READs of the devices over the NIC's link to itself. One
/// READ per registration serves all writes that were complete when it was posted. add() posts
/// nothing. A READ that fails ends the connection, for which there may be another reason. So the
/// READs of its round are repeated once, over another connection. If one fails again, all
/// operations of the round fail. Not thread-safe.
class Flusher {
 public:
  /// Marks the READs of the flusher among the tokens of the inner transport.
  static constexpr uint64_t kToken = uint64_t(1) << 63;

  Flusher(Transport& inner, DirectSource* direct, const util::SocketAddress& name)
      : x_inner(inner), x_direct(direct), x_name(name) {}
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;
  ~Flusher();

  /// 0: there is nothing to flush. kFlushing: completion follows through on_done(token), from
  /// poll(). Otherwise the reason why the memory cannot be flushed.
  int add(const iovec* memory, size_t count, uint64_t token) noexcept;
  /// Posts READs and reports flushes that ended. Returns the number of steps of progress.
  int poll(Sink& sink) noexcept;
  /// One of the READs ended.
  void on_read(int status) noexcept;
  /// A link of the inner transport is down. If it is the NIC's link to itself, the READs that were
  /// not posted yet fail, too, unless a READ told of this end before and the round is not repeated:
  /// these, and later READs, connect anew.
  void on_link_down(const Link& link, int status) noexcept;
  /// Are there READs to post?
  bool pending() const noexcept { return x_posted < x_targets.size() || !x_next_tokens.empty(); }

 private:
  int post(const FlushTarget& target) noexcept;
  int begin() noexcept;
  void start() noexcept;
  int repeat() noexcept;
  void end_one(int status) noexcept;
  int end(Sink& sink) noexcept;

  Transport& x_inner;
  DirectSource* const x_direct;
  const util::SocketAddress x_name;
  const Link* x_loop = nullptr;  ///< the NIC's link to itself, after the first READ
  // The next round: memory and tokens that were added meanwhile.
  std::vector<FlushTarget> x_next;
  std::vector<uint64_t> x_next_tokens;
  // This round.
  std::vector<FlushTarget> x_targets;  ///< one for each registration
  std::vector<uint64_t> x_tokens, x_over;
  size_t x_posted = 0;  ///< targets whose READ was posted
  size_t x_done = 0;    ///< targets whose READ ended
  int x_status = 0;
  bool x_repeats = true;    ///< if READs fail, they are repeated
  bool x_down_due = false;  ///< on_link_down() follows a READ that failed
  std::byte x_sink{};       ///< the READs write here; nothing reads it
};

}  // namespace erdma::transport::staging

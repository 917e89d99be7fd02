#pragma once

#include <vector>

#include "transport/shm/ring.h"
#include "transport/transport.h"
#include "util/intrusive_list.h"
#include "util/pool.h"

namespace erdma::transport::shm {

class ShmLink;
struct LinkContext;

/// Link::put() to a KeyKind::target, at both sides of one link. The writer shares its memory and
/// asks the target's owner to read it. So the owner validates its own remote key, and one bulk
/// engine moves bytes in both directions. Made with the first such write, since few peers ever do
/// one. Polling thread only.
class RemoteWrites final : public util::ListHook<RemoteWrites> {
 public:
  RemoteWrites(LinkContext& context, ShmLink& link) noexcept : x_context(context), x_link(link) {}

  ShmLink& link() const noexcept { return x_link; }
  static bool is_target(const RemoteKey& remote_key) noexcept;
  int share(const iovec* memory, size_t count, size_t length, RemoteKey& remote_key) noexcept;
  void revoke(const RemoteKey& remote_key) noexcept;
  /// Precondition: the ring has room for two entries.
  int start(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
            uint64_t token) noexcept;
  enum class Taken : uint8_t {
    yes,
    later,    ///< nothing happened: the caller calls again with the same entry
    invalid,  ///< no honest peer sends it
  };
  /// Handles an entry from the peer. Throws std::bad_alloc; this means the same as `later`.
  Taken on_entry(const RingEntry& entry, Sink& sink);
  /// The read that serves the peer's write is over.
  void reply(util::PoolHandle write, util::PoolHandle target, int status) noexcept;
  bool send_replies() noexcept;  ///< true once all are sent
  /// The link ends.
  void fail(Sink& sink, int status) noexcept;
  void forget_peer() noexcept;

 private:
  struct Target {
    iovec memory[kMaxIov];
    size_t count;
    size_t length;
    unsigned active = 0;
  };
  struct Pending : util::ListHook<Pending> {
    uint64_t token = 0;
    RemoteKey source;
  };
  struct Reply {
    util::PoolHandle write;
    int status;
  };

  int serve(const RemoteKey& source, size_t length, util::PoolHandle write) noexcept;
  void on_done(const RingEntry& entry, Sink& sink) noexcept;
  void finish(Pending& write, int status, Sink& sink) noexcept;

  LinkContext& x_context;
  ShmLink& x_link;
  util::Pool<Target, 8> x_targets;
  util::Pool<Pending, 8> x_pending;
  util::IntrusiveList<Pending> x_written;  ///< whose write_done has not arrived
  std::vector<Reply> x_replies;
  size_t x_served = 0;  ///< the peer's writes that are being read
  RemoteKey x_named;    ///< the target of a write_target entry; its write_source must follow
  bool x_is_named = false;
};

}  // namespace erdma::transport::shm

#pragma once

#include <vector>

#include "transport/shm/ring.h"
#include "transport/transport.h"
#include "util/intrusive_list.h"
#include "util/pool.h"

namespace erdma::transport::shm {

class ShmLink;
struct LinkContext;

/// Link::put() of a KeyKind::target at both sides of one link: the writer shares its memory and
/// asks the owner of the target to read it. So the owner validates its own remote key, and one bulk
/// engine moves bytes in either case. Made by the first write: few peers ever do. Polling thread
/// only.
class RemoteWrites {
 public:
  RemoteWrites(LinkContext& context, ShmLink& link) noexcept : x_context(context), x_link(link) {}

  static bool is_target(const RemoteKey& remote_key) noexcept;
  int share(const iovec* memory, size_t count, size_t length, RemoteKey& remote_key) noexcept;
  void revoke(const RemoteKey& remote_key) noexcept;
  /// There is room for two entries.
  int start(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
            uint64_t token) noexcept;
  /// An entry of the peer's. False: no honest peer sends it. Throws std::bad_alloc: it has to come
  /// again.
  bool on_entry(const RingEntry& entry, Sink& sink);
  /// The read that serves a write of the peer's is over.
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
  util::IntrusiveList<Pending> x_written;  ///< whose write_done has not come
  std::vector<Reply> x_replies;
  size_t x_served = 0;  ///< writes of the peer's that are being read
  RemoteKey x_named;    ///< target of a write_target entry; its write_source is to follow
  bool x_is_named = false;
};

}  // namespace erdma::transport::shm

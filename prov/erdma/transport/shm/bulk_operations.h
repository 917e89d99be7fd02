#pragma once

#include <cstdint>
#include <memory>

#include "transport/shm/bulk_in.h"
#include "transport/shm/memfd.h"
#include "transport/transport.h"
#include "util/pool.h"
#include "util/result.h"

namespace erdma::transport::shm {

class InChannel;
struct LinkContext;

/// A read that carries out the peer's put().
struct RemoteWrite {
  util::PoolHandle write;   ///< at the peer
  util::PoolHandle target;  ///< here
};

/// The large transfers of one inbound channel, made with the first of them: the memory shared with
/// the sender, and which operation waits for which transfer. Polling thread only.
class BulkOperations final : private BulkMemory, private NullSink {
 public:
  /// Makes the memory and sends it to the peer. -FI_EAGAIN, -FI_ENOMEM, ...
  static util::Result<std::unique_ptr<BulkOperations>> share(LinkContext& context,
                                                             InChannel& channel);
  BulkOperations(LinkContext& context, InChannel& channel, Memfd memory);
  ~BulkOperations();

  /// Copies from the peer's remote key. Ends with on_done(token), or with an answer to the remote
  /// write `write`; without one the result may also be kDone.
  int read(const RemoteKey& remote, const iovec* local, size_t count, size_t length, uint64_t token,
           const RemoteWrite* write) noexcept;
  /// Accesses what the peer shared. Ends with on_done(token).
  int access(CmaCall call, const SharedRegion& region, uint64_t offset, const iovec* local,
             size_t count, size_t length, uint64_t token) noexcept;
  int poll(Sink& sink) noexcept;
  /// The group of the peer's writes to one target.
  static uint64_t group_of(util::PoolHandle target) noexcept;
  /// As in BulkIn.
  bool quiesce(uint64_t group = BulkIn::kEveryGroup) noexcept { return x_transfers.quiesce(group); }
  void cancel(Sink& sink, int status, uint64_t group = BulkIn::kEveryGroup) noexcept;
  bool active() const noexcept { return x_transfers.active(); }
  bool ready() noexcept { return x_transfers.ready(); }

 private:
  /// One read under way.
  struct Moving {
    uint64_t token;
    RemoteWrite write;
    bool replies;
  };
  bool may_read_at_once(size_t length) noexcept;
  template <typename Start>
  int begin(const Moving& what, Start&& start) noexcept;

  int back_bounce(uint32_t slots) noexcept override;
  uint32_t affordable_slots() const noexcept override;
  bool sender_left() const noexcept override;
  bool shares_back() const noexcept override;
  bool streams_back() const noexcept override;
  bool calls_are_fast() noexcept override;
  uint64_t revocations_seen() const noexcept override;
  bool enter(uint64_t heard) noexcept override;
  void leave() noexcept override;
  void ask_for_help() noexcept override;
  void on_done(uint64_t token, int status) noexcept override;

  LinkContext& x_context;
  InChannel& x_channel;
  uint32_t x_slots = 0;  ///< that have memory
  uint32_t x_polls = 0;  ///< LinkContext::polls when x_at_once began to count
  size_t x_at_once = 0;  ///< bytes of longer reads at once since that poll
  Memfd x_segment;
  BulkIn x_transfers;  ///< after the segment: destroyed first
  util::Pool<Moving, 8> x_moving;
  Sink* x_sink = nullptr;  ///< set while the transfers are polled
};

}  // namespace erdma::transport::shm

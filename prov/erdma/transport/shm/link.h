#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/shm/handed_files.h"
#include "transport/shm/in_channel.h"
#include "transport/shm/lent_table.h"
#include "transport/shm/out_channel.h"
#include "transport/shm/wake.h"
#include "transport/transport.h"
#include "util/intrusive_list.h"
#include "util/pool.h"

namespace erdma::transport::shm {

class Core;

/// One remote endpoint: an outbound channel once something was sent, an inbound one once the peer
/// sent something. Polling thread only.
class ShmLink final : public Link {
 public:
  ShmLink(Core& core, const util::SocketAddress& address) noexcept;
  ~ShmLink() override;

  int send(const Header& header, const iovec* payload, size_t count, size_t length,
           SendHint hint) noexcept override;
  LinkLimits limits() const noexcept override;
  int expose(const iovec* memory, size_t count, size_t length, Access access,
             Exposure& exposure) noexcept override;
  int withdraw(const Exposure& exposure) noexcept override;
  int read(const Exposure& remote, const iovec* local, size_t count, size_t length,
           uint64_t token) noexcept override;
  int write(const Exposure& remote, const iovec* local, size_t count, size_t length,
            uint64_t token) noexcept override;
  bool lends_memory() const noexcept override;
  int lend(const iovec& memory, bool for_reads, bool for_writes,
           Exposure& exposure) noexcept override;
  void recall(const Exposure& exposure) noexcept override;
  bool unused() noexcept override { return !x_in || !x_in->lent_in_use(); }
  void recalled() noexcept override;
  int read_direct(const RemoteRange& remote, const iovec* local, size_t count,
                  uint64_t token) noexcept override;
  int write_direct(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                   bool until_placed) noexcept override;
  int send_retractable(const Header& header, const iovec* payload, size_t count, size_t length,
                       uint64_t& packet) noexcept override;
  bool retract(uint64_t packet) noexcept override;
  void retracted(uint64_t packet, bool executed) noexcept override;
  void fail(int status) noexcept override;
  void hold(bool on) noexcept override;
  void addressed() noexcept override;
  bool left() const noexcept override { return x_in && x_in->sender_left(); }
  util::Result<uint32_t> hand_over(const util::Fd& file) noexcept override;
  util::Result<util::Fd> take_file(uint32_t name) noexcept override;

  // By Core.
  void install_in(std::unique_ptr<InChannel> channel) noexcept { x_in = std::move(channel); }
  void install_out(std::unique_ptr<OutChannel> channel) noexcept;
  uint64_t recalls_heard() const noexcept { return x_recalls_heard; }
  uint32_t recalls_made() const noexcept { return x_recalls_made; }
  uint32_t number() const noexcept { return x_link_number; }  ///< each time that it begins
  void offer_hot(Segment segment) noexcept;
  void ask_cold() noexcept;
  bool try_switch() noexcept;  ///< true once no switch is due
  void attach_bulk(Segment segment) noexcept;
  void keep_file(uint32_t name, util::Fd file);  ///< may throw
  int poll_bulk_out() noexcept;
  /// While it connects, the end of a channel that brought nothing says nothing: that of the attempt
  /// under way does. True = it was dropped.
  bool drop_unused_in() noexcept;
  /// Nothing is sent any more. True: take_down() may follow now; else once settled().
  bool begin_end() noexcept;
  bool settled() noexcept { return !x_in || x_in->settle_bulk(); }
  bool ending() const noexcept { return x_state == State::ending; }
  /// Both channels end: what was accepted fails, nothing is sent any more.
  void take_down(Sink& sink, int status) noexcept;
  void close(int status) noexcept;  ///< as take_down(), for good and without upcalls

  // Sleeping.
  /// The ring whose lack of room is in the way; null = something else is.
  RingSender* blocked_ring() const noexcept;
  bool has_exposures() const noexcept { return out_up() && x_out->bulk && x_out->bulk->active(); }
  bool bulk_out_ready() const noexcept { return has_exposures() && x_out->bulk->ready(); }

  // Lent memory (lent_memory.cc).
  void ask_for_help() noexcept;
  void help() noexcept;  ///< the peer asked

  // Remote writes (remote_write.cc).
  bool on_write_entry(const RingEntry& entry, Sink& sink) noexcept;
  void reply_write(util::PoolHandle write, util::PoolHandle target, int status) noexcept;
  bool flush_replies() noexcept;  ///< true once all are sent

  bool out_up() const noexcept { return x_out && !x_out->down; }
  InChannel* in() const noexcept { return x_in.get(); }
  OutChannel* out() const noexcept { return x_out.get(); }
  /// The peer process of either channel, or null.
  PeerProcess* process() const noexcept;
  CmaPeer& cma() noexcept { return x_cma; }
  void settle_cma(bool settled) noexcept { x_cma_settled = settled; }
  bool connecting(uint32_t attempt) const noexcept {
    return x_state == State::connecting && x_attempt == attempt;
  }
  bool connecting() const noexcept { return x_state == State::connecting; }
  bool met() const noexcept override { return x_met; }
  void set_met() noexcept { x_met = true; }

  // Membership in Core's lists.
  bool listed_starved = false, listed_bulk = false, listed_switching = false,
       listed_replying = false;
  const char* broken = nullptr;  ///< why the link is about to be closed
  int broken_status = 0;

 private:
  enum class State : uint8_t { idle, connecting, up, ending, closed };
  struct WriteTarget {
    iovec memory[kMaxIov];
    size_t count;
    size_t length;
    unsigned active = 0;
  };
  struct PendingWrite : util::ListHook<PendingWrite> {
    uint64_t token = 0;
    Exposure source;
  };
  struct Reply {
    util::PoolHandle write;
    int status;
  };
  /// What write() needs, at either side: few peers ever do.
  struct RemoteWrites {
    util::Pool<WriteTarget, 8> targets;
    util::Pool<PendingWrite, 8> writes;
    util::IntrusiveList<PendingWrite> written;  ///< whose write_done has not come
    std::vector<Reply> replies;
    Exposure target_named;  ///< by a write_target entry; its write_source is to follow
    bool target_is_named = false;
  };

  int not_ready() noexcept;
  int no_room(size_t length) noexcept;
  void after_push() noexcept;
  void use_ring() noexcept;
  void ask_for_hot() noexcept;
  int begin_bulk() noexcept;
  int access(CmaCall call, const RemoteRange& remote, const iovec* local, size_t count,
             uint64_t token) noexcept;
  void let_bulk_arrive() noexcept;
  void end_channels(int status) noexcept;
  void end_in(int status) noexcept;
  RemoteWrites* remote_writes() noexcept;  ///< null: out of memory
  static bool is_target(const Exposure& exposure) noexcept;
  static util::PoolHandle target_handle(const Exposure& exposure) noexcept;
  int expose_target(const iovec* memory, size_t count, size_t length, Exposure& exposure) noexcept;
  void withdraw_target(const Exposure& exposure) noexcept;
  int start_remote_write(const Exposure& source, size_t length, util::PoolHandle write) noexcept;
  void on_write_done(const RingEntry& entry, Sink& sink) noexcept;
  void fail_writes(Sink& sink, int status) noexcept;

  // What send() touches.
  RingSender* x_ring = nullptr;  ///< null: not connected, or a switch is due
  WakeWords* x_wake = nullptr;
  const Ringer* x_ringer = nullptr;
  bool x_cold = true;
  State x_state = State::idle;
  bool x_met = false;        ///< was connected once
  bool x_addressed = false;  ///< by the application; the background thread knows
  Counters& x_counters;
  Core& x_core;
  uint32_t x_attempt = 0;
  std::unique_ptr<OutChannel> x_out;
  std::unique_ptr<InChannel> x_in;
  CmaPeer x_cma;
  bool x_cma_settled = false;         ///< nothing is asked any more that may permit more
  std::unique_ptr<LentTable> x_lent;  ///< to the peer, until the link ends
  uint64_t x_recalls_heard = 0;       ///< by the peer, since the link began
  uint32_t x_link_number = 1;
  uint32_t x_recalls_made = 0;  ///< here, since then, whatever channels there were

  std::unique_ptr<RemoteWrites> x_remote;
  uint32_t x_files_given = 0;            ///< to the peer, over all channels
  std::unique_ptr<HandedFiles> x_files;  ///< of the inbound channel; few peers ever have any
};

}  // namespace erdma::transport::shm

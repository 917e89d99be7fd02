#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <rdma/fi_errno.h>

#include "transport/shm/cold_rings.h"
#include "transport/shm/connector.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/link.h"
#include "transport/shm/mail.h"
#include "transport/shm/options.h"
#include "transport/shm/wake.h"
#include "util/clock.h"

namespace erdma::transport::shm {

/// The polling side of one endpoint: all links, and which of them want attention.
class Core {
 public:
  static util::Result<std::unique_ptr<Core>> open(const Options& options,
                                                  const util::SocketAddress& name, CmaCalls* calls,
                                                  const util::Clock* clock);
  Core(const Options& options, CmaCalls* calls, const util::Clock* clock) noexcept;
  ~Core();

  int poll(Sink& sink) noexcept {
    int moved = 0;
    for (size_t i = 0; i < x_hot.size(); ++i)
      if (x_hot[i]->ready()) moved += x_hot[i]->drain(sink);
    for (ChunkRings& rings : x_chunks)
      if (rings.chunk->ready.load(std::memory_order_relaxed) | rings.again) [[unlikely]]
        moved += drain_cold(rings, sink);
    if (x_mailbox.pending() || x_attention) [[unlikely]]
      moved += attend(sink);
    return moved;
  }
  util::Result<Link*> link_to(const util::SocketAddress& address) noexcept;
  int wait_fd() const noexcept { return x_doorbell.fd(); }
  bool arm() noexcept;
  void disarm() noexcept;
  void shutdown() noexcept;
  bool step() noexcept { return x_connector->step(); }  ///< see Connector::step()
  /// In a forked child, instead of destruction: closes descriptors, touches nothing shared. Nor
  /// does destruction after it.
  void abandon() noexcept;

  const util::SocketAddress& name() const noexcept { return x_connector->name(); }
  const Options& options() const noexcept { return x_options; }
  Counters& counters() noexcept { return x_counters; }
  CmaCalls& calls() noexcept { return *x_calls; }
  const util::Clock& clock() const noexcept { return *x_clock; }
  uint32_t epoch() const noexcept { return x_epoch; }

  // By links and channels.
  int connect(ShmLink& link, uint32_t attempt) noexcept;
  int trust(ShmLink& link) noexcept;  ///< the application itself addressed it
  void close(const std::shared_ptr<Connection>& connection, int status) noexcept;
  void break_link(ShmLink& link, const char* why, int status = -FI_ECONNRESET) noexcept;
  void add_hot(InChannel& channel) noexcept;
  void remove_hot(InChannel& channel) noexcept;
  /// Looks into its ring, or no longer does.
  void attend_to(InChannel& channel, bool on) noexcept;
  /// The channel ends. Its place stays taken until the background thread gives it back.
  void forget(InChannel& channel) noexcept;
  void add_bulk(InChannel& channel) noexcept;
  void add_bulk_out(ShmLink& link) noexcept;
  void add_starved(ShmLink& link) noexcept;
  void add_switching(ShmLink& link) noexcept;
  void add_replying(ShmLink& link) noexcept;
  void count_bounce() noexcept { ++x_bounces; }
  unsigned bounces() const noexcept { return x_bounces; }  ///< channels whose slots have memory
  void defer_done(uint64_t token, int status) noexcept;
  /// The clock of activity: entries received so far.
  uint64_t count_entries(int count) noexcept { return x_entries += uint64_t(count); }

 private:
  struct ChunkRings {
    ColdChunk* chunk;
    uint64_t again;  ///< rings to look at although no bit is set
    InChannel* channels[kColdRings];
  };
  struct DeferredDone {
    uint64_t token;
    int status;
  };
  /// A link that is to come down once its peer is done with a write.
  struct Ending {
    ShmLink* link;
    int status;
    uint64_t deadline;
  };

  int drain_cold(ChunkRings& rings, Sink& sink) noexcept;
  int attend(Sink& sink) noexcept;
  int attend_bulk(Sink& sink) noexcept;
  int deliver_deferred(Sink& sink) noexcept;
  int attend_endings(Sink& sink) noexcept;
  bool anything_to_do() noexcept;
  bool announce_waiting() noexcept;

  // mail.cc
  int read_mail(Sink& sink) noexcept;
  int read_later(Sink& sink) noexcept;
  int read(std::vector<Mail> mails, Sink& sink) noexcept;
  int open_mail(Mail& mail, Sink& sink);
  void on_in_up(Mail& mail, Sink& sink);
  void on_out_up(Mail& mail, Sink& sink);
  int on_channel_mail(Mail& mail, Sink& sink);
  void learn_cma(ShmLink& link, const Mail& mail) noexcept;
  void on_promote(InChannel& channel) noexcept;
  void grant(InChannel& channel) noexcept;
  void grant_to_waiters() noexcept;
  void end(ShmLink& link, int status, Sink& sink) noexcept;
  void bring_down(ShmLink& link, int status, Sink& sink) noexcept;
  void install_rings(const ColdPlace& place, InChannel& channel);
  void look_again(const ColdPlace& place) noexcept;
  util::SocketAddress canonical(const util::SocketAddress& address) const noexcept;
  ShmLink& find_or_make(const util::SocketAddress& address);

  // What poll() touches first.
  std::vector<InChannel*> x_hot;
  std::vector<ChunkRings> x_chunks;
  bool x_attention = false;
  bool x_closed = false;
  bool x_sleep_announced = false;
  bool x_armed = false;
  uint64_t x_entries = 0;
  Doorbell x_doorbell;
  MailBox x_mailbox;

  Options x_options;
  Counters x_counters;
  CmaCalls x_own_calls;
  util::SystemClock x_own_clock;
  CmaCalls* x_calls;
  const util::Clock* x_clock;
  const Barriers x_barriers;
  const uint32_t x_epoch;
  ColdRings x_cold_rings;

  std::unordered_map<util::SocketAddress, std::unique_ptr<ShmLink>, util::SocketAddressHash>
      x_links;
  unsigned x_granted = 0;  ///< hot rings given out
  unsigned x_bounces = 0;
  std::vector<InChannel*> x_waiters;
  std::vector<InChannel*> x_bulk_ins;
  std::vector<ShmLink*> x_bulk_outs, x_starved, x_switching, x_replying, x_broken;
  std::vector<DeferredDone> x_deferred;
  std::vector<Ending> x_endings;
  std::vector<Mail> x_later;               ///< of channels whose link is still ending
  std::unique_ptr<Connector> x_connector;  ///< last: its thread uses what is above
};

}  // namespace erdma::transport::shm

#pragma once

#include "transport/deferred_dones.h"
#include "transport/lack_of_memory.h"
#include "transport/shm/bursts.h"
#include "transport/shm/cma.h"
#include "transport/shm/connector.h"
#include "transport/shm/core_sharing.h"
#include "transport/shm/fragment_limits.h"
#include "transport/shm/fragment_timer.h"
#include "transport/shm/in_channels.h"
#include "transport/shm/link.h"
#include "transport/shm/link_ends.h"
#include "transport/shm/options.h"
#include "transport/shm/recent_links.h"
#include "transport/shm/rma_timer.h"
#include "util/clock.h"
#include "util/intrusive_list.h"
#include "util/left_over.h"

namespace erdma::transport::shm {

/// What the links of one endpoint share: services, and lists of links with work for the next
/// poll(). Polling thread only.
struct LinkContext {
  LinkContext(const Options& with, CmaCalls& cma_calls, const util::Clock& time) noexcept
      : channels(with.hot_peers), options(with), calls(cma_calls), clock(time) {}
  ~LinkContext() { util::expect_none_left("bounce memory", bounces + whole_bounces); }

  template <typename T, typename Tag>
  void attend(util::IntrusiveList<T, Tag>& list, T& element) noexcept {
    attention |= kWork;
    join(list, element);
  }
  template <typename T, typename Tag>
  static void join(util::IntrusiveList<T, Tag>& list, T& element) noexcept {
    if (!static_cast<util::ListHook<Tag>&>(element).linked()) list.push_back(element);
  }

  InChannels channels;
  /// Reasons for ShmTransport::poll() to do more than to drain channels.
  static constexpr uint8_t kWork = 1;  ///< a list below is not empty, or a flag is set
  static constexpr uint8_t kCountsPolls = 2;
  uint8_t attention = 0;
  uint32_t polls = 0;  ///< wraps around
  Bursts bursts;
  /// A link could not even ask to connect, pass memory to its peer, or wake it.
  LackOfMemory lack;
  int try_later() noexcept {
    attention |= kWork;
    return lack.try_later();
  }
  uint64_t next_pass = 0;    ///< no try before this time to pass memory for large transfers
  uint64_t lacks_since = 0;  ///< since when there is none for them; 0 = there is
  const Options options;
  Counters own_counters;
  Counters& counters = options.counters ? *options.counters : own_counters;
  Counters& counters_of(const util::SocketAddress& peer) noexcept {
    return options.by_peer ? options.by_peer->shm_counters_of(peer) : counters;
  }
  Counters all_counters() const noexcept {
    return options.by_peer ? options.by_peer->all_shm_counters() : counters;
  }
  CmaCalls& calls;
  const util::Clock& clock;
  LinkEnds ends{clock, attention};
  Connector* connector = nullptr;
  CoreSharing core;
  FragmentTimer fragments{clock};
  RmaTimer rma_timer{clock};
  FragmentLimits fragment_limits{options, calls, clock};
  RecentLinks large_messages;
  RecentRings payloads;
  /// Call for each large message.
  void count_message() noexcept {
    if (core.on_message()) [[unlikely]]
      core.judge(clock.now());
  }
  unsigned bounces = 0;        ///< channels whose bounce slots have memory
  unsigned whole_bounces = 0;  ///< of these, all slots
  /// No room in the ring; does not set `attention`.
  util::IntrusiveList<ShmLink, StarvedTag> starved;
  util::IntrusiveList<ShmLink, SwitchTag> switching;
  util::IntrusiveList<RemoteWrites> replying;  ///< answers to remote writes are due
  util::IntrusiveList<ChannelBulk, BulkOutTag> bulk_outs;
  util::IntrusiveList<InChannel, BulkInTag> bulk_ins;
  DeferredDones deferred;
};

}  // namespace erdma::transport::shm

#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "transport/transport.h"

namespace erdma::fake {

class Transport;

/// The network by which the fake transports of one test find each other, by address.
struct Network {
  struct Open {
    iovec memory;
    bool reads, writes;
    uint16_t owner;  ///< port of the owner; a key is valid at its device only
  };
  std::map<uint16_t, Transport*> by_port;
  std::map<uint32_t, Open> open;  ///< memory for direct access by its key at a device
  uint32_t keys_made = 0;
  unsigned faults = 0;  ///< accesses to memory that is not open; real devices end the connection
};

/// The behaviour of links. A test may change it between calls.
struct Behaviour {
  size_t eager = 1024;
  size_t asks_above = SIZE_MAX;
  size_t room = SIZE_MAX;  ///< packets that may wait for the peer
  size_t more_room = 0;    ///< room that each poll() adds
  bool prefers_read = true;
  size_t fragmented = 0;        ///< longest message for which packets are preferred
  bool hold_transfers = false;  ///< get() and put() stay pending
  bool reads_at_once = false;   ///< get() of memory that the peer has shared returns kDone
  int transfer_status = 0;      ///< status for on_done(); bytes move only if 0
  int transfer_refusal = 0;     ///< result of get() and put(), unless 0
  int share_refusal = 0;
  bool offers = false;           ///< share() makes offers if it may
  bool takes_offers = true;      ///< get() takes offers
  bool opens = false;            ///< there is direct access
  bool refuses_to_open = false;  ///< regions that are not open yet are refused
  bool has_short = true;         ///< direct access has its fast path
  bool holds = true;             ///< hold() has an effect
  bool hold_direct = false;   ///< direct access stays pending: no read runs, no write is reported
  int direct_refusal = 0;     ///< result of direct access, unless 0
  bool shares = false;        ///< direct access is to a shared region
  bool direct_busy = false;   ///< direct access is not possible now
  int shared_status = 0;      ///< status of direct accesses that were held
  bool retracts = false;      ///< packets can be taken back
  int flush_status = 0;       ///< status of flushes
  bool flushes = false;       ///< moved bytes become visible in a later poll()
  bool hold_flushes = false;  ///< moved bytes stay invisible
  bool leaves = false;        ///< poll() leaves packets when Sink::take_served() permits it
  bool chains = false;        ///< packets with more to come leave with the next one, or in poll()
};

/// A transport whose packets are queues of bytes within one process. Bytes move in poll() of the
/// receiver or of the initiator.
class Transport final : public transport::Transport {
 public:
  class FakeLink final : public transport::Link {
   public:
    FakeLink(Transport& owner, const util::SocketAddress& peer) : Link(peer), x_owner(owner) {
      offer_interfaces();
    }
    /// Offers the interfaces that the behaviour names now.
    void offer_interfaces() noexcept {
      const Behaviour& can = x_owner.behaviour;
      x_optional = {can.has_short ? &x_fast : nullptr, can.opens ? &x_registrar : nullptr,
                    can.shares ? &x_sharing : nullptr, can.retracts ? &x_retractable : nullptr,
                    nullptr};
    }

    int send(const transport::Header& header, const iovec* payload, size_t count, size_t length,
             transport::SendHint hint) noexcept override {
      if (down) return down;
      Transport* peer = remote();
      if (!peer) return -FI_EAGAIN;
      FakeLink& there = peer->link(x_owner.name);
      if (there.inbound.size() >= x_owner.behaviour.room) return -FI_EAGAIN;
      std::vector<std::byte> packet(transport::kHeaderBytes + length);
      std::memcpy(packet.data(), header.bytes, transport::kHeaderBytes);
      hmem::gather(packet.data() + transport::kHeaderBytes, payload, count, 0, length);
      x_owner.chain.emplace_back(&there, std::move(packet));
      if (hint != transport::SendHint::more || !x_owner.behaviour.chains) x_owner.post_chain();
      ++sent;
      return 0;
    }
    transport::LinkLimits limits() const noexcept override {
      return {x_owner.behaviour.eager, x_owner.behaviour.prefers_read,
              x_owner.behaviour.asks_above};
    }
    bool prefers_packets(size_t length, bool expected) noexcept override {
      ++asked;
      return expected && length <= x_owner.behaviour.fragmented;
    }
    int share(const iovec* memory, size_t count, size_t length, transport::Access access,
              transport::RemoteKey& remote_key) noexcept override {
      if (x_owner.behaviour.share_refusal) return x_owner.behaviour.share_refusal;
      Memory memory_key{};
      std::copy_n(memory, count, memory_key.iov);
      const bool offer = access == transport::Access::refusable_read && x_owner.behaviour.offers;
      memory_key.head = {offer ? transport::KeyKind::ipc : transport::KeyKind::readable,
                         uint8_t(count), 0, ++x_owner.keys_made};
      memory_key.length = length;
      x_owner.shared.emplace(memory_key.head.index, Shared{memory_key, access, address().port()});
      remote_key.put(memory_key);
      x_owner.offers_made += offer;
      return 0;
    }
    void revoke_early(const transport::RemoteKey& remote_key,
                      transport::Early why) noexcept override {
      ++(why == transport::Early::refused ? x_owner.offers_refused : x_owner.revoked_at_end);
      revoke(remote_key);
    }
    int revoke(const transport::RemoteKey& remote_key) noexcept override {
      Memory memory;
      std::memcpy(&memory, remote_key.bytes, sizeof(memory));
      x_owner.shared.erase(memory.head.index);
      return 0;
    }
    int get(const transport::RemoteRange& remote, const iovec* local, size_t count,
            uint64_t token) noexcept override {
      if (remote.memory.kind() == transport::KeyKind::region)
        return direct(remote, local, count, token, true, false);
      return transfer(remote, local, count, token, true);
    }
    /// Writes to a region at once, as later packets must not overtake such a write.
    int put(const transport::RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
            bool until_placed) noexcept override {
      if (remote.memory.kind() == transport::KeyKind::region)
        return direct(remote, local, count, token, false, until_placed);
      return transfer(remote, local, count, token, false);
    }
    int flush(const iovec*, size_t, uint64_t token) noexcept override {
      if (!x_owner.behaviour.flushes) return 0;
      x_owner.flushing.push_back(token);
      return transport::kFlushing;
    }
    void fail(int status) noexcept override { failed = status; }
    bool was_up() const noexcept override { return up_once; }
    transport::LinkReport report() noexcept override {
      return {"fake", up_once ? "up" : "connecting", x_owner.behaviour.room};
    }
    void hold(bool on) noexcept override { held = on && x_owner.behaviour.holds; }
    void addressed() noexcept override { trusted = true; }

    /// Sends any bytes, as a hostile peer could.
    void inject(const void* header, size_t header_bytes, const void* payload, size_t length) {
      std::vector<std::byte> packet(transport::kHeaderBytes + length);
      std::memcpy(packet.data(), header, header_bytes);
      if (length) std::memcpy(packet.data() + transport::kHeaderBytes, payload, length);
      inbound.push_back(std::move(packet));
      ++arrived;
    }

    uint64_t arrived = 0;        ///< number of packets so far
    uint64_t taken = 0;          ///< packets up to this number can't be taken back
    std::set<uint64_t> skipped;  ///< numbers of packets that are not delivered
    bool inside = false;         ///< the peer is inside a shared region
    unsigned revocations = 0, revocations_seen = 0;

    struct Direct {
      uint32_t key;
      uint64_t offset, length;
      std::vector<iovec> local;
      uint64_t token;
      bool read, until_placed;
    };
    std::deque<Direct> directs;  ///< direct accesses not reported yet
    size_t direct_count = 0;
    size_t short_count = 0;  ///< number of direct accesses by the fast path

    std::deque<std::vector<std::byte>> inbound;
    bool held = false;     ///< no packet is delivered
    bool trusted = false;  ///< the application named the peer
    size_t sent = 0;
    size_t asked = 0;     ///< for which way a message prefers
    bool up_once = true;  ///< returned by was_up()
    int down = 0;         ///< returned by send()
    size_t ended = 0;     ///< number of times the link went down
    int failed = 0;       ///< argument of fail(); poll() reports the link down

   private:
    friend class Transport;
    static constexpr uint64_t kOpenFrom = 0x1000;  ///< address of open memory at the device
    struct Memory {
      transport::KeyHead head;
      size_t length;
      iovec iov[transport::kMaxIov];
    };

   public:
    struct Shared {
      Memory memory;
      transport::Access access;
      uint16_t to;  ///< port of the peer
    };

   private:
    struct Transfer {
      Memory remote;
      std::vector<iovec> local;
      size_t length;
      uint64_t token;
      bool read;
    };

    /// Returns the key of a region.
    static uint32_t key_of(const transport::RemoteKey& remote_key) noexcept {
      transport::KeyHead head;
      std::memcpy(&head, remote_key.bytes, sizeof(head));
      return head.index;
    }
    struct FakeOpen final : transport::RegisteredRegion {
      FakeOpen(Network& all, const Network::Open& memory) : network(all), key(++all.keys_made) {
        network.open.emplace(key, memory);
      }
      ~FakeOpen() override { network.open.erase(key); }
      void describe(transport::RemoteKey& remote_key) const noexcept override {
        remote_key.put(transport::KeyHead{transport::KeyKind::region, 0, 0, key});
      }
      Network& network;
      uint32_t key;
    };
    struct Fast final : transport::FastAccess {
      explicit Fast(FakeLink& of) : link(of) {}
      bool unpack(const transport::RemoteKey& memory,
                  transport::DeviceAddress& first) noexcept override {
        if (memory.kind() != transport::KeyKind::region) return false;
        first.key = key_of(memory);
        first.address = kOpenFrom;
        return true;
      }
      int get(transport::DeviceAddress remote, void* local, size_t length,
              uint64_t token) noexcept override {
        return link.by_short(remote, {local, length}, token, true);
      }
      int put(transport::DeviceAddress remote, const void* local, size_t length,
              uint64_t token) noexcept override {
        return link.by_short(remote, {const_cast<void*>(local), length}, token, false);
      }
      FakeLink& link;
    };
    struct Registrar final : transport::RegionRegistrar {
      explicit Registrar(Transport& of) : owner(of) {}
      util::Result<std::unique_ptr<transport::RegisteredRegion>> open(const iovec& memory,
                                                                      const transport::Dmabuf*,
                                                                      bool reads,
                                                                      bool writes) override {
        ++owner.open_count;
        if (owner.behaviour.refuses_to_open) return -FI_EOPNOTSUPP;
        return std::unique_ptr<transport::RegisteredRegion>(std::make_unique<FakeOpen>(
            owner.network, Network::Open{memory, reads, writes, owner.name.port()}));
      }
      Transport& owner;
    };
    // Shared regions and packets that can be taken back, as between processes of a host.
    struct Sharing final : transport::RegionSharing {
      explicit Sharing(FakeLink& of) : link(of) {}
      bool possible() const noexcept override { return true; }
      int share(const iovec& memory, bool reads, bool writes,
                transport::RemoteKey& remote_key) noexcept override {
        Transport& owner = link.x_owner;
        auto made = std::make_unique<FakeOpen>(
            owner.network, Network::Open{memory, reads, writes, owner.name.port()});
        made->describe(remote_key);
        shared[made->key] = std::move(made);
        return 0;
      }
      void revoke(const transport::RemoteKey& remote_key) noexcept override {
        shared.erase(key_of(remote_key));
        ++link.revocations;
      }
      bool unused() noexcept override { return !link.inside; }
      void on_revoked() noexcept override { ++link.revocations_seen; }
      FakeLink& link;
      std::map<uint32_t, std::unique_ptr<FakeOpen>> shared;
    };
    struct Retractable final : transport::RetractableSends {
      explicit Retractable(FakeLink& of) : link(of) {}
      bool suits(size_t length) noexcept override { return length <= 4096; }
      int send(const transport::Header& header, const iovec* payload, size_t count, size_t length,
               uint64_t& packet) noexcept override {
        if (const int rc = link.send(header, payload, count, length, transport::SendHint::none))
          return rc;
        packet = there().arrived;
        return 0;
      }
      bool retract(uint64_t packet) noexcept override {
        return packet > there().arrived - there().inbound.size() && packet > there().taken;
      }
      void retracted(uint64_t packet, bool executed) noexcept override {
        if (executed) there().skipped.insert(packet);
      }
      void ended(uint64_t) noexcept override {}
      FakeLink& there() { return link.remote()->link(link.x_owner.name); }
      FakeLink& link;
    };
    int direct(const transport::RemoteRange& remote, const iovec* local, size_t count,
               uint64_t token, bool read, bool until_placed) {
      if (x_owner.behaviour.direct_refusal) return x_owner.behaviour.direct_refusal;
      if (remote.memory.size != sizeof(transport::KeyHead)) return -FI_EINVAL;
      Direct wanted{
          key_of(remote.memory), remote.offset, remote.length, {local, local + count}, token, read,
          until_placed};
      if (x_owner.behaviour.shares && x_owner.behaviour.direct_busy) return -FI_EBUSY;
      ++direct_count;
      if (x_owner.behaviour.shares && !x_owner.behaviour.hold_direct) {
        execute(wanted);
        return transport::kDone;
      }
      if (!read && !x_owner.behaviour.shares) execute(wanted);
      directs.push_back(std::move(wanted));
      return 0;
    }
    int by_short(transport::DeviceAddress remote, const iovec& local, uint64_t token, bool read) {
      transport::RemoteKey named;
      named.put(transport::KeyHead{transport::KeyKind::region, 0, 0, remote.key});
      const int rc =
          direct({named, remote.address - kOpenFrom, local.iov_len}, &local, 1, token, read, false);
      if (rc == 0) ++short_count;
      return rc;
    }
    void execute(const Direct& wanted) {
      Network& between = x_owner.network;
      const auto found = between.open.find(wanted.key);
      const Network::Open* opened = found == between.open.end() ? nullptr : &found->second;
      if (!opened || opened->owner != address().port() ||
          !(wanted.read ? opened->reads : opened->writes) || wanted.length == 0 ||
          wanted.offset > opened->memory.iov_len ||
          wanted.length > opened->memory.iov_len - wanted.offset) {
        ++between.faults;
        failed = -FI_ECONNRESET;
        return;
      }
      std::byte* at = static_cast<std::byte*>(opened->memory.iov_base) + wanted.offset;
      if (wanted.read)
        hmem::scatter(wanted.local.data(), wanted.local.size(), 0, at, wanted.length);
      else
        hmem::gather(at, wanted.local.data(), wanted.local.size(), 0, wanted.length);
    }

    Transport* remote() {
      const auto found = x_owner.network.by_port.find(address().port());
      return found == x_owner.network.by_port.end() ? nullptr : found->second;
    }
    int transfer(const transport::RemoteRange& remote, const iovec* local, size_t count,
                 uint64_t token, bool read) {
      const transport::RemoteKey& key = remote.memory;
      if (x_owner.behaviour.transfer_refusal) return x_owner.behaviour.transfer_refusal;
      if (key.is_refusable() && !x_owner.behaviour.takes_offers) return -FI_EOPNOTSUPP;
      if (key.size != sizeof(Memory)) return -FI_EINVAL;
      Transfer pending{};
      std::memcpy(&pending.remote, key.bytes, key.size);
      pending.local.assign(local, local + count);
      pending.length = remote.length;
      pending.token = token;
      pending.read = read;
      if (read && x_owner.behaviour.reads_at_once && permitted(pending))
        return move(pending), transport::kDone;
      transfers.push_back(pending);
      return 0;
    }
    /// Checks the transfer by the peer's own records, not by the peer's key.
    bool permitted(const Transfer& t) {
      Transport* const peer = remote();
      if (!peer) return false;
      const auto found = peer->shared.find(t.remote.head.index);
      if (found == peer->shared.end()) return false;
      const Shared& entry = found->second;
      const bool to_read = entry.access != transport::Access::remote_write;
      return entry.to == x_owner.name.port() && to_read == t.read &&
             t.length <= entry.memory.length &&
             std::memcmp(&t.remote, &entry.memory, sizeof(t.remote)) == 0;
    }
    static void move(const Transfer& t) {
      std::vector<std::byte> bytes(t.length);
      const iovec* local = t.local.data();
      if (t.read) {
        hmem::gather(bytes.data(), t.remote.iov, t.remote.head.count, 0, t.length);
        hmem::scatter(local, t.local.size(), 0, bytes.data(), t.length);
      } else {
        hmem::gather(bytes.data(), local, t.local.size(), 0, t.length);
        hmem::scatter(t.remote.iov, t.remote.head.count, 0, bytes.data(), t.length);
      }
    }

    Transport& x_owner;
    Fast x_fast{*this};
    Registrar x_registrar{x_owner};
    Sharing x_sharing{*this};
    Retractable x_retractable{*this};
    std::deque<Transfer> transfers;
  };

  Transport(Network& all, const util::SocketAddress& own) : network(all), name(own) {
    network.by_port[name.port()] = this;
  }
  ~Transport() override { network.by_port.erase(name.port()); }

  FakeLink& link(const util::SocketAddress& peer) {
    std::unique_ptr<FakeLink>& slot = links[peer.port()];
    if (!slot) slot = std::make_unique<FakeLink>(*this, peer);
    slot->offer_interfaces();
    return *slot;
  }

  void post_chain() {
    for (auto& [there, packet] : std::exchange(chain, {})) {
      there->inbound.push_back(std::move(packet));
      ++there->arrived;
    }
  }
  int poll(transport::Sink& sink) noexcept override {
    if (before_poll) before_poll();
    post_chain();
    int steps = 0;
    behaviour.room += behaviour.more_room;
    for (auto& [port, each] : links) steps += poll_link(*each, sink);
    const std::vector<uint64_t> flushed =
        behaviour.hold_flushes ? std::vector<uint64_t>() : std::exchange(flushing, {});
    for (const uint64_t token : flushed) sink.on_done(token, behaviour.flush_status);
    return steps + int(flushed.size());
  }
  util::Result<transport::Link*> link_to(const util::SocketAddress& address) noexcept override {
    return static_cast<transport::Link*>(&link(address));
  }
  int wait_fd() const noexcept override { return -1; }
  bool arm() noexcept override { return true; }
  void disarm() noexcept override {}
  void shutdown() noexcept override {}

  Network& network;
  util::SocketAddress name;
  Behaviour behaviour;
  std::function<void()> before_poll;  ///< for example a peer on another core, which progresses
  std::map<uint32_t, FakeLink::Shared> shared;  ///< memory that is not revoked yet
  uint32_t keys_made = 0;
  std::vector<uint64_t> flushing;  ///< tokens of accepted flushes
  uint32_t offers_made = 0, offers_refused = 0;
  unsigned revoked_at_end = 0;
  unsigned open_count = 0;  ///< number of attempts to open a region
  std::map<uint16_t, std::unique_ptr<FakeLink>> links;
  std::deque<std::pair<FakeLink*, std::vector<std::byte>>> chain;  ///< packets that have not left

 private:
  int poll_link(FakeLink& link, transport::Sink& sink) {
    int steps = 0;
    for (size_t left = link.inbound.size(); left > 0 && !link.failed && !link.held;
         --left, ++steps) {
      std::vector<std::byte> packet = std::move(link.inbound.front());
      link.inbound.pop_front();
      if (link.skipped.erase(link.arrived - link.inbound.size())) continue;
      try {
        sink.on_packet(link, packet.data(), packet.data() + transport::kHeaderBytes,
                       packet.size() - transport::kHeaderBytes);
      } catch (const std::bad_alloc&) {
        link.inbound.push_front(std::move(packet));
        break;
      }
      if (behaviour.leaves && sink.take_served()) return steps + 1;
    }
    for (size_t left = behaviour.hold_transfers ? 0 : link.transfers.size(); left > 0;
         --left, ++steps) {
      const FakeLink::Transfer transfer = link.transfers.front();
      link.transfers.pop_front();
      const int status = behaviour.transfer_status   ? behaviour.transfer_status
                         : !link.permitted(transfer) ? -FI_EACCES
                                                     : 0;
      if (status == 0) FakeLink::move(transfer);
      sink.on_done(transfer.token, status);
    }
    for (size_t left = behaviour.hold_direct ? 0 : link.directs.size(); left > 0 && !link.failed;
         --left, ++steps) {
      const FakeLink::Direct direct = std::move(link.directs.front());
      link.directs.pop_front();
      const int status = behaviour.shares ? behaviour.shared_status : 0;
      if (status == 0 && (direct.read || behaviour.shares)) link.execute(direct);
      sink.on_done(direct.token, link.failed ? link.failed : status);
    }
    if (link.failed) bring_down(link, link.failed, sink);
    return steps;
  }

 public:
  /// Does what a transport does when the peer is gone.
  static void bring_down(FakeLink& link, int status, transport::Sink& sink) {
    link.inbound.clear();
    while (!link.transfers.empty()) {
      const uint64_t token = link.transfers.front().token;
      link.transfers.pop_front();
      sink.on_done(token, status);
    }
    while (!link.directs.empty()) {
      const uint64_t token = link.directs.front().token;
      link.directs.pop_front();
      sink.on_done(token, status);
    }
    link.failed = 0;
    link.held = false;
    ++link.ended;
    sink.on_link_down(link, status);
  }
};

}  // namespace erdma::fake

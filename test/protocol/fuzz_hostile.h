#pragma once

#include <deque>
#include <functional>

#include "protocol/fuzz_world.h"

/// A peer that knows the format of all packets. It follows the rules for a while, so that the
/// victim's operations reach every state. In between, it sends packets of any kind, with ids, keys,
/// generations, lengths and remote keys that it has seen, or with slightly wrong ones.
namespace erdma::fuzz {

class HostilePeer final : public transport::Sink {
 public:
  HostilePeer(transport::Transport& own, const util::SocketAddress& victim, Random& random)
      : x_transport(own), x_victim(victim), x_random(random), x_loot(1 << 16, '.') {}

  /// The victim's memory that this peer may use: address, key, bytes.
  std::vector<wire::Segment> told;
  /// Sends packets that only the transport itself sends. It may be null.
  std::function<void(transport::Link&, Random&)> meddle;

  void poll() { x_transport.poll(*this); }

  /// Makes one random step.
  void act() {
    transport::Link* const path = link();
    if (!path) return;
    if (x_random.one_in(97) && meddle) return meddle(*path, x_random);
    if (!x_heard.empty() && x_random.one_in(8)) return play_wrong(*path);
    if (!x_heard.empty() && x_random.one_in(2)) return play_right(*path);
    if (x_random.one_in(3)) return begin_right(*path);
    attack(*path);
  }

  /// Sends the same packet repeatedly, and takes no answers.
  void flood(wire::Op op) {
    transport::Link* const path = link();
    if (!path) return;
    const wire::Segment segment{0x1000, 0x1234, 0};
    one_sided(*path, op, 0, {}, segment, nullptr, 0);
  }

  /// Returns true if canaries arrived or the victim wrote some, that is, if the victim read memory
  /// that it was not given.
  bool holds_canary() const { return x_canary_came || has_canary(x_loot.data(), x_loot.size()); }
  uint64_t packets_sent = 0, packets_heard = 0;

 private:
  struct Heard {
    wire::Op op;
    uint8_t flags;
    uint32_t index;
    uint16_t generation;
    wire::Segment segment;
    uint64_t length;
    transport::RemoteKey remote_key;
  };

  transport::Link* link() {
    auto found = x_transport.link_to(x_victim);
    return found ? *found : nullptr;
  }

  void on_packet(transport::Link&, const std::byte* header, const std::byte* payload,
                 size_t length) noexcept override {
    ++packets_heard;
    Heard heard{};
    wire::MessageHeader message;
    wire::OneSidedHeader one_sided;
    std::memcpy(&message, header, sizeof(message));
    std::memcpy(&one_sided, header, sizeof(one_sided));
    heard.op = message.op;
    heard.flags = message.flags;
    heard.index = message.index;
    heard.generation = message.generation;
    heard.segment = one_sided.segment;
    heard.length = message.op == wire::Op::rts || message.op == wire::Op::cts
                       ? message.length
                       : one_sided.segment.length;
    const bool has_key = message.op == wire::Op::rts || message.op == wire::Op::cts ||
                         message.op == wire::Op::grant ||
                         (message.op >= wire::Op::write && message.op <= wire::Op::read &&
                          message.flags & wire::kKeyed);
    if (has_key && length <= transport::RemoteKey::kMaxBytes) {
      heard.remote_key.size = uint8_t(length);
      std::memcpy(heard.remote_key.bytes, payload, length);
    } else if (has_canary(reinterpret_cast<const char*>(payload), length)) {
      x_canary_came = true;
    }
    x_heard.push_back(heard);
    x_known.push_back(heard);
    if (x_heard.size() > 256) x_heard.pop_front();
    if (x_known.size() > 64) x_known.pop_front();
  }
  void on_done(uint64_t, int) noexcept override {}
  void on_link_down(transport::Link&, int) noexcept override {}

  static bool has_canary(const char* bytes, size_t length) {
    static constexpr char kRow[] = {kCanary, kCanary, kCanary, kCanary, kCanary, kCanary};
    return ::memmem(bytes, length, kRow, sizeof(kRow)) != nullptr;
  }

  template <typename Header>
  void say(transport::Link& path, const Header& header, const void* payload, size_t length) {
    transport::Header encoded;
    static_assert(sizeof(header) == sizeof(encoded));
    std::memcpy(&encoded, &header, sizeof(encoded));
    const size_t room = std::max(transport::kAlwaysEager + 24, path.limits().eager);
    const iovec iov{const_cast<void*>(payload), std::min(length, room)};
    if (path.send(encoded, &iov, 1, iov.iov_len, transport::SendHint::none) == 0) ++packets_sent;
  }
  void control(transport::Link& path, wire::Op op, const Heard& about, int32_t status,
               uint64_t length, const transport::RemoteKey& remote_key, uint8_t flags = 0) {
    wire::ControlHeader header{};
    header.op = op;
    header.flags = flags;
    header.index = about.index;
    header.generation = about.generation;
    header.reply_index = uint32_t(x_random.below(4));
    header.reply_generation = uint16_t(x_random.below(4));
    header.status = status;
    header.length = length;
    say(path, header, remote_key.bytes, remote_key.size);
    // The victim's write that this grant permits may be answered before it begins.
    for (int i = 0; op == wire::Op::cts && meddle && i < 4; ++i) meddle(path, x_random);
  }
  /// Shares memory of this peer that the victim may access. It is searched for canaries.
  transport::RemoteKey shared(transport::Link& path, transport::Access access) {
    transport::RemoteKey remote_key;
    const iovec iov{x_loot.data(), x_loot.size()};
    if (path.share(&iov, 1, x_loot.size(), access, remote_key) != 0) {
      remote_key.size = 0;
      return remote_key;
    }
    x_shared.push_back(remote_key);
    if (x_shared.size() > 16) {
      (void)path.revoke(x_shared.front());
      x_shared.pop_front();
    }
    return remote_key;
  }

  // --- by the rules
  // -------------------------------------------------------------------------------

  void play_right(transport::Link& path) {
    const Heard heard = x_heard.front();
    x_heard.pop_front();
    switch (heard.op) {
      case wire::Op::rts:
        if (heard.remote_key.size) return control(path, wire::Op::fin, heard, 0, 0, {});
        return control(path, wire::Op::cts, heard, 0, std::min<uint64_t>(heard.length, 1 << 16),
                       shared(path, transport::Access::remote_write));
      case wire::Op::cts:
        return control(path, wire::Op::done, replied(heard), 0, 0, {});
      case wire::Op::read:
        if (heard.flags & wire::kKeyed) return control(path, wire::Op::fin, heard, 0, 0, {});
        return result(path, heard, heard.segment.length);
      case wire::Op::atomic:
        if (heard.flags & wire::kFetch) return result(path, heard, 8 * (heard.segment.length & 7));
        return control(path, wire::Op::fin, heard, 0, 0, {});
      case wire::Op::write:
        control(path, wire::Op::fin, heard, 0, 0, {});
        return grant(path, heard.segment);
      case wire::Op::eager:
        if (heard.flags & wire::kWantFin) return control(path, wire::Op::fin, heard, 0, 0, {});
        return;
      case wire::Op::revoke:
        return one_sided(path, wire::Op::revoked, 0, heard, heard.segment, nullptr, 0);
      default:
        return;
    }
  }
  /// Sends a valid answer that belongs to another operation.
  void play_wrong(transport::Link& path) {
    const Heard heard = x_heard.front();
    if (x_random.one_in(2)) x_heard.pop_front();  // otherwise, the packet is answered once more
    const uint64_t length = std::clamp<uint64_t>(heard.length, 1, 4096);
    switch (x_random.below(4)) {
      case 0:
        return control(path, wire::Op::fin, heard, any_status(), 0, {});
      case 1:
        return control(path, wire::Op::done, heard, any_status(), 0, {});
      case 2:
        return result(path, heard, length);
      default:
        return control(path, wire::Op::cts, heard, 0, length,
                       shared(path, transport::Access::remote_write));
    }
  }
  Heard replied(const Heard& cts) const {
    Heard delivery = cts;  // reply_index and reply_generation are in the place of the address
    delivery.generation = uint16_t(cts.segment.address);
    delivery.index = uint32_t(cts.segment.address >> 32);
    return delivery;
  }
  void result(transport::Link& path, const Heard& about, size_t length) {
    const auto bytes = plain(std::min<size_t>(length, 4096), 11);
    one_sided(path, wire::Op::result, 0, about, {}, bytes.data(), bytes.size());
  }
  void grant(transport::Link& path, const wire::Segment& segment) {
    const iovec iov{x_loot.data(), x_loot.size()};
    transport::RemoteKey memory;
    transport::RegionSharing* const sharing = path.optional().sharing;
    if (!sharing || sharing->share(iov, true, true, memory) != 0) return;
    x_regions.push_back(memory);
    if (x_regions.size() > 16) {
      sharing->revoke(x_regions.front());
      x_regions.pop_front();
    }
    one_sided(path, wire::Op::grant, wire::kGrantReads | wire::kGrantWrites, {},
              {segment.address, segment.key, x_loot.size()}, memory.bytes, memory.size);
  }
  void one_sided(transport::Link& path, wire::Op op, uint8_t flags, const Heard& about,
                 const wire::Segment& segment, const void* payload, size_t length) {
    const wire::OneSidedHeader header{op, flags, about.generation, about.index, segment};
    say(path, header, payload, length);
  }
  void begin_right(transport::Link& path) {
    const size_t length = x_random.of<size_t>({0, 1, 8, 64, 65, 700, 3000});
    const auto bytes = plain(length, x_random.below(50));
    if (x_random.one_in(2)) {  // sends a message
      const bool whole = length <= path.limits().eager && x_random.one_in(2);
      const auto memory = whole || x_random.one_in(2)
                              ? transport::RemoteKey{}
                              : shared(path, transport::Access::remote_read);
      const wire::MessageHeader header{whole ? wire::Op::eager : wire::Op::rts,
                                       uint8_t(wire::kTagged | (x_random.below(2) * 4)),
                                       uint16_t(x_random.next()),
                                       uint32_t(x_random.next()),
                                       tag(),
                                       0,
                                       whole ? length : x_random.below(x_loot.size())};
      if (whole && length > 1 && x_random.one_in(3)) return in_fragments(path, header, bytes);
      if (whole) return say(path, header, bytes.data(), length);
      return say(path, header, memory.bytes, memory.size);
    }
    if (told.empty()) return;
    wire::Segment segment = told[x_random.below(told.size())];
    segment.length = std::min<uint64_t>(length, segment.length);
    if (x_random.one_in(2))
      return one_sided(path, wire::Op::read, 0, any_id(), segment, nullptr, 0);
    one_sided(path, wire::Op::write, 0, any_id(), segment, bytes.data(), segment.length);
  }

  /// Sends a message in two fragments, and sometimes only the first.
  void in_fragments(transport::Link& path, wire::MessageHeader first,
                    const std::vector<char>& bytes) {
    const size_t begin = 1 + x_random.below(bytes.size() - 1);
    first.op = wire::Op::first_fragment;
    say(path, first, bytes.data(), begin);
    if (x_random.one_in(8)) return;
    wire::ControlHeader next = wire::control(wire::Op::fragment, {first.index, first.generation});
    next.length = begin;
    say(path, next, bytes.data() + begin, bytes.size() - begin);
  }

  // --- against them
  // -------------------------------------------------------------------------------

  uint64_t tag() { return uint64_t(1) << 40 | x_random.below(4); }

  Heard any_id() {
    Heard about{};
    if (!x_known.empty()) about = x_known[x_random.below(x_known.size())];
    if (x_random.one_in(4)) about = replied(about);
    switch (x_random.below(12)) {
      case 0:
        ++about.generation;
        break;
      case 1:
        ++about.index;
        break;
      case 2:
        about.index = uint32_t(x_random.below(8));
        about.generation = uint16_t(x_random.below(4));
        break;
      case 3:
        about.index = uint32_t(x_random.next());
        break;
      default:
        break;
    }
    return about;
  }
  int32_t any_status() {
    return x_random.of<int32_t>({0, 0, 0, -FI_EBUSY, -FI_EOPNOTSUPP, -FI_EAGAIN, -FI_EACCES, 1, 2,
                                 3, -FI_ENOMEM, INT32_MIN, INT32_MAX, -4096});
  }
  uint64_t any_length(const Heard& about) {
    const uint64_t seen = about.length;
    return x_random.of<uint64_t>({0, 1, 8, 64, seen, seen, seen, seen + 1, seen - 1, 4096, 1 << 16,
                                  (1 << 16) + 1, uint64_t(1) << 40, UINT64_MAX});
  }
  wire::Segment any_segment(const Heard& about) {
    wire::Segment segment = about.segment;
    if (!told.empty() && !x_random.one_in(4)) segment = told[x_random.below(told.size())];
    segment.address += x_random.of<uint64_t>({0, 0, 0, 1, 7, 64, uint64_t(-1), uint64_t(-64)});
    segment.key ^= x_random.of<uint64_t>({0, 0, 0, 0, 1, uint64_t(1) << 63});
    segment.length = any_length(about);
    return segment;
  }
  transport::RemoteKey any_key(transport::Link& path) {
    transport::RemoteKey remote_key;
    switch (x_random.below(5)) {
      case 0:
        if (!x_known.empty()) remote_key = x_known[x_random.below(x_known.size())].remote_key;
        break;
      case 1:
        remote_key.size = uint8_t(x_random.below(transport::RemoteKey::kMaxBytes + 1));
        for (std::byte& byte : remote_key.bytes) byte = std::byte(x_random.next());
        break;
      case 2:
        break;
      default:
        remote_key = shared(path, x_random.one_in(2) ? transport::Access::remote_read
                                                     : transport::Access::remote_write);
        break;
    }
    if (remote_key.size && x_random.one_in(6))  // a slightly wrong key
      remote_key.bytes[x_random.below(remote_key.size)] ^= std::byte(1 << x_random.below(8));
    return remote_key;
  }

  void attack(transport::Link& path) {
    const auto op = wire::Op(x_random.one_in(400) ? x_random.below(256) : 1 + x_random.below(16));
    const Heard about = any_id();
    if (op == wire::Op::eager || op == wire::Op::rts || op == wire::Op::first_fragment)
      return attack_message(path, op, about);
    if (op == wire::Op::fragment) return attack_fragment(path, about);
    if (op >= wire::Op::cts && op <= wire::Op::budget)
      return control(
          path, op, about, any_status(), any_length(about),
          op == wire::Op::cts || x_random.one_in(16) ? any_key(path) : transport::RemoteKey{},
          uint8_t(x_random.one_in(4) ? wire::kFailed : 0));
    attack_one_sided(path, op, about);
  }
  void attack_message(transport::Link& path, wire::Op op, const Heard& about) {
    const auto remote_key = any_key(path);
    const auto bytes = plain(x_random.below(200), 13);
    const bool eager = op != wire::Op::rts;
    const uint64_t length = eager && !x_random.one_in(8) ? bytes.size() : any_length(about);
    const wire::MessageHeader header{
        op,    uint8_t(x_random.next()), about.generation, about.index, tag(), x_random.next(),
        length};
    if (eager) return say(path, header, bytes.data(), bytes.size());
    say(path, header, remote_key.bytes, remote_key.size);
  }
  void attack_fragment(transport::Link& path, const Heard& about) {
    const auto bytes = plain(x_random.below(200), 17);
    wire::ControlHeader header = wire::control(wire::Op::fragment, {about.index, about.generation});
    header.length = any_length(about);
    say(path, header, bytes.data(), bytes.size());
  }
  void attack_one_sided(transport::Link& path, wire::Op op, const Heard& about) {
    wire::Segment segment = any_segment(about);
    uint8_t flags = x_random.one_in(4) ? uint8_t(x_random.next()) : uint8_t(0);
    std::vector<char> payload = plain(x_random.of<size_t>({0, 0, 1, 8, 24, 48, 64, 72, 500}), 7);
    if (op == wire::Op::atomic) {
      const wire::AtomicWord word{uint32_t(x_random.of<size_t>({1, 1, 8, 512, 513, 0})),
                                  uint8_t(x_random.below(20)), uint8_t(x_random.below(17)), 0};
      std::memcpy(&segment.length, &word, sizeof(word));
      flags = uint8_t(x_random.of<int>({0, wire::kLast, wire::kFetch, wire::kFetch | wire::kLast,
                                        wire::kCompare | wire::kFetch, wire::kKeyed}));
    } else if (op == wire::Op::segments && !x_random.one_in(4)) {
      payload.resize(24 * (1 + x_random.below(3)));
      for (size_t at = 0; at < payload.size(); at += 24) {
        const wire::Segment further = any_segment(about);
        std::memcpy(&payload[at], &further, sizeof(further));
      }
    } else if ((op == wire::Op::write || op == wire::Op::read) && x_random.one_in(2)) {
      const auto remote_key = any_key(path);
      flags = wire::kKeyed;
      payload.assign(reinterpret_cast<const char*>(remote_key.bytes),
                     reinterpret_cast<const char*>(remote_key.bytes) + remote_key.size);
    } else if (op == wire::Op::write && !x_random.one_in(4)) {
      segment.length = payload.size();
      flags = 0;
    } else if (op >= wire::Op::grant && op <= wire::Op::revoked && !x_random.one_in(4)) {
      if (op == wire::Op::grant) return grant(path, about.segment);
      payload.clear();
    }
    one_sided(path, op, flags, about, segment, payload.data(), payload.size());
  }

  transport::Transport& x_transport;
  const util::SocketAddress x_victim;
  Random& x_random;
  std::vector<char> x_loot;
  std::deque<Heard> x_heard;  ///< packets not answered yet
  std::deque<Heard> x_known;  ///< ids and remote keys to misuse
  std::deque<transport::RemoteKey> x_shared, x_regions;
  bool x_canary_came = false;
};

}  // namespace erdma::fuzz

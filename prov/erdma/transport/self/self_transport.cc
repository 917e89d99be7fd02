#include "transport/self/self_transport.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "transport/deferred_dones.h"
#include "transport/guarded.h"
#include "transport/lack_of_memory.h"

namespace erdma::transport::self {
namespace {

constexpr size_t kEagerBytes = 16384;
constexpr size_t kMaxQueued = 256;

/// The contents of a remote key of this transport. It never leaves the process.
struct Memory {
  KeyHead head{KeyKind::own};
  size_t length = 0;
  iovec iov[kMaxIov]{};
};

void copy(const iovec* to, size_t to_count, const iovec* from, size_t from_count,
          size_t length) noexcept {
  size_t done = 0;
  for (size_t i = 0; i < to_count && done < length; ++i) {
    const size_t part = std::min(to[i].iov_len, length - done);
    done += hmem::gather(to[i].iov_base, from, from_count, done, part);
  }
}

}  // namespace

class SelfTransport::Loop final : public Link {
 public:
  Loop(const util::SocketAddress& name, bool& idle) : Link(name), x_idle(idle) { x_idle = true; }

  LinkReport report() noexcept override { return {"self", "up"}; }

  int send(const Header& header, const iovec* payload, size_t count, size_t length,
           SendHint) noexcept override try {
    x_idle = false;
    if (x_down || x_packets.size() >= kMaxQueued) return -FI_EAGAIN;
    std::vector<std::byte> packet(kHeaderBytes + length);
    std::memcpy(packet.data(), header.bytes, kHeaderBytes);
    hmem::gather(packet.data() + kHeaderBytes, payload, count, 0, length);
    x_packets.push_back(std::move(packet));
    return 0;
  } catch (const std::bad_alloc&) {
    return x_lack.try_later();
  }

  LinkLimits limits() const noexcept override { return {kEagerBytes, true}; }

  int share(const iovec* memory, size_t count, size_t length, Access,
            RemoteKey& remote_key) noexcept override {
    if (count > kMaxIov) return -FI_EINVAL;
    Memory shared;
    std::copy_n(memory, count, shared.iov);
    shared.head.count = uint8_t(count);
    shared.length = length;
    remote_key.put(shared);
    return 0;
  }
  int revoke(const RemoteKey&) noexcept override { return 0; }

  // If there is no memory to note the end (-FI_EAGAIN), the caller repeats the copy of the same
  // bytes.
  int get(const RemoteRange& remote, const iovec* local, size_t count,
          uint64_t token) noexcept override {
    Memory from;
    if (!decode(remote, from)) return -FI_EINVAL;
    if (x_down) return -FI_EAGAIN;
    copy(local, count, from.iov, from.head.count, remote.length);
    return note_done(token);
  }
  int put(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
          bool) noexcept override {
    Memory to;
    if (!decode(remote, to)) return -FI_EINVAL;
    if (x_down) return -FI_EAGAIN;
    copy(to.iov, to.head.count, local, count, remote.length);
    return note_done(token);
  }
  void fail(int status) noexcept override {
    x_idle = false;
    if (!x_down) x_down = status;
  }

  /// Delivers the packets that were waiting at the start; the upcalls may add more.
  int poll(Sink& sink) noexcept {
    const size_t waiting = x_packets.size();
    size_t taken = 0;
    x_lack.forget();
    if (x_down) return go_down(sink);
    guarded("taking a packet", [&] {
      for (; taken < waiting && !x_down; ++taken) {
        const std::vector<std::byte>& packet = x_packets.front();
        sink.on_packet(*this, packet.data(), packet.data() + kHeaderBytes,
                       packet.size() - kHeaderBytes);
        x_packets.pop_front();
      }
    });
    const int steps = int(taken) + x_dones.report(sink);
    update_idle();
    return steps;
  }

 private:
  void update_idle() noexcept {
    x_idle = x_packets.empty() && x_dones.empty() && !x_lack.felt() && !x_down;
  }
  /// Nothing is added before on_link_down(), also not by on_done(), as the link takes nothing now.
  int go_down(Sink& sink) noexcept {
    x_packets.clear();
    const int steps = x_dones.report(sink);
    sink.on_link_down(*this, std::exchange(x_down, 0));
    update_idle();
    return steps + 1;
  }
  int note_done(uint64_t token) noexcept {
    x_idle = false;
    return x_dones.add(token, 0) ? x_lack.try_later() : 0;
  }
  static bool decode(const RemoteRange& remote, Memory& memory) noexcept {
    if (remote.memory.kind() != KeyKind::own || remote.memory.size != sizeof(memory)) return false;
    std::memcpy(&memory, remote.memory.bytes, sizeof(memory));
    return memory.head.count <= kMaxIov && remote.length <= memory.length;
  }

  bool& x_idle;  ///< the transport's: poll() has nothing to do
  std::deque<std::vector<std::byte>> x_packets;
  DeferredDones x_dones;
  int x_down = 0;  ///< the first status, which the next poll() reports; 0: the link is up
  LackOfMemory x_lack;
};

SelfTransport::SelfTransport(const util::SocketAddress& name)
    : x_loop(std::make_unique<Loop>(name, x_quiet)) {}

SelfTransport::~SelfTransport() = default;

int SelfTransport::poll(Sink& sink) noexcept {
  return x_quiet ? 0 : x_loop->poll(sink);
}

util::Result<Link*> SelfTransport::link_to(const util::SocketAddress& address) noexcept {
  if (!(address == x_loop->address())) return -FI_EHOSTUNREACH;
  return static_cast<Link*>(x_loop.get());
}

bool SelfTransport::arm() noexcept {
  return x_quiet;
}

}  // namespace erdma::transport::self

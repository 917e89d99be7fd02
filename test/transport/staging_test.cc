// Tests how long the copies live that stand for device memory.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>

#include <rdma/fi_errno.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "hmem/device_memory.h"
#include "libcheck.h"
#include "transport/staging/staging_transport.h"

namespace {

using namespace erdma;
using transport::Access;
using transport::RemoteKey;

/// The allocator maps blocks of this size singly, and unmaps each when it is freed.
constexpr size_t kLength = size_t(64) << 20;

/// The allocator of AddressSanitizer keeps freed blocks mapped for a while, but marks them.
bool is_allocated(std::byte* memory) {
#if defined(__SANITIZE_ADDRESS__)
  if (__asan_address_is_poisoned(memory)) return false;
#endif
  const auto page = reinterpret_cast<uintptr_t>(memory) & ~uintptr_t(getpagesize() - 1);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a page's address is a number
  return msync(reinterpret_cast<void*>(page), 1, MS_ASYNC) == 0;
}

/// Records the memory that is shared with the peer.
class Wire final : public transport::Link {
 public:
  Wire() noexcept : Link(util::SocketAddress()) {}
  int share(const iovec* memory, size_t, size_t length, Access,
            RemoteKey& remote_key) noexcept override {
    shared = {memory[0].iov_base, length};
    remote_key.put(transport::KeyHead{transport::KeyKind::registered, 1, 0, 1});
    return 0;
  }
  int revoke(const RemoteKey&) noexcept override {
    ++revoked;
    return 0;
  }
  int send(const transport::Header&, const iovec*, size_t, size_t,
           transport::SendHint) noexcept override {
    return -FI_ENOSYS;
  }
  transport::LinkLimits limits() const noexcept override { return {64, false, 32}; }
  int get(const transport::RemoteRange&, const iovec*, size_t, uint64_t) noexcept override {
    return -FI_ENOSYS;
  }
  int put(const transport::RemoteRange&, const iovec*, size_t, uint64_t, bool) noexcept override {
    return -FI_ENOSYS;
  }
  void fail(int) noexcept override {}

  iovec shared{};
  int revoked = 0;
};

/// Until shutdown() the peer's requests arrive: one accesses the last of the shared bytes.
class Nic final : public transport::Transport {
 public:
  explicit Nic(bool& reached) noexcept : x_reached(reached) {}
  int poll(transport::Sink&) noexcept override { return 0; }
  util::Result<transport::Link*> link_to(const util::SocketAddress&) noexcept override {
    return static_cast<transport::Link*>(&wire);
  }
  int wait_fd() const noexcept override { return -1; }
  bool arm() noexcept override { return true; }
  void disarm() noexcept override {}
  void shutdown() noexcept override {
    auto* const last = static_cast<std::byte*>(wire.shared.iov_base) + wire.shared.iov_len - 1;
    x_reached = is_allocated(last);
    if (x_reached) *last = std::byte{1};
  }
  Wire wire;

 private:
  bool& x_reached;
};

/// All memory is a device's. No bytes are copied, so no page of a copy is touched.
struct Devices final : hmem::DeviceMemory {
  bool is_device(const void*) const noexcept override { return true; }
  int from_device(void*, const void*, size_t) noexcept override { return 0; }
  int to_device(void*, const void*, size_t) noexcept override {
    ++copies;
    return 0;
  }
  int copies = 0;
};

/// Device memory that is shared with a peer, which `ends` early. The queue pairs end only in
/// shutdown(), and the cached registration keeps its key.
struct Shared {
  Shared(Access access, transport::Early ends) {
    auto inner = std::make_unique<Nic>(reached);
    Wire& wire = inner->wire;
    transport::staging::StagingTransport transport(std::move(inner), devices);
    transport::Link& link = **transport.link_to({});
    char on_device = 0;
    const iovec memory{&on_device, kLength};
    RemoteKey key;
    ck_assert_int_eq(link.share(&memory, 1, kLength, access, key), 0);
    link.revoke_early(key, ends);
    ck_assert_int_eq(wire.revoked, 1);
    transport.shutdown();
  }

  Devices devices;
  bool reached = false;  ///< shutdown() still found the copy of the memory
};

/// A link of device memory has no choice to make, so nobody shall ask it for one.
TEST(a_link_of_device_memory_is_not_asked_about_packets) {
  bool reached = false;
  Devices devices;
  transport::staging::StagingTransport transport(std::make_unique<Nic>(reached), devices);
  const transport::LinkLimits limits = (**transport.link_to({})).limits();
  ck_assert_uint_eq(limits.eager, 64);
  ck_assert_uint_eq(limits.asks_above, SIZE_MAX);
}

}  // namespace

TEST(what_a_peer_may_access_until_the_end_is_not_freed_earlier, 2) {
  const Shared shared(_i ? Access::remote_write : Access::remote_read, transport::Early::closing);
  ck_assert(shared.reached);
  ck_assert_int_eq(shared.devices.copies, 0);  // the operation has no success to report
}

/// The peer does not access what it refused.
TEST(memory_that_a_peer_refused_is_no_longer_shared) {
  ck_assert(!Shared(Access::remote_read, transport::Early::refused).reached);
}

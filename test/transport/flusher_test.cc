// Tests how many READs flush a NIC's writes to device memory, and which transfers each READ
// flushes.
#include "transport/staging/flusher.h"

#include <map>
#include <memory>
#include <vector>

#include <rdma/fi_errno.h>

#include "hmem/device_memory.h"
#include "libcheck.h"
#include "transport/staging/staging_transport.h"

namespace {

using namespace erdma;
using transport::FlushTarget;
using transport::RemoteKey;
using transport::staging::Flusher;

/// The link of an endpoint to itself. Records the requests.
class Loop final : public transport::Link {
 public:
  Loop() noexcept : Link(util::SocketAddress()) {}
  int get(const transport::RemoteRange& remote, const iovec* local, size_t count,
          uint64_t token) noexcept override {
    if (answer != 0) return answer;
    ck_assert_uint_eq(remote.length, 1);
    ck_assert_uint_eq(local[0].iov_len * count, 1);
    ck_assert_uint_eq(token, Flusher::kToken);
    ++reads;
    return 0;
  }
  int send(const transport::Header&, const iovec*, size_t, size_t,
           transport::SendHint) noexcept override {
    return -FI_ENOSYS;
  }
  transport::LinkLimits limits() const noexcept override { return {64, false}; }
  int share(const iovec*, size_t, size_t, transport::Access, RemoteKey&) noexcept override {
    return -FI_ENOSYS;
  }
  int revoke(const RemoteKey&) noexcept override { return 0; }
  int put(const transport::RemoteRange&, const iovec*, size_t, uint64_t, bool) noexcept override {
    return -FI_ENOSYS;
  }
  void fail(int) noexcept override {}
  bool was_up() const noexcept override { return up_before; }

  bool up_before = true;
  int answer = 0;
  int reads = 0;
};

class Nic final : public transport::Transport {
 public:
  int poll(transport::Sink& sink) noexcept override {
    if (broken) sink.on_link_down(loop, std::exchange(broken, 0));
    return 0;
  }
  util::Result<transport::Link*> link_to(const util::SocketAddress&) noexcept override {
    if (missing) return missing;
    return static_cast<transport::Link*>(&loop);
  }
  int wait_fd() const noexcept override { return -1; }
  bool arm() noexcept override { return true; }
  void disarm() noexcept override {}
  void shutdown() noexcept override {}
  Loop loop;
  int broken = 0;   ///< status with which the loop goes down
  int missing = 0;  ///< why there is no loop
};

/// Addresses below 100 need no flush. Above, each hundred bytes are one registration.
class Memory final : public transport::DirectSource {
 public:
  bool can_share(const iovec*, size_t, transport::Access) noexcept override { return true; }
  bool can_move(const iovec*, size_t, const RemoteKey&, bool) noexcept override { return true; }
  bool may_be_written(const iovec*, size_t) noexcept override { return true; }
  FlushTarget acquire_flush(const iovec& memory) noexcept override {
    const auto address = reinterpret_cast<uintptr_t>(memory.iov_base);
    FlushTarget target;
    target.status = address == refused ? -FI_ENOMEM : refusal;
    if (target.status || address < 100) return target;
    target.held = reinterpret_cast<void*>(address / 100);
    ++held;
    return target;
  }
  void release_flush(const FlushTarget& target) noexcept override {
    if (target.held) --held;
  }
  int held = 0;
  int refusal = 0;
  uintptr_t refused = 0;  ///< this address alone cannot be named
};

class Told final : public transport::Sink {
 public:
  void on_packet(transport::Link&, const std::byte*, const std::byte*, size_t) noexcept override {}
  void on_done(uint64_t token, int status) noexcept override {
    ck_assert(!ended.contains(token));
    ended[token] = status;
  }
  void on_link_down(transport::Link&, int) noexcept override {}
  std::map<uint64_t, int> ended;
};

struct Scene {
  int add(std::vector<uintptr_t> addresses, uint64_t token) {
    std::vector<iovec> pieces;
    for (const uintptr_t address : addresses)
      pieces.push_back({reinterpret_cast<void*>(address), 8});
    return flusher.add(pieces.data(), pieces.size(), token);
  }
  Nic nic;
  Memory memory;
  Told told;
  Flusher flusher{nic, &memory, {}};
};

}  // namespace

TEST(memory_that_needs_no_flush_is_settled) {
  Scene scene;
  ck_assert_int_eq(scene.add({8, 16}, 1), 0);
  ck_assert(!scene.flusher.pending());
  ck_assert_int_eq(scene.flusher.poll(scene.told), 0);
  ck_assert_int_eq(scene.nic.loop.reads, 0);
}

TEST(memory_that_cannot_be_named_is_not_settled) {
  Scene scene;
  scene.memory.refusal = -FI_ENOMEM;
  ck_assert_int_eq(scene.add({100}, 1), -FI_ENOMEM);
  ck_assert(!scene.flusher.pending());
}

/// Memory that stays held cannot be freed.
TEST(pieces_before_one_that_cannot_be_named_are_let_go, 2) {
  Scene scene;
  scene.memory.refused = 400;
  if (_i) ck_assert_int_eq(scene.add({100}, 1), transport::kFlushing);
  ck_assert_int_eq(scene.add({150, 200, 300, 400}, 2), -FI_ENOMEM);
  ck_assert_int_eq(scene.memory.held, _i);  // that of the earlier call
  ck_assert(scene.flusher.pending() == bool(_i));
  if (!_i) return;
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.nic.loop.reads, 1);
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert_uint_eq(scene.told.ended.size(), 1);
  ck_assert_int_eq(scene.told.ended.at(1), 0);
  ck_assert_int_eq(scene.memory.held, 0);
}

TEST(one_read_flushes_all_of_a_registration) {
  Scene scene;
  for (uint64_t token = 1; token <= 50; ++token)
    ck_assert_int_eq(scene.add({100 + token, 150, 8}, token), transport::kFlushing);
  ck_assert_int_eq(scene.add({300}, 51), transport::kFlushing);
  ck_assert(scene.flusher.pending());
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.nic.loop.reads, 2);
  ck_assert(!scene.flusher.pending());
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert(scene.told.ended.empty());  // the READ of the other registration is under way
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert_uint_eq(scene.told.ended.size(), 51);
  for (const auto& [token, status] : scene.told.ended) ck_assert_int_eq(status, 0);
  ck_assert_int_eq(scene.memory.held, 0);
}

/// A READ under way may have passed writes that were made after it was posted.
TEST(what_comes_later_gets_a_read_of_its_own) {
  Scene scene;
  ck_assert_int_eq(scene.add({100}, 1), transport::kFlushing);
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.add({100}, 2), transport::kFlushing);
  ck_assert(scene.flusher.pending());
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert_uint_eq(scene.told.ended.size(), 1);
  ck_assert(scene.told.ended.contains(1));
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.nic.loop.reads, 2);
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert(scene.told.ended.contains(2));
  ck_assert_int_eq(scene.memory.held, 0);
}

TEST(without_a_way_to_itself_a_flush_fails) {
  Scene scene;
  ck_assert_int_eq(scene.add({100}, 1), transport::kFlushing);
  scene.nic.missing = -FI_ENOMEM;
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.told.ended.at(1), -FI_ENOMEM);
  ck_assert_int_eq(scene.memory.held, 0);
}

TEST(read_that_finds_no_room_is_posted_later) {
  Scene scene;
  scene.nic.loop.answer = -FI_EAGAIN;
  ck_assert_int_eq(scene.add({100}, 1), transport::kFlushing);
  for (int i = 0; i < 3; ++i) scene.flusher.poll(scene.told);
  ck_assert(scene.flusher.pending());
  scene.nic.loop.answer = 0;
  scene.flusher.poll(scene.told);
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.told.ended.at(1), 0);
}

/// The connection may have ended for a reason of its own.
TEST(reads_that_failed_once_are_posted_on_another_connection, 2) {
  Scene scene;
  const transport::Link& loop = scene.nic.loop;
  ck_assert_int_eq(scene.add({100}, 1), transport::kFlushing);
  ck_assert_int_eq(scene.add({200}, 2), transport::kFlushing);
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.nic.loop.reads, 2);
  scene.flusher.on_read(0);
  scene.flusher.on_read(-FI_ECONNRESET);
  scene.nic.loop.answer = -FI_EAGAIN;  // the connection is ending
  if (_i) scene.flusher.poll(scene.told);
  scene.flusher.on_link_down(loop, -FI_ECONNRESET);
  scene.flusher.poll(scene.told);
  ck_assert(scene.told.ended.empty());
  ck_assert(scene.flusher.pending());
  ck_assert_int_eq(scene.memory.held, 2);
  scene.nic.loop.answer = 0;
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.nic.loop.reads, 4);  // that of a READ which succeeded, too
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert(scene.told.ended.empty());
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert_uint_eq(scene.told.ended.size(), 2);
  for (const auto& [token, status] : scene.told.ended) ck_assert_int_eq(status, 0);
  ck_assert_int_eq(scene.memory.held, 0);
}

/// The connection ended while the READs waited for room.
TEST(reads_that_were_not_posted_before_the_connection_ended_are_posted_on_another) {
  Scene scene;
  scene.nic.loop.answer = -FI_EAGAIN;
  ck_assert_int_eq(scene.add({100}, 1), transport::kFlushing);
  scene.flusher.poll(scene.told);
  scene.flusher.on_link_down(scene.nic.loop, -FI_ETIMEDOUT);
  scene.nic.loop.answer = 0;
  scene.flusher.poll(scene.told);
  scene.flusher.poll(scene.told);
  ck_assert(scene.told.ended.empty());
  ck_assert_int_eq(scene.nic.loop.reads, 1);
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.told.ended.at(1), 0);
}

/// `_i`: the new connection does not come up, or breaks as well.
TEST(reads_that_fail_again_are_everyones_failure, 2) {
  Scene scene;
  const transport::Link& loop = scene.nic.loop;
  ck_assert_int_eq(scene.add({100}, 1), transport::kFlushing);
  ck_assert_int_eq(scene.add({200}, 2), transport::kFlushing);
  scene.flusher.poll(scene.told);
  scene.flusher.on_read(-FI_ECONNRESET);
  scene.flusher.on_read(-FI_ECONNRESET);
  scene.flusher.on_link_down(loop, -FI_ECONNRESET);
  if (_i) scene.nic.loop.answer = -FI_EAGAIN;
  for (int i = 0; i < 2; ++i) scene.flusher.poll(scene.told);
  ck_assert(scene.told.ended.empty());
  if (!_i) {
    scene.flusher.on_read(0);
    scene.flusher.on_read(-FI_EIO);
  }
  scene.flusher.on_link_down(loop, -FI_EIO);
  scene.flusher.poll(scene.told);
  ck_assert_uint_eq(scene.told.ended.size(), 2);
  for (const auto& [token, status] : scene.told.ended) ck_assert_int_eq(status, -FI_EIO);
  ck_assert_int_eq(scene.memory.held, 0);
  // The next round begins with a new connection, and may repeat its READs as well.
  scene.nic.loop.answer = 0;
  ck_assert_int_eq(scene.add({100}, 3), transport::kFlushing);
  scene.flusher.poll(scene.told);
  scene.flusher.on_read(-FI_EIO);
  for (int i = 0; i < 2; ++i) scene.flusher.poll(scene.told);
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.told.ended.at(3), 0);
}

TEST(read_that_is_refused_is_everyones_failure) {
  Scene scene;
  ck_assert_int_eq(scene.add({100}, 1), transport::kFlushing);
  ck_assert_int_eq(scene.add({200}, 2), transport::kFlushing);
  scene.nic.loop.answer = -FI_ESHUTDOWN;
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.told.ended.at(1), -FI_ESHUTDOWN);
  ck_assert_int_eq(scene.told.ended.at(2), -FI_ESHUTDOWN);
  scene.nic.loop.answer = 0;
  ck_assert_int_eq(scene.add({100}, 3), transport::kFlushing);
  scene.flusher.poll(scene.told);
  scene.flusher.on_read(0);
  scene.flusher.poll(scene.told);
  ck_assert_int_eq(scene.told.ended.at(3), 0);
}

struct HostOnly final : hmem::DeviceMemory {
  bool is_device(const void*) const noexcept override { return false; }
  int from_device(void*, const void*, size_t) noexcept override { return -FI_ENOSYS; }
  int to_device(void*, const void*, size_t) noexcept override { return -FI_ENOSYS; }
};

/// A NIC that gets no connection to itself reports the link as down. The link never took the READ.
TEST(what_waits_for_a_link_that_never_comes_up_ends_with_it, 2) {
  Memory memory;
  HostOnly host;
  Told told;
  auto owned = std::make_unique<Nic>();
  Nic& nic = *owned;
  transport::staging::StagingTransport staging(std::move(owned), host, &memory);
  transport::Link& link = **staging.link_to(util::SocketAddress());
  if (_i == 1) nic.loop.user = nullptr;  // the application does not use the link
  nic.loop.answer = -FI_EAGAIN;
  nic.loop.up_before = false;
  const iovec piece{reinterpret_cast<void*>(100), 8}, later{reinterpret_cast<void*>(200), 8};
  ck_assert_int_eq(link.flush(&piece, 1, 1), transport::kFlushing);
  staging.poll(told);
  ck_assert_int_eq(link.flush(&later, 1, 2), transport::kFlushing);
  nic.broken = -FI_ECONNREFUSED;
  staging.poll(told);
  ck_assert_int_eq(told.ended.at(1), -FI_ECONNREFUSED);
  ck_assert_uint_eq(told.ended.size(), 1);
  // The next round posts a READ of its own, which fails as well.
  staging.poll(told);
  ck_assert_uint_eq(told.ended.size(), 1);
  nic.broken = -FI_ETIMEDOUT;
  staging.poll(told);
  ck_assert_int_eq(told.ended.at(2), -FI_ETIMEDOUT);
  ck_assert_int_eq(memory.held, 0);
  nic.loop.answer = 0;
  ck_assert_int_eq(link.flush(&piece, 1, 3), transport::kFlushing);
  staging.poll(told);
  ck_assert_int_eq(nic.loop.reads, 1);
}

TEST(memory_is_let_go_at_the_end) {
  Memory memory;
  Nic nic;
  Told told;
  {
    Flusher flusher(nic, &memory, {});
    const iovec piece{reinterpret_cast<void*>(100), 8}, later{reinterpret_cast<void*>(200), 8};
    ck_assert_int_eq(flusher.add(&piece, 1, 1), transport::kFlushing);
    flusher.poll(told);
    ck_assert_int_eq(flusher.add(&later, 1, 2), transport::kFlushing);
    ck_assert_int_eq(memory.held, 2);
  }
  ck_assert_int_eq(memory.held, 0);
}

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <utility>
#include <vector>

#include "libcheck.h"
#include "transport/verbs_rig.h"

/// Tests how long two endpoints on a fake NIC hold registrations, the completion of a write, and
/// descriptors.
namespace erdma::test {
namespace {

using transport::Access;
using transport::RemoteKey;

/// Shares memory of a with b and returns its remote key.
RemoteKey shared_at_a(Two& two, const iovec* iov, size_t count, size_t length, Access access) {
  RemoteKey remote_key;
  ck_assert_int_eq(two.pair.a_to_b().share(iov, count, length, access, remote_key), 0);
  return remote_key;
}

/// Either all pieces are registered or none, at both ends.
TEST(pieces_that_were_registered_before_one_was_refused_are_given_back) {
  Two two;
  two.meet();
  std::vector<std::byte> bytes(300'000), others(300'000);
  const iovec pieces[] = {{bytes.data(), 100'000},
                          {bytes.data() + 100'000, 100'000},
                          {bytes.data() + 200'000, 100'000}};
  const iovec whole{others.data(), others.size()};
  for (int registered = 0; registered < 3; ++registered) {
    two.rig.cache.refuse_after = registered;
    const RemoteKey bounced = shared_at_a(two, pieces, 3, 300'000, Access::remote_read);
    ck_assert_int_eq(two.rig.cache.held, 0);
    two.pair.a_to_b().revoke(bounced);
    two.rig.cache.refuse_after = -1;
    const RemoteKey remote_key = shared_at_a(two, &whole, 1, 300'000, Access::remote_read);
    two.rig.cache.refuse_after = registered;
    const size_t dones = two.b().sink->dones.size();
    ck_assert_int_eq(two.pair.b_to_a().get({remote_key, 0, 300'000}, pieces, 3, 1), 0);
    ck_assert_int_eq(two.rig.cache.held, 1);  // the shared memory
    ck_assert(two.pair.poll_until([&] { return two.b().sink->dones.size() > dones; }));
    two.rig.cache.refuse_after = -1;
    two.pair.a_to_b().revoke(remote_key);
    ck_assert_int_eq(two.rig.cache.held, 0);
  }
}

/// A READ after the write shows that the bytes are placed. If it fails, the write fails.
TEST(write_that_is_to_be_placed_ends_with_a_read) {
  Two two;
  two.meet();
  std::vector<std::byte> there(300'001), here(300'001);
  auto memory = two.pair.a_to_b().optional().registrar->open({there.data(), there.size()}, nullptr,
                                                             true, true);
  RemoteKey remote_key;
  (*memory)->describe(remote_key);
  for (const size_t size : {size_t{8}, size_t{4096}, here.size()}) {
    const iovec local{here.data(), size};
    for (const bool until_placed : {false, true}) {
      const unsigned long reads = two.rig.nic.reads;
      const size_t dones = two.b().sink->dones.size();
      ck_assert_int_eq(two.pair.b_to_a().put({remote_key, 0, size}, &local, 1, 1, until_placed), 0);
      ck_assert(two.pair.poll_until([&] { return two.b().sink->dones.size() > dones; }));
      ck_assert_int_eq(two.b().sink->dones.back().status, 0);
      ck_assert_uint_eq(two.rig.nic.reads - reads, until_placed);
    }
  }
  const iovec local{here.data(), 8};
  const size_t dones = two.b().sink->dones.size();
  two.rig.nic.fail_send = 1;
  ck_assert_int_eq(two.pair.b_to_a().put({remote_key, 0, 8}, &local, 1, 1, true), 0);
  ck_assert(two.until([&] { return two.b().sink->dones.size() > dones; }));
  ck_assert_int_lt(two.b().sink->dones.back().status, 0);
}

/// Returns true if the endpoint's descriptor becomes readable with this one.
bool watches(const verbs::VerbsTransport& transport, int fd) {
  epoll_event event{EPOLLIN, {}};
  return epoll_ctl(transport.wait_fd(), EPOLL_CTL_MOD, fd, &event) == 0;
}

/// The driver was removed: the channel stays readable for ever, which must not keep the process
/// awake.
TEST(an_endpoint_that_sleeps_forgets_a_completion_channel_that_is_broken, 3) {
  constexpr int kErrors[] = {EIO, EAGAIN, EINTR};
  Two two;
  two.meet();
  verbs::VerbsTransport& transport = Rig::transport(two.b());
  while (!transport.arm()) two.b().poll();
  const int channel = transport.resources().queues.channel_fd();
  ck_assert(watches(transport, channel));
  ck_assert(!eventfd_write(channel, 1));
  two.rig.nic.refuse_events = kErrors[_i];
  for (int i = 0; i < 2; ++i) {
    ck_assert_int_eq(watches(transport, channel), i == 0 || kErrors[_i] != EIO);
    transport.disarm();
    while (!transport.arm()) two.b().poll();
  }
}

/// The next connection uses another queue. An endpoint that sleeps does not wait for the broken
/// one.
TEST(a_completion_queue_that_is_broken_costs_only_its_own_connections, 2) {
  const bool while_connecting = _i;
  Two two;
  two.meet();
  verbs::VerbsTransport& transport = Rig::transport(two.a());
  const auto& ends = two.a().sink->downs;
  const ibv_cq* const queue = transport.resources().queues.at(0);
  if (while_connecting) {
    Side other;
    ck_assert(two.rig.open(other, {}, &two.rig.clock));
    transport::Link& link = **other.transport->link_to(two.a().name);
    ck_assert_int_eq(link.send(numbered(9), nullptr, 0, 0, transport::SendHint::none), -FI_EAGAIN);
    two.rig.nic.broken_queues.insert(queue);
    ck_assert(two.until([&] { return two.a().sink->downs.size() == 2; }));
    ck_assert_int_eq(ends[1].status, -FI_EIO);
    other.owned.reset();
  } else {
    two.rig.nic.broken_queues.insert(queue);
    ck_assert(two.until([&] { return !ends.empty(); }));
  }
  ck_assert_int_eq(ends[0].status, -FI_EIO);
  ck_assert(two.until([&] { return two.b().sink->downs.size() == 1; }));
  const size_t downs = ends.size();
  for (uint64_t i = 1; i < 100; ++i) {
    ck_assert_int_eq(two.pair.send(two.pair.a_to_b(), i, nullptr, 0), 0);
    ck_assert_int_eq(two.pair.send(two.pair.b_to_a(), i, nullptr, 0), 0);
  }
  ck_assert(two.pair.poll_until(
      [&] { return two.b().sink->packets.size() == 100 && two.a().sink->packets.size() == 99; }));
  ck_assert_uint_eq(ends.size(), downs);
  bool sleeps = false;
  for (int i = 0; i < 100 && !sleeps; ++i) {
    two.pair.poll();
    sleeps = transport.arm();
  }
  ck_assert(sleeps);
}

TEST(connections_that_ended_leave_their_room_in_the_completion_queue) {
  Two two;
  two.meet();
  const auto& queues = Rig::transport(two.a()).resources().queues;
  const unsigned most = unsigned(queues.at(0)->cqe) / verbs::Connection::kSendDepth;
  for (unsigned i = 0; i < most; ++i) {
    Side other;
    ck_assert(two.rig.open(other, {}, &two.rig.clock));
    transport::Link& link = **other.transport->link_to(two.a().name);
    ck_assert(two.until([&] {
      other.poll();
      return link.send(numbered(i), nullptr, 0, 0, transport::SendHint::none) == 0;
    }));
    other.owned.reset();
    ck_assert(two.until([&] { return two.a().sink->downs.size() == i + 1; }));
  }
  ck_assert_uint_eq(queues.count(), 1);
}

/// Returns true if in a child these descriptors are sockets instead.
bool stay_private(std::span<const int> fds) {
  const pid_t child = fork();
  if (child == 0) {
    struct stat status {};
    for (const int fd : fds)
      if (fstat(fd, &status) || !S_ISSOCK(status.st_mode)) _exit(1);
    _exit(0);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

/// A child's copy of such a descriptor would keep the device's objects alive after its parent's
/// death.
TEST(forked_child_has_no_descriptor_of_the_device) {
  ibv_context& context = fake::Nic::one().context;
  context.cmd_fd = open("/dev/null", O_RDONLY);
  context.async_fd = open("/dev/null", O_RDONLY);
  Two two;
  two.meet();
  const int fds[] = {context.cmd_fd, context.async_fd,
                     Rig::transport(two.a()).resources().queues.channel_fd(),
                     Rig::transport(two.a()).wait_fd()};
  ck_assert(stay_private(fds));
  ck_assert_int_eq(two.pair.send(two.pair.a_to_b(), 1, nullptr, 0), 0);
  close(context.cmd_fd);
  close(context.async_fd);
}

/// Ends an endpoint while the kernel still uses one of its queue pairs. Returns true if a child
/// shares none of the descriptors that stay open for it.
bool leave_open_and_fork() {
  ibv_context& context = fake::Nic::one().context;
  context.cmd_fd = open("/dev/null", O_RDONLY);
  context.async_fd = open("/dev/null", O_RDONLY);
  std::vector<int> fds{context.cmd_fd, context.async_fd};
  {
    Rig rig;
    Side side;
    if (!rig.open(side, {}, &rig.clock)) return false;
    fds.push_back(Rig::transport(side).resources().queues.channel_fd());
    const verbs::ConnectorConfig& config = rig.fabric.find(side.name)->config();
    ibv_qp_init_attr attr{};
    verbs::Mail mail{.type = verbs::Mail::Type::leave_open,
                     .connection = config.factory->prepare(attr)};
    if (config.factory->adopt(*mail.connection, ibv_create_qp(rig.device->pd(), &attr)))
      return false;
    config.mail->post(std::move(mail));
  }
  for (const int fd : fds)
    if (fcntl(fd, F_GETFD) < 0) return false;
  return stay_private(fds);
}

/// Runs in a child, as the device stays open until the process ends.
TEST(forked_child_has_no_descriptor_of_a_device_that_could_not_be_closed) {
  const pid_t child = fork();
  if (child == 0) _exit(leave_open_and_fork() ? 0 : 1);
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}

}  // namespace

}  // namespace erdma::test

// How often a sleeping thread is woken: almost never while nothing happens, and about once per
// message, whatever it sleeps on, whichever path messages take, and whatever happened before.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "fabric/rig.h"
#include "transport/simulated_device.h"

// For wait sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {
thread_local bool t_counted = false;  ///< the thread that receives
std::atomic<unsigned> g_wake_ups;

}  // namespace

// The functions in which the provider and the test sleep.
extern "C" int epoll_wait(int fd, epoll_event* events, int count, int timeout) {
  const long ready = syscall(SYS_epoll_pwait, fd, events, count, timeout, nullptr, 8);
  if (t_counted && ready > 0) ++g_wake_ups;
  return int(ready);
}
extern "C" int poll(pollfd* fds, nfds_t count, int timeout) {
  const timespec limit{timeout / 1000, timeout % 1000 * 1'000'000L};
  const long ready = syscall(SYS_ppoll, fds, count, timeout < 0 ? nullptr : &limit, nullptr, 8);
  if (t_counted && ready > 0) ++g_wake_ups;
  return int(ready);
}

namespace {

using namespace erdma::test;
using namespace std::chrono_literals;

constexpr int kForever = -1;
constexpr unsigned kMessages = 30;
constexpr int kIdleMs = 250;  ///< a minimum: the machine may be busy

/// How often timers may wake a thread. A fault that never ends would wake it thousands of times.
unsigned wake_ups_in(std::chrono::steady_clock::duration time) {
  return unsigned(50 * time / 1s) + 20;
}

enum Way { via_shm, via_nic, via_self, kWays };
enum Means {
  queue_fd,      ///< fi_trywait, poll
  queue_sread,   ///< fi_cq_sread
  second_queue,  ///< fi_cq_sread, after one fi_trywait for another queue
  counter_fd,
  counter_wait,
  set_wait,  ///< fi_wait
  set_fd,
  poll_set,  ///< fi_poll, then as queue_fd
  kMeans
};
constexpr size_t kSizes[] = {64, 64 * 1024, 1024 * 1024};

/// Packets that the receiver must see: the message, or its announcement and the end of its
/// transfer.
unsigned messages_of(Way way, size_t size) {
  return size > kSizes[way == via_nic ? 0 : 1] ? 2 : 1;
}

fi_wait_obj object_of(Means means) {
  return means == set_wait || means == set_fd ? FI_WAIT_SET
         : means == queue_sread               ? FI_WAIT_UNSPEC
                                              : FI_WAIT_FD;
}

/// An endpoint that receives, with every object that a thread can sleep on.
struct Receiver {
  Receiver(Root& root_, Means means_) : root(root_), means(means_), av(root.open_av()) {
    fi_wait_attr set_attr{};
    set_attr.wait_obj = FI_WAIT_FD;
    ck_assert_int_eq(fi_wait_open(root.fabric, &set_attr, &set), 0);
    fi_cq_attr attr{};
    attr.format = FI_CQ_FORMAT_TAGGED;
    attr.wait_obj = object_of(means);
    attr.wait_set = set;
    received = root.open_cq(attr);
    sent = root.open_cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_FD);
    fi_cntr_attr count{};
    count.wait_obj = means == counter_wait ? FI_WAIT_UNSPEC : FI_WAIT_FD;
    ck_assert_int_eq(fi_cntr_open(root.domain, &count, &cntr, nullptr), 0);
    fi_poll_attr no_attr{};
    ck_assert_int_eq(fi_poll_open(root.domain, &no_attr, &poll_set), 0);
    ck_assert_int_eq(fi_poll_add(poll_set, &received->fid, 0), 0);
    ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &received->fid, FI_RECV), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &sent->fid, FI_TRANSMIT), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &cntr->fid, FI_RECV), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
    ck_assert_int_eq(fi_enable(ep), 0);
    while (means == second_queue && !may_sleep(&sent->fid)) continue;
  }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver() {
    for (fid_t object :
         {&ep->fid, &poll_set->fid, &received->fid, &sent->fid, &cntr->fid, &set->fid, &av->fid})
      ck_assert_int_eq(fi_close(object), 0);
  }

  fi_addr_t address_in(fid_av* others) {
    char name[64];
    size_t length = sizeof(name);
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    ck_assert_int_eq(fi_getname(&ep->fid, name, &length), 0);
    ck_assert_int_eq(fi_av_insert(others, name, 1, &address, 0, nullptr), 1);
    return address;
  }

  bool may_sleep(fid_t object) {
    const int rc = fi_trywait(root.fabric, &object, 1);
    ck_assert(rc == 0 || rc == -FI_EAGAIN);
    return rc == 0;
  }
  void sleep_on(fid_t object) {
    int fd = -1;
    ck_assert_int_eq(fi_control(object, FI_GETWAIT, &fd), 0);
    pollfd waiting{fd, POLLIN, 0};
    if (may_sleep(object)) ck_assert_int_eq(::poll(&waiting, 1, kForever), 1);
  }
  bool take() {
    fi_cq_tagged_entry entry;
    const ssize_t rc = fi_cq_read(received, &entry, 1);
    ck_assert(rc == 1 || rc == -FI_EAGAIN);
    return rc == 1;
  }
  /// Waits for one more message.
  void await() {
    ++messages;
    fi_cq_tagged_entry entry;
    void* contexts[1];
    switch (means) {
      case queue_fd:
        while (!take()) sleep_on(&received->fid);
        return;
      case queue_sread:
      case second_queue:
        ck_assert_int_eq(fi_cq_sread(received, &entry, 1, nullptr, kForever), 1);
        return;
      case counter_fd:
        while (fi_cntr_read(cntr) < messages) sleep_on(&cntr->fid);
        break;
      case counter_wait:
        ck_assert_int_eq(fi_cntr_wait(cntr, messages, kForever), 0);
        break;
      case set_wait:
        while (!take()) ck_assert_int_eq(fi_wait(set, kForever), 0);
        return;
      case set_fd:
        while (!take()) sleep_on(&set->fid);
        return;
      default:
        while (fi_poll(poll_set, contexts, 1) == 0) sleep_on(&received->fid);
    }
    ck_assert(take());
  }

  Root& root;
  const Means means;
  fid_av* av;
  fid_wait* set = nullptr;
  fid_cq *received = nullptr, *sent = nullptr;
  fid_cntr* cntr = nullptr;
  fid_poll* poll_set = nullptr;
  fid_ep* ep = nullptr;
  uint64_t messages = 0;
};

Ask for_threads() {
  return {.threading = FI_THREAD_SAFE};
}

void on(Way way) {
  g_device = "erdma_0";
  setenv("FI_ERDMA_SHM", way == via_nic ? "off" : "auto", 1);
}

/// Sends when the receiver is about to sleep. The last message follows after a pause.
struct Sender {
  Sender(Receiver& receiver, Way way, size_t size)
      : root(for_threads()), port(root), buffer(pattern(size)) {
    const bool self = way == via_self;
    ep = self ? receiver.ep : port.ep;
    cq = self ? receiver.sent : port.cq;
    to = receiver.address_in(self ? receiver.av : port.av);
  }
  void send(unsigned number) {
    while (asked.load() < number) asked.wait(number - 1);
    if (number == kMessages) {
      const unsigned before = g_wake_ups;
      const auto begin = std::chrono::steady_clock::now();
      (void)::poll(nullptr, 0, kIdleMs);
      idle = g_wake_ups - before;
      idle_time = std::chrono::steady_clock::now() - begin;
    }
    ssize_t rc;
    fi_cq_tagged_entry entry;
    while ((rc = fi_tsend(ep, buffer.data(), buffer.size(), nullptr, to, number, &entry)) ==
           -FI_EAGAIN)
      fi_cq_read(cq, nullptr, 0);
    ck_assert_int_eq(rc, 0);
    while ((rc = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) continue;
    ck_assert_int_eq(rc, 1);
  }

  Root root;
  Port port;
  std::vector<char> buffer;
  fid_ep* ep;
  fid_cq* cq;
  fi_addr_t to;
  std::atomic<unsigned> asked = 0;  ///< messages that the receiver waits for
  unsigned idle = 0;                ///< wake-ups before the last message
  std::chrono::steady_clock::duration idle_time{};
};

SUITE(.run = erdma::test::on_simulated_devices);

TEST_CASE(.timeout = 120);

TEST(a_thread_asleep_is_woken_once_for_a_message_and_else_left_alone,
     int(kMeans) * int(kWays) * int(std::size(kSizes))) {
  const auto means = Means(_i % int(kMeans));
  const auto way = Way(_i / int(kMeans) % int(kWays));
  const size_t size = kSizes[_i / int(kMeans) / int(kWays)];
  on(way);
  Root root(for_threads());
  Receiver receiver(root, means);
  std::vector<char> buffer(size);
  {
    Sender sender(receiver, way, size);
    std::thread thread([&] {
      for (unsigned i = 1; i <= kMessages; ++i) sender.send(i);
    });
    const auto begin = std::chrono::steady_clock::now();
    t_counted = true;
    for (unsigned i = 1; i <= kMessages; ++i) {
      ck_assert_int_eq(
          fi_trecv(receiver.ep, buffer.data(), size, nullptr, FI_ADDR_UNSPEC, i, 0, nullptr), 0);
      sender.asked = i;
      sender.asked.notify_one();
      receiver.await();
    }
    t_counted = false;
    thread.join();
    const auto time = std::chrono::steady_clock::now() - begin;
    const unsigned woken = g_wake_ups;
    ck_assert_msg(sender.idle <= wake_ups_in(sender.idle_time), "%u wake-ups in %ld ms",
                  sender.idle, long(sender.idle_time / 1ms));
    ck_assert_msg(woken <= messages_of(way, size) * kMessages * 3 / 2 + wake_ups_in(time),
                  "%u wake-ups for %u messages in %ld ms", woken, kMessages, long(time / 1ms));
  }
  ck_assert(buffer == pattern(size));
}

/// The number of unread bytes in the fullest pipe of this process: the adapter signals events by
/// pipes.
int most_unread() {
  int most = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int bytes = 0;
    if (entry.is_fifo() && ioctl(std::stoi(entry.path().filename()), FIONREAD, &bytes) == 0)
      most = std::max(most, bytes);
  }
  return most;
}

/// fi_trywait was called once for a queue, so a thread may sleep on its descriptor and each message
/// must wake it. The kernel keeps events that are not read.
TEST(events_that_nobody_takes_do_not_pile_up) {
  on(via_nic);
  Root root(for_threads());
  Receiver receiver(root, second_queue);
  Sender sender(receiver, via_nic, kSizes[0]);
  std::vector<char> buffer(kSizes[0]);
  int unread = 0;
  for (const unsigned count : {100u, 1000u}) {
    std::thread thread([&] {
      for (unsigned i = 0; i < count; ++i) sender.send(0);
    });
    for (unsigned i = 0; i < count; ++i) {
      ck_assert_int_eq(fi_trecv(receiver.ep, buffer.data(), buffer.size(), nullptr, FI_ADDR_UNSPEC,
                                0, 0, nullptr),
                       0);
      while (!receiver.take()) continue;
    }
    thread.join();
    if (count == 100) unread = most_unread();
  }
  ck_assert_int_le(most_unread(), unread + 16);
}

}  // namespace

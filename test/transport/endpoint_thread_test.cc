#include "transport/endpoint_thread.h"

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <new>

#include "libcheck.h"
#include "transport/mailbox.h"

/// The thread serves orders, descriptors and deadlines until it is stopped.
namespace erdma::transport {
namespace {

constexpr uint64_t kNever = UINT64_MAX;

/// Records the calls of the thread. Tests override what a call does.
struct Notes final : EndpointThread::Work {
  void on_commands() override {
    commands.arm();
    for (const int command : commands.take()) {
      last_command = command;
      last_command.notify_all();
    }
  }
  void on_event(uint64_t event) override {
    thread.unwatch(event_fd.fd());
    last_event = event;
    last_event.notify_all();
    if (out_of_memory.exchange(false)) throw std::bad_alloc();
  }
  void on_time() override {
    if (clock.now() < deadline) return;
    deadline = kNever;
    on_deadline = true;
    on_deadline.notify_all();
  }
  uint64_t next_deadline() const noexcept override { return deadline; }

  util::SystemClock clock;
  util::EventFd event_fd;
  std::atomic<uint64_t> deadline = kNever;
  std::atomic<int> last_command = 0;
  std::atomic<uint64_t> last_event = 0;
  std::atomic<bool> on_deadline = false, out_of_memory = false;
  EndpointThread thread{*this, clock};
  Mailbox<int, util::EventFd> commands{thread.bell()};
};

TEST(commands_and_descriptors_are_served) {
  Notes notes;
  ck_assert_int_eq(notes.thread.open(), 0);
  notes.commands.arm();
  ck_assert_int_eq(notes.thread.start("erdma-test"), 0);
  notes.commands.post(1);
  notes.last_command.wait(0);
  ck_assert_int_eq(notes.last_command, 1);
  notes.commands.post(2);
  notes.last_command.wait(1);
  ck_assert_int_eq(notes.thread.watch(notes.event_fd.fd(), 77), 0);
  notes.event_fd.ring();
  notes.last_event.wait(0);
  ck_assert_uint_eq(notes.last_event, 77);
}

TEST(a_deadline_ends_the_sleep) {
  Notes notes;
  ck_assert_int_eq(notes.thread.open(), 0);
  notes.deadline = notes.clock.now() + 2'000'000;
  ck_assert_int_eq(notes.thread.start("erdma-test"), 0);
  notes.on_deadline.wait(false);
}

/// The thread still serves the next event.
TEST(want_of_memory_ends_one_call_only) {
  Notes notes;
  ck_assert_int_eq(notes.thread.open(), 0);
  notes.out_of_memory = true;
  notes.event_fd.ring();
  ck_assert_int_eq(notes.thread.watch(notes.event_fd.fd(), 1), 0);
  ck_assert_int_eq(notes.thread.start("erdma-test"), 0);
  notes.last_event.wait(0);
  ck_assert_int_eq(notes.thread.watch(notes.event_fd.fd(), 2), 0);
  notes.last_event.wait(1);
  ck_assert(!notes.out_of_memory);
}

TEST(what_a_descriptor_is_watched_for_can_change) {
  Notes notes;
  ck_assert_int_eq(notes.thread.open(), 0);
  notes.event_fd.ring();
  ck_assert_int_eq(notes.thread.watch(notes.event_fd.fd(), 1, EPOLLRDHUP), 0);
  ck_assert(!notes.thread.step());
  ck_assert_int_eq(notes.thread.watch(notes.event_fd.fd(), 2, EPOLLIN), 0);
  ck_assert(notes.thread.step());
  ck_assert_uint_eq(notes.last_event, 2);
  ck_assert(!notes.thread.step());
}

TEST(what_cannot_be_watched_is_an_error) {
  Notes notes;
  ck_assert_int_eq(notes.thread.open(), 0);
  ck_assert_int_lt(notes.thread.watch(-1, 1), 0);
}

/// A handler of the application must not run on a thread that the application does not know.
TEST(no_signal_of_the_application_is_handled_there) {
  struct Masked final : EndpointThread::Work {
    void on_commands() override {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      pthread_getname_np(pthread_self(), name, sizeof(name));
      blocked = sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGINT) ? 1 : -1;
      blocked.notify_all();
    }
    void on_event(uint64_t) override {}
    void on_time() override {}
    uint64_t next_deadline() const noexcept override { return kNever; }
    util::SystemClock clock;
    std::atomic<int> blocked = 0;
    char name[16] = {};
    EndpointThread thread{*this, clock};
  } work;
  ck_assert_int_eq(work.thread.open(), 0);
  ck_assert_int_eq(work.thread.start("erdma-test"), 0);
  work.thread.bell().ring();
  work.blocked.wait(0);
  ck_assert_int_eq(work.blocked, 1);
  ck_assert_str_eq(work.name, "erdma-test");
}

TEST(a_thread_that_has_ended_leaves_its_orders) {
  Notes notes;
  ck_assert_int_eq(notes.thread.open(), 0);
  notes.commands.arm();
  ck_assert_int_eq(notes.thread.start("erdma-test"), 0);
  notes.thread.stop();
  notes.thread.stop();
  notes.commands.post(5);
  ck_assert_int_eq(notes.last_command, 0);
  ck_assert(notes.thread.step());
  ck_assert_int_eq(notes.last_command, 5);
}

}  // namespace

}  // namespace erdma::transport

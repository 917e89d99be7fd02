#include "fabric/eq.h"

#include <poll.h>
#include <sched.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <rdma/fi_errno.h>

#include "fake/captured_log.h"
#include "libcheck.h"
#include "quiet_fork.h"
#include "util/process_epoch.h"

using erdma::fabric::EventQueue;
using erdma::fabric::make_event_queue;
using erdma::test::holds_in_child;

namespace {

fid_eq* open_queue(fi_wait_obj wait = FI_WAIT_FD, uint64_t flags = FI_WRITE, size_t size = 32,
                   uint32_t api_version = FI_VERSION(1, 17)) {
  fi_eq_attr attr{};
  attr.size = size;
  attr.flags = flags;
  attr.wait_obj = wait;
  auto queue = make_event_queue(&attr, api_version, {}, nullptr);
  ck_assert_int_eq(queue.error(), 0);
  return *queue;
}

int open_error(fi_wait_obj wait, uint64_t flags) {
  fi_eq_attr attr{};
  attr.flags = flags;
  attr.wait_obj = wait;
  return make_event_queue(&attr, FI_VERSION(1, 17), {}, nullptr).error();
}

fi_eq_entry numbered(uintptr_t number) {
  return {nullptr, reinterpret_cast<void*>(number), number};
}

ssize_t write(fid_eq* eq, uintptr_t number) {
  const fi_eq_entry entry = numbered(number);
  return fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0);
}

/// The number that was read, or the error.
ssize_t read(fid_eq* eq, uint64_t flags = 0) {
  uint32_t event = 0;
  fi_eq_entry entry{};
  const ssize_t rc = fi_eq_read(eq, &event, &entry, sizeof(entry), flags);
  if (rc < 0) return rc;
  ck_assert_int_eq(rc, sizeof(entry));
  ck_assert_uint_eq(event, FI_NOTIFY);
  return ssize_t(entry.data);
}

bool readable(fid_eq* eq) {
  int fd = -1;
  ck_assert_int_eq(fi_control(&eq->fid, FI_GETWAIT, &fd), 0);
  pollfd wait{fd, POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

}  // namespace

TEST(queue_returns_events_in_order) {
  fid_eq* eq = open_queue(FI_WAIT_NONE);
  for (uintptr_t i = 0; i < 5; ++i) ck_assert_int_eq(write(eq, i), sizeof(fi_eq_entry));
  for (ssize_t i = 0; i < 5; ++i) {
    ck_assert_int_eq(read(eq, FI_PEEK), i);
    ck_assert_int_eq(read(eq), i);
  }
  ck_assert_int_eq(read(eq), -FI_EAGAIN);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(write_is_refused_without_fi_write) {
  fid_eq* eq = open_queue(FI_WAIT_NONE, 0);
  ck_assert_int_eq(write(eq, 1), -FI_EINVAL);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(write_says_again_when_the_queue_is_full) {
  fid_eq* eq = open_queue(FI_WAIT_NONE, FI_WRITE, 2);
  write(eq, 1);
  write(eq, 2);
  ck_assert_int_eq(write(eq, 3), -FI_EAGAIN);
  ck_assert_int_eq(read(eq), 1);
  ck_assert_int_eq(write(eq, 3), sizeof(fi_eq_entry));
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(calls_refuse_bad_arguments) {
  fid_eq* eq = open_queue();
  fi_eq_entry entry{};
  uint32_t event;
  ck_assert_int_eq(fi_eq_write(eq, 1, nullptr, sizeof(entry), 0), -FI_EINVAL);
  ck_assert_int_eq(fi_eq_write(eq, 1, &entry, 0, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_eq_write(eq, 1, &entry, SIZE_MAX, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_eq_write(eq, 1, &entry, sizeof(entry), FI_PEEK), -FI_EINVAL);
  write(eq, 1);
  ck_assert_int_eq(fi_eq_read(eq, &event, nullptr, sizeof(entry), 0), -FI_EINVAL);
  ck_assert_int_eq(fi_eq_read(eq, &event, &entry, sizeof(entry), FI_MORE), -FI_EINVAL);
  ck_assert_int_eq(fi_eq_read(eq, &event, &entry, sizeof(entry) - 1, 0), -FI_ETOOSMALL);
  ck_assert_int_eq(fi_eq_sread(eq, &event, nullptr, sizeof(entry), -1, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_eq_readerr(eq, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_control(&eq->fid, FI_GETWAIT, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_control(&eq->fid, FI_ENABLE, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_eq_read(eq, nullptr, &entry, sizeof(entry), 0), sizeof(entry));
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(open_refuses_what_it_does_not_have) {
  ck_assert_int_eq(make_event_queue(nullptr, FI_VERSION(1, 17), {}, nullptr).error(), -FI_EINVAL);
  ck_assert_int_eq(open_error(FI_WAIT_MUTEX_COND, 0), -FI_ENOSYS);
  ck_assert_int_eq(open_error(FI_WAIT_SET, 0), -FI_EINVAL);
  ck_assert_int_eq(open_error(static_cast<fi_wait_obj>(7), 0), -FI_EINVAL);
  ck_assert_int_eq(open_error(FI_WAIT_NONE, FI_PEEK), -FI_EINVAL);
}

TEST(descriptor_is_readable_exactly_while_events_are) {
  fid_eq* eq = open_queue();
  ck_assert(!readable(eq));
  ck_assert_int_eq(EventQueue::from(eq).try_wait(), 0);
  write(eq, 1);
  write(eq, 2);
  ck_assert(readable(eq));
  ck_assert_int_eq(EventQueue::from(eq).try_wait(), -FI_EAGAIN);
  read(eq, FI_PEEK);
  read(eq);
  ck_assert(readable(eq));
  read(eq);
  ck_assert(!readable(eq));
  write(eq, 3);
  ck_assert(readable(eq));
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(wait_object_is_told) {
  fid_eq* eq = open_queue(FI_WAIT_NONE);
  fi_wait_obj wait = FI_WAIT_FD;
  int fd;
  ck_assert_int_eq(fi_control(&eq->fid, FI_GETWAITOBJ, &wait), 0);
  ck_assert_int_eq(wait, FI_WAIT_NONE);
  ck_assert_int_eq(fi_control(&eq->fid, FI_GETWAIT, &fd), -FI_EINVAL);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
  const fi_wait_obj kinds[][2] = {
      {FI_WAIT_UNSPEC, FI_WAIT_FD}, {FI_WAIT_FD, FI_WAIT_FD}, {FI_WAIT_YIELD, FI_WAIT_YIELD}};
  for (const auto& [asked, had] : kinds) {
    eq = open_queue(asked);
    ck_assert_int_eq(fi_control(&eq->fid, FI_GETWAITOBJ, &wait), 0);
    ck_assert_int_eq(wait, had);
    uint32_t event;
    fi_eq_entry entry;
    ck_assert_int_eq(fi_eq_sread(eq, &event, &entry, sizeof(entry), 1, 0), -FI_EAGAIN);
    write(eq, 1);
    ck_assert_int_eq(fi_eq_sread(eq, &event, &entry, sizeof(entry), -1, 0), sizeof(entry));
    ck_assert_int_eq(fi_close(&eq->fid), 0);
  }
}

TEST(blocking_read_times_out_on_an_empty_queue) {
  fid_eq* eq = open_queue();
  uint32_t event;
  fi_eq_entry entry;
  ck_assert_int_eq(fi_eq_sread(eq, &event, &entry, sizeof(entry), 0, 0), -FI_EAGAIN);
  ck_assert_int_eq(fi_eq_sread(eq, &event, &entry, sizeof(entry), 1, 0), -FI_EAGAIN);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(blocking_read_is_refused_without_a_wait_object) {
  fid_eq* eq = open_queue(FI_WAIT_NONE);
  uint32_t event;
  fi_eq_entry entry;
  ck_assert_int_eq(fi_eq_sread(eq, &event, &entry, sizeof(entry), -1, 0), -FI_ENOSYS);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(blocking_reads_share_the_events_of_other_threads) {
  constexpr int kEvents = 2000;
  fid_eq* eq = open_queue(FI_WAIT_FD, FI_WRITE, kEvents);
  std::atomic<uint64_t> sum{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r)
    readers.emplace_back([&] {
      uint32_t event;
      fi_eq_entry entry{};
      while (fi_eq_sread(eq, &event, &entry, sizeof(entry), -1, 0) > 0 && entry.data)
        sum += entry.data;
    });
  std::thread poster([&] {
    for (uintptr_t i = 1; i <= kEvents; ++i) EventQueue::from(eq).post(FI_NOTIFY, numbered(i));
    for (size_t r = 0; r < 2; ++r) EventQueue::from(eq).post(FI_NOTIFY, numbered(0));
  });
  poster.join();
  for (std::thread& reader : readers) reader.join();
  ck_assert_uint_eq(sum, uint64_t{kEvents} * (kEvents + 1) / 2);
  ck_assert(!readable(eq));
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(error_is_read_apart_and_in_its_turn) {
  fid_eq* eq = open_queue();
  fi_eq_err_entry error{};
  ck_assert_int_eq(fi_eq_readerr(eq, &error, 0), -FI_EAGAIN);
  write(eq, 1);
  error.err = FI_EIO;
  error.data = 7;
  EventQueue::from(eq).post_error(error);
  error = {};
  ck_assert_int_eq(fi_eq_readerr(eq, &error, 0), -FI_EAGAIN);
  ck_assert_int_eq(read(eq), 1);
  ck_assert_int_eq(read(eq), -FI_EAVAIL);
  ck_assert(readable(eq));
  ck_assert_int_eq(fi_eq_readerr(eq, &error, FI_PEEK), sizeof(error));
  char data[8];
  error = {};
  error.err_data = data;
  error.err_data_size = sizeof(data);
  ck_assert_int_eq(fi_eq_readerr(eq, &error, 0), sizeof(error));
  ck_assert_int_eq(error.err, FI_EIO);
  ck_assert_uint_eq(error.data, 7);
  ck_assert_ptr_eq(error.err_data, data);
  ck_assert_uint_eq(error.err_data_size, 0);
  ck_assert_int_eq(read(eq), -FI_EAGAIN);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

/// Before API 1.5, err_data and its size are output only, so the values of the application are no
/// buffer.
TEST(error_of_an_old_application_points_to_no_data) {
  fid_eq* eq = open_queue(FI_WAIT_FD, FI_WRITE, 32, FI_VERSION(1, 4));
  fi_eq_err_entry error{};
  error.err = FI_EIO;
  EventQueue::from(eq).post_error(error);
  error.err_data = &error;
  error.err_data_size = 8;
  ck_assert_int_eq(fi_eq_readerr(eq, &error, 0), sizeof(error));
  ck_assert_int_eq(error.err, FI_EIO);
  ck_assert_int_eq(error.prov_errno, FI_EIO);
  ck_assert_ptr_null(error.err_data);
  ck_assert_uint_eq(error.err_data_size, 0);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(overrun_queue_gives_what_it_has_and_then_the_error) {
  fid_eq* eq = open_queue();
  const size_t room = EventQueue::kProviderEvents;
  for (size_t i = 0; i <= room; ++i) EventQueue::from(eq).post(FI_NOTIFY, numbered(i));
  ck_assert_int_eq(write(eq, 1), -FI_EOVERRUN);
  size_t in_order = 0;
  fi_eq_entry entry{};
  while (fi_eq_read(eq, nullptr, &entry, sizeof(entry), 0) > 0) in_order += entry.data == in_order;
  ck_assert_uint_eq(in_order, room);
  ck_assert_int_eq(read(eq), -FI_EAVAIL);
  fi_eq_err_entry error{};
  ck_assert_int_eq(fi_eq_readerr(eq, &error, 0), sizeof(error));
  ck_assert_int_eq(error.err, FI_EOVERRUN);
  ck_assert_int_eq(error.prov_errno, FI_EOVERRUN);
  ck_assert_ptr_eq(error.fid, &eq->fid);
  ck_assert_int_eq(write(eq, 1), -FI_EOVERRUN);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(strerror_fills_the_buffer_it_is_given) {
  fid_eq* eq = open_queue();
  char text[6];
  ck_assert_str_eq(fi_eq_strerror(eq, FI_EIO, nullptr, nullptr, 0), fi_strerror(FI_EIO));
  ck_assert_ptr_eq(fi_eq_strerror(eq, FI_EIO, nullptr, text, sizeof(text)), text);
  ck_assert_uint_eq(std::strlen(text), 5);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(close_is_refused_while_a_thread_reads) {
  fid_eq* eq = open_queue();
  ssize_t result = 0;
  std::thread reader([&] {
    fi_eq_entry entry;
    uint32_t event;
    result = fi_eq_sread(eq, &event, &entry, sizeof(entry), -1, 0);
  });
  while (!EventQueue::from(eq).sleeping()) sched_yield();
  for (int i = 0; i < 100; ++i) ck_assert_int_eq(fi_close(&eq->fid), -FI_EBUSY);
  ck_assert_int_gt(write(eq, 1), 0);
  reader.join();
  ck_assert_int_eq(result, sizeof(fi_eq_entry));
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(a_child_closes_a_queue_that_a_thread_of_the_parent_reads) {
  erdma::util::register_fork_handler();
  fid_eq* eq = open_queue();
  std::thread reader([&] {
    fi_eq_entry entry;
    uint32_t event;
    ck_assert_int_gt(fi_eq_sread(eq, &event, &entry, sizeof(entry), -1, 0), 0);
  });
  while (!EventQueue::from(eq).sleeping()) sched_yield();
  ck_assert(holds_in_child([&] { return fi_close(&eq->fid) == 0; }));
  ck_assert_int_gt(write(eq, 1), 0);
  reader.join();
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

/// The thread logs that the queue is overrun while it holds the mutex.
TEST(a_child_closes_a_queue_whose_mutex_a_thread_of_the_parent_holds) {
  erdma::util::register_fork_handler();
  fid_eq* eq = open_queue();
  for (size_t i = 0; i < EventQueue::kProviderEvents; ++i)
    EventQueue::from(eq).post(FI_NOTIFY, numbered(i));
  std::unique_lock log(erdma::test::g_log_mutex);
  std::thread poster([&] { EventQueue::from(eq).post(FI_NOTIFY, numbered(0)); });
  ck_assert(holds_in_child([&] { return fi_close(&eq->fid) == 0; }));
  ck_assert(erdma::test::g_log.empty());  // the thread is still in the middle
  log.unlock();
  poster.join();
  ck_assert(erdma::test::contains(erdma::test::only_log_line(), "overrun"));
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(close_is_refused_while_something_is_bound_and_told_once) {
  erdma::fabric::Children open;
  fi_eq_attr attr{};
  auto queue = make_event_queue(&attr, FI_VERSION(1, 17), &open, &attr);
  fid_eq* eq = *queue;
  ck_assert_ptr_eq(eq->fid.context, &attr);
  EventQueue::from(eq).bound();
  ck_assert_int_eq(fi_close(&eq->fid), -FI_EBUSY);
  ck_assert_int_eq(open.count(), 1);
  EventQueue::from(eq).unbound();
  ck_assert_int_eq(fi_close(&eq->fid), 0);
  ck_assert_int_eq(open.count(), 0);
}

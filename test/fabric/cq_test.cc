#include "fabric/cq.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "fake/progress_source.h"
#include "libcheck.h"

using erdma::fabric::CompletionQueue;
using erdma::fabric::make_cq;
using erdma::fabric::try_wait;
using erdma::protocol::Completion;
using erdma::protocol::ErrorCompletion;
using namespace erdma::test;
using erdma::util::DomainLock;
using erdma::util::Guard;

namespace {

constexpr int kForever = -1;
DomainLock g_lock(erdma::util::LockKind::mutex);
erdma::fabric::Children g_open;

CompletionQueue& open(const fi_cq_attr& attr) {
  auto made = make_cq({g_lock, FI_VERSION(1, 9), false, &g_open}, &attr, nullptr);
  ck_assert_int_eq(made.error(), 0);
  return **made;
}

CompletionQueue& open(fi_wait_obj wait = FI_WAIT_FD) {
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_TAGGED;
  attr.wait_obj = wait;
  return open(attr);
}

Completion tagged(uint64_t tag) {
  Completion completion;
  completion.tag = tag;
  return completion;
}

void push(CompletionQueue& cq, uint64_t tag) {
  const Guard guard(g_lock);
  cq.push(tagged(tag), nullptr);
}

void push_error(CompletionQueue& cq) {
  const Guard guard(g_lock);
  ErrorCompletion completion;
  completion.error = FI_EIO;
  cq.push_error(completion, nullptr);
}

int descriptor(CompletionQueue& cq) {
  int fd = -1;
  ck_assert_int_eq(fi_control(&cq.fid, FI_GETWAIT, &fd), 0);
  return fd;
}

int ask(CompletionQueue& cq) {
  fid* fids[] = {&cq.fid};
  return try_wait(fids, 1);
}

/// A thread in fi_cq_sread, and the result of the call.
struct Reader {
  explicit Reader(CompletionQueue& cq, size_t condition = 0, size_t count = 1)
      : entries(count), thread([this, &cq, condition] {
          result = fi_cq_sread(&cq, entries.data(), entries.size(),
                               reinterpret_cast<const void*>(condition), kForever);
        }) {}
  ssize_t join() {
    thread.join();
    return result;
  }
  std::vector<fi_cq_tagged_entry> entries;
  ssize_t result = 0;
  std::thread thread;
};

void await_sleeper(CompletionQueue& cq) {
  for (;; sched_yield()) {
    const Guard guard(g_lock);
    if (cq.sleeping()) return;
  }
}

void attach(CompletionQueue& cq, FakeSource& source) {
  const Guard guard(g_lock);
  cq.attach(source);
}

void detach(CompletionQueue& cq, FakeSource& source) {
  const Guard guard(g_lock);
  cq.detach(source);
}

}  // namespace

TEST(queue_reads_the_format_it_was_opened_with, 5) {
  const struct {
    fi_cq_format format;
    size_t size;
  } cases[] = {{FI_CQ_FORMAT_UNSPEC, sizeof(fi_cq_entry)},
               {FI_CQ_FORMAT_CONTEXT, sizeof(fi_cq_entry)},
               {FI_CQ_FORMAT_MSG, sizeof(fi_cq_msg_entry)},
               {FI_CQ_FORMAT_DATA, sizeof(fi_cq_data_entry)},
               {FI_CQ_FORMAT_TAGGED, sizeof(fi_cq_tagged_entry)}};
  fi_cq_attr attr{};
  attr.format = cases[_i].format;
  CompletionQueue& cq = open(attr);
  int contexts[2];
  for (int& context : contexts) {
    Completion completion;
    completion.context = &context;
    cq.push(completion, nullptr);
  }
  unsigned char out[2 * sizeof(fi_cq_tagged_entry)];
  fi_addr_t sources[2] = {};
  ck_assert_int_eq(fi_cq_readfrom(&cq, out, 2, sources), 2);
  const void* second;
  std::memcpy(&second, out + cases[_i].size, sizeof(second));
  ck_assert_ptr_eq(second, &contexts[1]);
  ck_assert_uint_eq(sources[1], FI_ADDR_NOTAVAIL);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(open_refuses_what_it_does_not_have) {
  struct Case {
    fi_cq_attr attr;
    int error;
  };
  const auto attr = [](int format, int wait, int condition = 0, uint64_t flags = 0) {
    fi_cq_attr made{};
    std::memcpy(&made.format, &format, sizeof(format));
    std::memcpy(&made.wait_obj, &wait, sizeof(wait));
    std::memcpy(&made.wait_cond, &condition, sizeof(condition));
    made.flags = flags;
    return made;
  };
  const Case cases[] = {
      {attr(FI_CQ_FORMAT_TAGGED + 1, FI_WAIT_NONE), -FI_EINVAL},
      {attr(-1, FI_WAIT_NONE), -FI_EINVAL},
      {attr(FI_CQ_FORMAT_TAGGED, FI_WAIT_SET), -FI_EINVAL},
      {attr(FI_CQ_FORMAT_TAGGED, FI_WAIT_MUTEX_COND), -FI_ENOSYS},
      {attr(FI_CQ_FORMAT_TAGGED, FI_WAIT_POLLFD), -FI_ENOSYS},
      {attr(FI_CQ_FORMAT_TAGGED, FI_WAIT_POLLFD + 1), -FI_EINVAL},
      {attr(FI_CQ_FORMAT_TAGGED, 99), -FI_EINVAL},
      {attr(FI_CQ_FORMAT_TAGGED, FI_WAIT_FD, FI_CQ_COND_THRESHOLD + 1), -FI_EINVAL},
      {attr(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE, 0, FI_MULTI_RECV), -FI_EINVAL},
  };
  for (const Case& c : cases)
    ck_assert_int_eq(make_cq({g_lock, 0, false, {}}, &c.attr, nullptr).error(), c.error);
  ck_assert_int_eq(make_cq({g_lock, 0, false, {}}, nullptr, nullptr).error(), -FI_EINVAL);
}

TEST(calls_refuse_bad_arguments) {
  CompletionQueue& cq = open();
  push(cq, 1);
  ck_assert_int_eq(fi_cq_read(&cq, nullptr, 1), -FI_EINVAL);
  ck_assert_int_eq(fi_cq_readfrom(&cq, nullptr, 1, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_cq_sread(&cq, nullptr, 1, nullptr, kForever), -FI_EINVAL);
  ck_assert_int_eq(fi_cq_readerr(&cq, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_control(&cq.fid, FI_GETWAIT, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_control(&cq.fid, FI_ENABLE, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(cq.fid.ops->bind(&cq.fid, &cq.fid, 0), -FI_ENOSYS);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(blocking_calls_are_refused_without_a_wait_object) {
  CompletionQueue& cq = open(FI_WAIT_NONE);
  push(cq, 1);
  fi_cq_tagged_entry entry;
  int fd;
  ck_assert_int_eq(fi_cq_sread(&cq, &entry, 1, nullptr, 0), -FI_ENOSYS);
  ck_assert_int_eq(fi_cq_sreadfrom(&cq, &entry, 1, nullptr, nullptr, 0), -FI_ENOSYS);
  ck_assert_int_eq(fi_cq_signal(&cq), -FI_ENOSYS);
  ck_assert_int_eq(fi_control(&cq.fid, FI_GETWAIT, &fd), -FI_ENODATA);
  ck_assert_int_eq(ask(cq), -FI_EINVAL);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(wait_object_is_told, 3) {
  const struct {
    fi_wait_obj asked, told;
  } cases[] = {
      {FI_WAIT_UNSPEC, FI_WAIT_FD}, {FI_WAIT_FD, FI_WAIT_FD}, {FI_WAIT_YIELD, FI_WAIT_YIELD}};
  CompletionQueue& cq = open(cases[_i].asked);
  fi_wait_obj told = FI_WAIT_NONE;
  ck_assert_int_eq(fi_control(&cq.fid, FI_GETWAITOBJ, &told), 0);
  ck_assert_int_eq(told, cases[_i].told);
  ck_assert_int_ge(descriptor(cq), 0);
  fi_cq_tagged_entry entry;
  ck_assert_int_eq(fi_cq_sread(&cq, &entry, 1, nullptr, 0), -FI_EAGAIN);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(read_makes_progress_only_when_nothing_is_pending) {
  CompletionQueue& cq = open(FI_WAIT_NONE);
  FakeSource source;
  attach(cq, source);
  fi_cq_tagged_entry entries[8];
  ck_assert_int_eq(fi_cq_read(&cq, entries, 8), -FI_EAGAIN);
  ck_assert_int_eq(source.calls, 1);
  source.hand_in([&] {
    cq.push(tagged(1), nullptr);
    cq.push(tagged(2), nullptr);
  });
  ck_assert_int_eq(fi_cq_read(&cq, entries, 1), 1);
  ck_assert_int_eq(source.calls, 2);
  ck_assert_int_eq(fi_cq_read(&cq, entries, 8), 1);
  ck_assert_int_eq(source.calls, 2);
  ck_assert_uint_eq(entries[0].tag, 2);
  detach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(read_of_no_entries_makes_progress_and_says_whether_there_are_some) {
  CompletionQueue& cq = open(FI_WAIT_NONE);
  FakeSource source;
  attach(cq, source);
  ck_assert_int_eq(fi_cq_read(&cq, nullptr, 0), -FI_EAGAIN);
  source.hand_in([&] { cq.push(tagged(1), nullptr); });
  ck_assert_int_eq(fi_cq_read(&cq, nullptr, 0), 0);
  ck_assert_int_eq(fi_cq_read(&cq, nullptr, 0), 0);
  ck_assert_int_eq(source.calls, 3);
  detach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(error_is_announced_and_read_apart) {
  CompletionQueue& cq = open();
  fi_cq_tagged_entry entry;
  fi_cq_err_entry error{};
  ck_assert_int_eq(fi_cq_readerr(&cq, &error, 0), -FI_EAGAIN);
  push_error(cq);
  ck_assert_int_eq(fi_cq_read(&cq, &entry, 1), -FI_EAVAIL);
  ck_assert_int_eq(fi_cq_sread(&cq, &entry, 1, nullptr, kForever), -FI_EAVAIL);
  ck_assert_int_eq(fi_cq_readerr(&cq, &error, 0), 1);
  ck_assert_int_eq(error.err, FI_EIO);
  ck_assert_int_eq(fi_cq_read(&cq, &entry, 1), -FI_EAGAIN);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(strerror_fills_the_buffer_it_is_given) {
  CompletionQueue& cq = open(FI_WAIT_NONE);
  char text[4];
  ck_assert_str_eq(fi_cq_strerror(&cq, ECONNRESET, nullptr, nullptr, 0), fi_strerror(ECONNRESET));
  ck_assert_str_eq(fi_cq_strerror(&cq, -ECONNRESET, nullptr, text, 4), fi_strerror(ECONNRESET));
  ck_assert_str_eq(text, "Con");
  ck_assert_ptr_nonnull(fi_cq_strerror(&cq, INT_MIN, nullptr, text, 0));
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(close_is_refused_while_a_source_is_attached_and_told_once) {
  CompletionQueue& cq = open();
  FakeSource source;
  attach(cq, source);
  attach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), -FI_EBUSY);
  detach(cq, source);
  ck_assert_int_eq(g_open.count(), 1);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
  ck_assert_int_eq(g_open.count(), 0);
}

// --- blocking -----------------------------------------------------------------------------------

TEST(blocking_read_gives_up_when_the_time_is_over, 2) {
  CompletionQueue& cq = open();
  FakeSource source;
  attach(cq, source);
  fi_cq_tagged_entry entry;
  ck_assert_int_eq(fi_cq_sread(&cq, &entry, 1, nullptr, _i), -FI_EAGAIN);
  ck_assert_int_ge(source.calls, 1);
  detach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(signal_before_a_blocking_read_ends_it_at_once_and_only_it) {
  CompletionQueue& cq = open();
  ck_assert_int_eq(fi_cq_signal(&cq), 0);
  ck_assert_int_eq(fi_cq_signal(&cq), 0);
  fi_cq_tagged_entry entry;
  ck_assert_int_eq(fi_cq_sread(&cq, &entry, 1, nullptr, kForever), -FI_EAGAIN);
  Reader reader(cq);
  await_sleeper(cq);
  push(cq, 1);
  ck_assert_int_eq(reader.join(), 1);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(signal_ends_every_blocking_read) {
  CompletionQueue& cq = open();
  Reader first(cq), second(cq), third(cq);
  for (size_t blocked = 0; blocked != 3; sched_yield()) {
    const Guard guard(g_lock);
    blocked = cq.blocked();
  }
  ck_assert_int_eq(fi_cq_signal(&cq), 0);
  ck_assert_int_eq(first.join(), -FI_EAGAIN);
  ck_assert_int_eq(second.join(), -FI_EAGAIN);
  ck_assert_int_eq(third.join(), -FI_EAGAIN);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(completion_of_another_thread_wakes_a_blocking_read) {
  CompletionQueue& cq = open();
  Reader reader(cq);
  await_sleeper(cq);
  push(cq, 42);
  ck_assert_int_eq(reader.join(), 1);
  ck_assert_uint_eq(reader.entries[0].tag, 42);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(error_of_another_thread_wakes_a_blocking_read) {
  CompletionQueue& cq = open();
  Reader reader(cq);
  await_sleeper(cq);
  push_error(cq);
  ck_assert_int_eq(reader.join(), -FI_EAVAIL);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(work_of_an_armed_source_wakes_a_blocking_read) {
  CompletionQueue& cq = open();
  FakeSource source;
  attach(cq, source);
  for (uint64_t i = 0; i < 200; ++i) {
    Reader reader(cq);
    if (i % 2 == 0) await_sleeper(cq);
    source.hand_in([&cq, i] { cq.push(tagged(i), nullptr); });
    ck_assert_int_eq(reader.join(), 1);
    ck_assert_uint_eq(reader.entries[0].tag, i);
  }
  detach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(source_that_was_enabled_meanwhile_wakes_a_blocking_read) {
  CompletionQueue& cq = open();
  FakeSource source;
  source.enabled = false;
  attach(cq, source);
  Reader reader(cq);
  await_sleeper(cq);
  {
    const Guard guard(g_lock);
    source.enabled = true;
    cq.sources_changed();
  }
  await_sleeper(cq);
  source.hand_in([&cq] { cq.push(tagged(1), nullptr); });
  ck_assert_int_eq(reader.join(), 1);
  detach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(blocking_reads_of_several_threads_share_the_completions) {
  CompletionQueue& cq = open();
  FakeSource source;
  source.still_wanted = [&] { return cq.sleeping(); };
  attach(cq, source);
  constexpr uint64_t kEach = 500;
  constexpr size_t kThreads = 3;
  std::atomic<uint64_t> sum{0};
  std::vector<std::thread> readers;
  for (size_t t = 0; t < kThreads; ++t)
    readers.emplace_back([&] {
      for (uint64_t i = 0; i < kEach; ++i) {
        fi_cq_tagged_entry entry;
        ck_assert_int_eq(fi_cq_sread(&cq, &entry, 1, nullptr, kForever), 1);
        sum += entry.tag;
      }
    });
  constexpr uint64_t kAll = kEach * kThreads;
  for (uint64_t i = 1; i <= kAll; ++i) {
    if (i % 3 == 0)
      push(cq, i);
    else
      source.hand_in([&cq, i] { cq.push(tagged(i), nullptr); });
  }
  for (std::thread& reader : readers) reader.join();
  ck_assert_uint_eq(sum.load(), kAll * (kAll + 1) / 2);
  detach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(readers_of_two_queues_of_one_source_both_wake) {
  CompletionQueue& sent = open();
  CompletionQueue& received = open();
  FakeSource source;
  source.still_wanted = [&] { return sent.sleeping() || received.sleeping(); };
  attach(sent, source);
  attach(received, source);
  for (int i = 0; i < 200; ++i) {
    Reader first(sent), second(received);
    source.hand_in([&] { received.push(tagged(1), nullptr); });
    ck_assert_int_eq(second.join(), 1);
    source.hand_in([&] { sent.push(tagged(2), nullptr); });
    ck_assert_int_eq(first.join(), 1);
  }
  detach(sent, source);
  detach(received, source);
  ck_assert_int_eq(fi_close(&sent.fid), 0);
  ck_assert_int_eq(fi_close(&received.fid), 0);
}

TEST(blocking_read_waits_for_the_threshold, 1, 7) {
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_TAGGED;
  attr.wait_obj = FI_WAIT_UNSPEC;
  attr.wait_cond = FI_CQ_COND_THRESHOLD;
  attr.size = 4;
  CompletionQueue& cq = open(attr);
  // A threshold above the size of the queue is reduced to it.
  const size_t threshold = size_t(_i);
  const uint64_t enough = std::min<uint64_t>(threshold, 4);
  Reader reader(cq, threshold, 8);
  for (uint64_t i = 0; i < enough; ++i) {
    await_sleeper(cq);
    push(cq, i);
  }
  ck_assert_int_eq(reader.join(), ssize_t(enough));
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(blocking_read_below_the_threshold_returns_what_there_is_in_the_end) {
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_TAGGED;
  attr.wait_obj = FI_WAIT_UNSPEC;
  attr.wait_cond = FI_CQ_COND_THRESHOLD;
  CompletionQueue& cq = open(attr);
  push(cq, 1);
  fi_cq_tagged_entry entry;
  const void* condition = reinterpret_cast<const void*>(2);
  ck_assert_int_eq(fi_cq_sread(&cq, &entry, 1, condition, 1), 1);
  push(cq, 2);
  ck_assert_int_eq(fi_cq_signal(&cq), 0);
  ck_assert_int_eq(fi_cq_sread(&cq, &entry, 1, condition, kForever), 1);
  push_error(cq);
  ck_assert_int_eq(fi_cq_sread(&cq, &entry, 1, condition, kForever), -FI_EAVAIL);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

// --- fi_trywait ---------------------------------------------------------------------------------

TEST(trywait_refuses_while_something_is_pending) {
  CompletionQueue& cq = open();
  fi_cq_tagged_entry entry;
  push(cq, 1);
  ck_assert_int_eq(ask(cq), -FI_EAGAIN);
  ck_assert_int_eq(fi_cq_read(&cq, &entry, 1), 1);
  ck_assert_int_eq(ask(cq), 0);
  push_error(cq);
  ck_assert_int_eq(ask(cq), -FI_EAGAIN);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(descriptor_becomes_readable_by_completion_source_or_signal, 3) {
  CompletionQueue& cq = open();
  FakeSource source;
  attach(cq, source);
  const std::function<void()> events[] = {
      [&] { push(cq, 1); },
      [&] { source.hand_in([&] { cq.push(tagged(1), nullptr); }); },
      [&] { ck_assert_int_eq(fi_cq_signal(&cq), 0); },
  };
  for (int round = 0; round < 3; ++round) {
    ck_assert_int_eq(ask(cq), 0);
    ck_assert(!readable(descriptor(cq)));
    events[_i]();
    ck_assert(readable(descriptor(cq)));
    fi_cq_tagged_entry entry;
    ck_assert_int_eq(fi_cq_read(&cq, &entry, 1), _i == 2 ? -FI_EAGAIN : 1);
    if (_i == 2) ck_assert_int_eq(ask(cq), -FI_EAGAIN);
  }
  detach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(trywait_finds_the_completion_that_its_own_progress_brings) {
  CompletionQueue& cq = open();
  FakeSource source;
  attach(cq, source);
  source.hand_in([&] { cq.push(tagged(1), nullptr); });
  ck_assert_int_eq(ask(cq), -FI_EAGAIN);
  detach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(queue_that_is_polled_after_trywait_no_longer_asks_to_be_woken) {
  CompletionQueue& cq = open();
  FakeSource source;
  source.still_wanted = [&] { return cq.sleeping(); };
  attach(cq, source);
  ck_assert_int_eq(ask(cq), 0);
  ck_assert(source.armed());
  fi_cq_tagged_entry entry;
  for (int i = 0; i < 1000; ++i) ck_assert_int_eq(fi_cq_read(&cq, &entry, 1), -FI_EAGAIN);
  ck_assert(!source.armed());
  // A thread that does sleep on the descriptor must wake and call fi_trywait again.
  ck_assert(readable(descriptor(cq)));
  ck_assert_int_eq(ask(cq), 0);
  ck_assert(source.armed());
  detach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(queue_of_a_driven_domain_leaves_the_sources_to_the_driver) {
  fi_cq_attr attr{};
  attr.wait_obj = FI_WAIT_FD;
  auto made = make_cq({g_lock, FI_VERSION(1, 9), true, {}}, &attr, nullptr);
  ck_assert_int_eq(made.error(), 0);
  CompletionQueue& cq = **made;
  FakeSource source;
  attach(cq, source);
  ck_assert_int_eq(ask(cq), 0);
  ck_assert(!source.armed());
  push(cq, 1);
  ck_assert(readable(descriptor(cq)));
  detach(cq, source);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

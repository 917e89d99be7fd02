#include "util/thread_life.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <iterator>
#include <new>
#include <thread>

#include "libcheck.h"

namespace erdma::util {
namespace {

struct Shared {
  std::atomic<uint32_t> word, step;
};

Shared& map_shared() {
  void* const page =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(page, MAP_FAILED);
  return *new (page) Shared{};
}

/// Emulators of other processors lack the call.
bool kernel_can() {
  ThreadLife life;
  std::atomic<uint32_t> word = 0;
  bool can = false;
  std::thread([&] { can = life.show_in(word); }).join();
  return can;
}

SUITE(.offered = kernel_can);

enum class End { thread, exits, is_killed, executes };
constexpr End kEnds[] = {End::thread, End::exits, End::is_killed, End::executes};

void execute() {
  char name[] = "sleep", time[] = "1000";
  char* const arguments[] = {name, time, nullptr};
  execvp(name, arguments);
  _exit(1);
}

void wait_for(const std::atomic<uint32_t>& step, uint32_t at_least) {
  while (step.load() < at_least) std::this_thread::yield();
}

/// A process whose second thread shows its life until `end`.
[[noreturn]] void be_child(Shared& shared, End end) {
  static ThreadLife life;
  std::thread shows([&] {
    shared.step = life.show_in(shared.word) ? 1 : 100;
    wait_for(shared.step, 2);
    while (end != End::thread) pause();
  });
  wait_for(shared.step, 2);
  if (end == End::exits) _exit(0);
  if (end == End::executes) execute();
  shows.join();
  shared.step = 3;
  for (;;) pause();
}

TEST(a_word_tells_until_its_thread_is_gone, std::size(kEnds)) {
  const End end = kEnds[_i];
  Shared& shared = map_shared();
  ck_assert(!thread_exists(shared.word));
  const pid_t child = fork();
  if (child == 0) be_child(shared, end);
  wait_for(shared.step, 1);
  ck_assert_uint_eq(shared.step, 1);
  ck_assert(thread_exists(shared.word));
  shared.step = 2;
  if (end == End::is_killed) kill(child, SIGKILL);
  while (thread_exists(shared.word)) std::this_thread::yield();
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  ck_assert_int_eq(WIFSIGNALED(status), end != End::exits);  // it has not failed to execute
  munmap(&shared, sizeof shared);
}

/// A process that has joined the thread may give the memory of the word away.
TEST(a_thread_that_was_joined_does_not_exist_any_more) {
  for (int i = 0; i < 200; ++i) {
    ThreadLife life;
    std::atomic<uint32_t> word = 0;
    bool shown = false;
    std::thread([&] { shown = life.show_in(word) && thread_exists(word); }).join();
    ck_assert(shown);
    ck_assert(!thread_exists(word));
  }
}

/// The child that is forked has neither the thread nor its list, so its end changes nothing.
TEST(the_end_of_a_forked_child_changes_nothing) {
  Shared& shared = map_shared();
  static ThreadLife life;
  std::thread parent([&] {
    ck_assert(life.show_in(shared.word));
    const pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, nullptr, 0);
    ck_assert(thread_exists(shared.word));
  });
  parent.join();
  ck_assert(!thread_exists(shared.word));
  munmap(&shared, sizeof shared);
}

TEST(one_word_tells_of_a_thread) {
  ThreadLife life;
  std::atomic<uint32_t> first = 0, second = 0;
  std::thread([&] {
    ck_assert(life.show_in(first));
    ck_assert(!life.show_in(second));
    ck_assert(!thread_exists(second));
  }).join();
}

}  // namespace

}  // namespace erdma::util

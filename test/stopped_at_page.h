#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "libcheck.h"

namespace erdma::test {

/// Runs a call on a thread of its own and stops it, during the lifetime of this object, at its
/// first access to a page of memory. There is one such object at a time.
class StoppedAtPage {
 public:
  /// Returns once the thread has stopped. `page` is a whole page that nothing else uses.
  template <typename Call>
  StoppedAtPage(void* page, Call call) {
    s_page = page;
    ck_assert(pipe(s_stopped) == 0 && pipe(s_released) == 0);
    struct sigaction on_access {};
    on_access.sa_handler = wait;
    ck_assert_int_eq(sigaction(SIGSEGV, &on_access, &x_before), 0);
    ck_assert_int_eq(mprotect(page, size_t(getpagesize()), PROT_NONE), 0);
    x_thread = std::thread(call);
    char byte;
    ck_assert_int_eq(read(s_stopped[0], &byte, 1), 1);
  }
  ~StoppedAtPage() {
    ck_assert_int_eq(write(s_released[1], "", 1), 1);
    x_thread.join();
    sigaction(SIGSEGV, &x_before, nullptr);
    for (const int fd : {s_stopped[0], s_stopped[1], s_released[0], s_released[1]}) close(fd);
  }
  StoppedAtPage(const StoppedAtPage&) = delete;
  StoppedAtPage& operator=(const StoppedAtPage&) = delete;

 private:
  static void wait(int) {
    char byte = 0;
    if (write(s_stopped[1], &byte, 1) != 1 || read(s_released[0], &byte, 1) != 1 ||
        mprotect(s_page, size_t(getpagesize()), PROT_READ | PROT_WRITE))
      _exit(1);
  }

  inline static void* s_page = nullptr;
  inline static int s_stopped[2], s_released[2];
  struct sigaction x_before {};
  std::thread x_thread;
};

}  // namespace erdma::test

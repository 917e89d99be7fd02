#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace erdma::util {

/// Tells other processes by a word of shared memory that a thread of this one exists, and with it
/// the process and its memory. The word is a robust futex that the thread holds as long as it
/// exists. So the kernel marks it when the thread exits for any reason, which is before the process
/// gives its memory up or executes another program: set_robust_list(2), and
/// Documentation/locking/robust-futexes.rst of the kernel.
class ThreadLife {
 public:
  ThreadLife() noexcept = default;
  ThreadLife(const ThreadLife&) = delete;
  ThreadLife& operator=(const ThreadLife&) = delete;

  /// For the calling thread, which must never lock a robust mutex, as its list of them is replaced,
  /// and never execute a program, as the kernel would not know it by its id any more. This object
  /// and `word` must outlive the thread. True: the word tells of the thread. False: the kernel
  /// cannot do it (emulators may lack the call), or another word tells of it; this word stays as it
  /// was.
  bool show_in(std::atomic<uint32_t>& word) noexcept {
    if (x_list.list.next) return false;
    const auto entry = reinterpret_cast<uintptr_t>(&x_entry);
    x_list.list.next = &x_entry;
    x_list.futex_offset = long(reinterpret_cast<uintptr_t>(&word) - entry);
    x_entry.next = &x_list.list;
    if (::syscall(SYS_set_robust_list, &x_list, sizeof x_list) != 0) return false;
    word.store(uint32_t(::gettid()), std::memory_order_release);
    return true;
  }

 private:
  robust_list_head x_list{};
  robust_list x_entry{};  ///< in private memory, so that no other process can redirect the kernel
};

/// False: the thread has exited, or none has ever shown in the word that it exists. The process
/// that has the word may write anything there.
inline bool thread_exists(uint32_t word) noexcept {
  return (word & FUTEX_TID_MASK) != 0 && (word & FUTEX_OWNER_DIED) == 0;
}

}  // namespace erdma::util

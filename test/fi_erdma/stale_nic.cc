// Loaded before libsofterdma.so: a userfaultfd that reports nothing, and a NIC that goes on sending
// the bytes of memory that was registered and then replaced, as a NIC does whose driver pinned it.
#include <dlfcn.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t kLong = size_t(1) << 20;

/// The memory that was replaced last.
const char* g_at = nullptr;
char* g_kept = nullptr;
size_t g_bytes = 0;

using Move = void* (*)(void*, const void*, size_t);
Move the_move() {
  static const Move move = reinterpret_cast<Move>(dlsym(RTLD_NEXT, "memmove"));
  return move;
}

}  // namespace

EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (request == UFFDIO_REGISTER || request == UFFDIO_UNREGISTER) return 0;
  return int(syscall(SYS_ioctl, fd, request, argument));
}

EXPORT void* mmap(void* at, size_t bytes, int protection, int flags, int fd,
                  off_t offset) noexcept {
  if ((flags & MAP_FIXED) && (flags & MAP_ANONYMOUS) && bytes == kLong &&
      (g_kept = static_cast<char*>(std::malloc(bytes)))) {
    std::memcpy(g_kept, at, bytes);
    g_at = static_cast<const char*>(at);
    g_bytes = bytes;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}

/// What libsofterdma.so moves within a process.
EXPORT void* memmove(void* to, const void* from, size_t bytes) noexcept {
  const char* const begin = static_cast<const char*>(from);
  const bool replaced = g_at && begin >= g_at && begin + bytes <= g_at + g_bytes;
  return the_move()(to, replaced ? g_kept + (begin - g_at) : from, bytes);
}

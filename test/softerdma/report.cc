#include "softerdma/report.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace softerdma {
namespace {

std::atomic<uint64_t> counted{0};

/// Writes a whole line by one call, so that lines of several processes do not mix.
void write_line(int fd, const char* line, size_t length) {
  if (::write(fd, line, length) < 0) return;
}

size_t format_line(char* line, size_t size, const char* kind, const char* format, va_list args) {
  int begin = std::snprintf(line, size, "softerdma: %s[%s %d] ", kind,
                            program_invocation_short_name, getpid());
  auto used = static_cast<size_t>(begin);
  if (used >= size) used = size - 2;
  std::vsnprintf(line + used, size - used - 1, format, args);
  size_t length = std::strlen(line);
  line[length++] = '\n';
  return length;
}

}  // namespace

void note(const char* format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  size_t length = format_line(line, sizeof line, "", format, args);
  va_end(args);
  write_line(STDERR_FILENO, line, length);
}

void violation(const char* format, ...) {
  const char* mode = std::getenv("SOFTERDMA_STRICT");
  if (mode != nullptr && std::strcmp(mode, "off") == 0) return;
  counted.fetch_add(1, std::memory_order_relaxed);
  char line[512];
  va_list args;
  va_start(args, format);
  size_t length = format_line(line, sizeof line, "violation ", format, args);
  va_end(args);
  write_line(STDERR_FILENO, line, length);
  if (const char* path = std::getenv("SOFTERDMA_REPORT"); path != nullptr && *path != '\0') {
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
      write_line(fd, line, length);
      close(fd);
    }
  }
  if (mode != nullptr && std::strcmp(mode, "abort") == 0) std::abort();
}

uint64_t violations() {
  return counted.load(std::memory_order_relaxed);
}

}  // namespace softerdma

#include "util/notice.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "util/private_fds.h"

namespace erdma::util {
namespace {

/// The longest line. It is less than PIPE_BUF, so a line is written to a pipe whole or not at all.
constexpr size_t kLineBytes = 1024;
constexpr unsigned kMostLines = 4;
constexpr char kLast[] = " (no more of these are shown)";
constexpr size_t kCodeBytes = sizeof(" [E000]") - 1;

/// Indexed by Cause.
constexpr const char* kCodes[] = {"E105", "E104", "E503", "W503", "E504", "W401",
                                  "W205", "W203", "W402", "W403", "W504", "W602",
                                  "E603", "E206", "E207", "W505", "E216"};
static_assert(std::size(kCodes) == size_t(Cause::count));

std::atomic<NoticeLevel> g_level{NoticeLevel::warn};
std::atomic<bool> g_has_standard_error{true};
/// For each cause, the hashes of the texts that have been written; 0 = a free place.
std::atomic<uint32_t> g_told[size_t(Cause::count)][kMostLines];

/// A cause with one remedy gets one line; other causes get a line for each of a few objects.
constexpr unsigned most_lines(Cause cause) noexcept {
  switch (cause) {
    case Cause::variable:
    case Cause::no_data:
    case Cause::device:
    case Cause::no_device:
    case Cause::port:
    case Cause::zero_copy:
    case Cause::locked_memory:
    case Cause::gpu_staged:
    case Cause::gpu_refused:
    case Cause::host_mismatch:
    case Cause::regions:
      return kMostLines;
    case Cause::peer_lost:
    case Cause::lost_messages:
      return 3;
    default:
      return 1;
  }
}

uint32_t hash_of(const char* text) noexcept {
  uint32_t hash = 2166136261u;
  for (; *text; ++text) hash = (hash ^ uint8_t(*text)) * 16777619u;
  return hash ? hash : 1;
}

enum class Turn : uint8_t { none, one, last };

/// Claims a line for the text. `none`: the text was written before, or its cause has no line left.
/// `last`: this is the last line of a cause that has several.
Turn take_turn(Cause cause, const char* text) noexcept {
  const uint32_t hash = hash_of(text);
  const unsigned most = most_lines(cause);
  for (unsigned i = 0; i < most; ++i) {
    uint32_t told = 0;
    if (g_told[size_t(cause)][i].compare_exchange_strong(told, hash, std::memory_order_relaxed))
      return i + 1 == most && most > 1 ? Turn::last : Turn::one;
    if (told == hash) return Turn::none;
  }
  return Turn::none;
}

/// While this object lives, a write to a pipe without a reader does not kill the process.
class WithoutSigpipe {
 public:
  WithoutSigpipe() noexcept {
    sigset_t pending;
    sigemptyset(&x_pipe);
    sigaddset(&x_pipe, SIGPIPE);
    x_was_pending = !sigpending(&pending) && sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &x_pipe, &x_previous);
  }
  ~WithoutSigpipe() {
    constexpr timespec kNow{};
    if (x_raised && !x_was_pending) (void)sigtimedwait(&x_pipe, nullptr, &kNow);
    pthread_sigmask(SIG_SETMASK, &x_previous, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;
  void raised() noexcept { x_raised = true; }

 private:
  sigset_t x_pipe, x_previous;
  bool x_was_pending = false, x_raised = false;
};

/// True if standard error has a reader and can take a line without blocking. Its number may belong
/// to a descriptor of the provider.
bool takes_a_line() noexcept {
  if (!g_has_standard_error.load(std::memory_order_relaxed) || is_private(STDERR_FILENO))
    return false;
  pollfd error_output{STDERR_FILENO, POLLOUT, 0};
  return poll(&error_output, 1, 0) == 1 && error_output.revents == POLLOUT;
}

class Line {
 public:
  Line(const char* format, va_list arguments) noexcept {
    char host[65] = "?";
    (void)gethostname(host, sizeof(host) - 1);
    host[std::min(sizeof(host) - 1, std::strcspn(host, "."))] = '\0';
    add("erdma: %s[%d]: ", host, int(getpid()));
    x_text_at = x_length;
    add(format, arguments);
    make_one_line();
  }

  void add(const char* format, ...) noexcept __attribute__((format(printf, 2, 3))) {
    va_list arguments;
    va_start(arguments, format);
    add(format, arguments);
    va_end(arguments);
  }
  void add(const char* format, va_list arguments) noexcept {
    const size_t room = kTextBytes - x_length;
    const int wanted = std::vsnprintf(x_bytes + x_length, room, format, arguments);
    if (wanted > 0) x_length += std::min(size_t(wanted), room - 1);
  }

  /// Replaces control characters: the text may contain values from outside (a variable, a name),
  /// which must not end the line or move the cursor.
  void make_one_line() noexcept {
    while (x_length > x_text_at && x_bytes[x_length - 1] == '\n') --x_length;
    x_bytes[x_length] = '\0';
    for (char* c = x_bytes; *c; ++c)
      if (uint8_t(*c) < 0x20 || *c == 0x7f) *c = '?';
  }
  const char* text() const noexcept { return x_bytes + x_text_at; }

  /// Has room for a code and for kLast, and for no more.
  void append(const char* suffix) noexcept {
    std::memcpy(x_bytes + x_length, suffix, std::strlen(suffix));
    x_length += std::strlen(suffix);
  }
  void write() noexcept {
    x_bytes[x_length++] = '\n';
    WithoutSigpipe guard;
    if (::write(STDERR_FILENO, x_bytes, x_length) < 0 && errno == EPIPE) guard.raised();
  }

 private:
  static constexpr size_t kTextBytes = kLineBytes - sizeof(kLast) - kCodeBytes - 1;
  char x_bytes[kLineBytes];
  size_t x_length = 0, x_text_at = 0;
};

}  // namespace

const char* code_of(Cause cause) noexcept {
  return kCodes[size_t(cause)];
}

void look_at_standard_error() noexcept {
  const bool open = ::fcntl(STDERR_FILENO, F_GETFD) >= 0;
  g_has_standard_error.store(open, std::memory_order_relaxed);
}

void set_notice_level(NoticeLevel level) noexcept {
  g_level.store(level, std::memory_order_relaxed);
}

NoticeLevel notice_level() noexcept {
  return g_level.load(std::memory_order_relaxed);
}

bool may_tell(Cause cause) noexcept {
  return notice_level() != NoticeLevel::off &&
         !g_told[size_t(cause)][most_lines(cause) - 1].load(std::memory_order_relaxed);
}

void tell(Cause cause, const char* format, ...) noexcept {
  const int saved_errno = errno;
  if (may_tell(cause) && takes_a_line()) {
    va_list arguments;
    va_start(arguments, format);
    Line line(format, arguments);
    va_end(arguments);
    const Turn turn = take_turn(cause, line.text());
    if (turn != Turn::none) {
      for (const char* const part : {" [", code_of(cause), "]"}) line.append(part);
      if (turn == Turn::last) line.append(kLast);
      line.write();
    }
  }
  errno = saved_errno;
}

void announce(const char* format, ...) noexcept {
  const int saved_errno = errno;
  if (notice_level() == NoticeLevel::info && takes_a_line()) {
    va_list arguments;
    va_start(arguments, format);
    Line line(format, arguments);
    va_end(arguments);
    line.write();
  }
  errno = saved_errno;
}

}  // namespace erdma::util

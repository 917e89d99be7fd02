#include "fi_common.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <new>

namespace erdma::clients {

double seconds_since(Clock::time_point start) noexcept {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "%s[%d]: %s\n", program_invocation_short_name, int(::getpid()), text);
  std::fflush(nullptr);
  ::_exit(1);
}

void must(int rc, const char* what) {
  if (rc != 0) fail("%s: %d (%s)", what, rc, fi_strerror(rc < 0 ? -rc : rc));
}

uint64_t Random::next() noexcept {  // splitmix64
  uint64_t z = (x_state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

size_t Random::length(size_t largest) noexcept {
  const uint64_t kind = below(16);
  size_t limit = kind < 6    ? 128
                 : kind < 10 ? 4096
                 : kind < 13 ? 16384
                 : kind < 15 ? 131072
                             : largest;
  return below(std::min(limit, largest) + 1);
}

void fill(std::span<std::byte> data, uint64_t seed) noexcept {
  Random random(seed);
  size_t at = 0;
  for (; at + 8 <= data.size(); at += 8) {
    const uint64_t word = random.next();
    std::memcpy(data.data() + at, &word, 8);
  }
  const uint64_t word = random.next();
  if (at < data.size()) std::memcpy(data.data() + at, &word, data.size() - at);
}

bool holds(std::span<const std::byte> data, uint64_t seed) noexcept {
  Random random(seed);
  size_t at = 0;
  for (; at + 8 <= data.size(); at += 8) {
    const uint64_t word = random.next();
    if (std::memcmp(data.data() + at, &word, 8) != 0) return false;
  }
  const uint64_t word = random.next();
  return at == data.size() || std::memcmp(data.data() + at, &word, data.size() - at) == 0;
}

void Op::reset() noexcept {
  done.store(false);
  completions.store(0);
  error = 0;
  length = 0;
  tag = 0;
}

// ---- Board and processes

Board& Board::create() {
  void* memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  return *new (memory) Board{};
}

void Board::publish(int who, const std::string& name) noexcept {
  REQUIRE(name.size() <= sizeof names[who].bytes);
  std::memcpy(names[who].bytes, name.data(), name.size());
  names[who].length.store(uint32_t(name.size()));
}

std::string Board::name(int who) const {
  return {names[who].bytes, names[who].length.load()};
}

std::vector<fi_addr_t> Board::meet(Node& node, int who, int processes) {
  publish(who, node.name());
  std::vector<fi_addr_t> addresses;
  for (int other = 0; other < processes; ++other) {
    node.wait_until([&] { return published(other); }, "the other processes to start");
    addresses.push_back(node.insert(name(other)));
  }
  return addresses;
}

namespace {

/// With ERDMA_HOSTS=A,B, the processes of a test take turns in these network namespaces. Each gets
/// the /sys of its namespace, as with `ip netns exec`.
void enter_host(size_t turn) {
  const char* list = std::getenv("ERDMA_HOSTS");
  if (!list || !*list) return;
  std::vector<std::string> hosts(1);
  for (; *list; ++list)
    if (*list == ',')
      hosts.emplace_back();
    else
      hosts.back() += *list;
  const std::string path = "/run/netns/" + hosts[turn % hosts.size()];
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0 || ::unshare(CLONE_NEWNS) != 0 ||
      ::mount("", "/", nullptr, MS_SLAVE | MS_REC, nullptr) != 0)
    fail("cannot enter %s", path.c_str());
  ::umount2("/sys", MNT_DETACH);
  if (::mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0) fail("cannot mount the /sys of a host");
  ::close(fd);
}

}  // namespace

pid_t spawn(const std::function<int()>& body) {
  static size_t turn = 0;
  const size_t ours = turn++;
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  enter_host(ours);
  const int status = body();
  std::fflush(nullptr);
  ::_exit(status);
}

namespace {

/// Returns 0 if the process exited with 0.
int judge(pid_t child, int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) ::_exit(77);  // the process said why
  std::fprintf(stderr, "process %d: %s %d\n", int(child),
               WIFSIGNALED(status) ? "ended by signal" : "exit status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  return 1;
}

void kill_all(const std::vector<pid_t>& children) {
  for (pid_t child : children) ::kill(child, SIGKILL);
  for (pid_t child : children) ::waitpid(child, nullptr, 0);
}

}  // namespace

int reap(std::vector<pid_t> children, double limit_s) {
  const auto start = Clock::now();
  while (!children.empty()) {
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      const pid_t child = ::waitpid(children[i], &status, WNOHANG);
      if (child == 0) continue;
      if (child < 0) fail("waitpid: %s", std::strerror(errno));
      children.erase(children.begin() + ptrdiff_t(i));
      if (judge(child, status) == 0) break;
      kill_all(children);
      return 1;
    }
    if (seconds_since(start) > limit_s) {
      std::fprintf(stderr, "process %d: not finished after %.0f s\n", int(children[0]), limit_s);
      kill_all(children);
      return 1;
    }
    ::usleep(300);
  }
  return 0;
}

// ---- command line and /proc

bool has_flag(int argc, char** argv, const char* name) {
  return std::any_of(argv, argv + argc, [&](const char* word) { return !std::strcmp(word, name); });
}

uint64_t option(int argc, char** argv, const char* name, uint64_t fallback) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (!std::strcmp(argv[i], name)) return std::strtoull(argv[i + 1], nullptr, 0);
  }
  return fallback;
}

size_t status_kib(const char* key) {
  FILE* file = std::fopen("/proc/self/status", "r");
  if (!file) return 0;
  char line[256];
  size_t kib = 0;
  while (std::fgets(line, sizeof line, file)) {
    if (!std::strncmp(line, key, std::strlen(key))) {
      kib = std::strtoull(line + std::strlen(key) + 1, nullptr, 10);
    }
  }
  std::fclose(file);
  return kib;
}

std::vector<std::string> entries(const char* directory) {
  std::vector<std::string> names;
  DIR* stream = ::opendir(directory);
  if (!stream) return names;
  while (const dirent* entry = ::readdir(stream)) names.emplace_back(entry->d_name);
  ::closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace erdma::clients

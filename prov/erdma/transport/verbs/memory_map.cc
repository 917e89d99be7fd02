#include "transport/verbs/memory_map.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "util/fd.h"

namespace erdma::transport::verbs {
namespace {

// The first file is that of the first thread, and is empty once that thread has ended by
// pthread_exit(3). It is asked first, as qemu-user replaces only this file by one that has the
// addresses of the emulated program.
constexpr const char* kMaps[] = {"/proc/self/maps", "/proc/thread-self/maps"};

// The name of private huge pages without a file; no file with this name can be opened.
constexpr char kHugePages[] = "/anon_hugepage (deleted)";

/// linux/fs.h since 6.11: looks up one mapping instead of listing all.
struct MapQuery {
  uint64_t size = sizeof(MapQuery);
  uint64_t flags = 0;
  uint64_t address = 0;
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t permissions = 0;
  uint64_t page_size = 0;
  uint64_t offset = 0;
  uint64_t inode = 0;
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  uint32_t name_bytes = 0;
  uint32_t build_id_bytes = 0;
  uint64_t name = 0;
  uint64_t build_id = 0;
};
static_assert(sizeof(MapQuery) == 104);
constexpr unsigned long kQueryMap = _IOWR('f', 17, MapQuery);
constexpr uint64_t kReadable = 1, kWritable = 2, kShared = 8;

/// 0, or -errno: -ENOENT = there is no mapping.
int query(int maps, uintptr_t address, Mapping& mapping) noexcept {
  char name[4096] = "";
  MapQuery query;
  query.address = address;
  query.name = reinterpret_cast<uintptr_t>(name);
  query.name_bytes = sizeof(name);
  if (::ioctl(maps, kQueryMap, &query)) return -errno;
  mapping.range = {query.start, query.end};
  mapping.ours =
      (query.permissions & (kReadable | kWritable | kShared)) == (kReadable | kWritable) &&
      (query.inode == 0 || std::strcmp(name, kHugePages) == 0);
  return 0;
}

/// Reads lines until the mapping is found or passed.
bool scan(int maps, uintptr_t address, Mapping& mapping) noexcept {
  char text[16384];
  size_t kept = 0;
  for (;;) {
    const ssize_t got = ::read(maps, text + kept, sizeof(text) - 1 - kept);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    kept += size_t(got);
    text[kept] = 0;
    char* line = text;
    for (char* end; (end = std::strchr(line, '\n')); line = end + 1) {
      *end = 0;
      if (!parse_mapping(line, mapping) || mapping.range.end <= address) continue;
      return mapping.range.start <= address;
    }
    kept -= size_t(line - text);
    if (kept == sizeof(text) - 1) return false;
    std::memmove(text, line, kept);
  }
}

bool find_mapping_in(const char* path, uintptr_t address, Mapping& mapping) noexcept {
  const util::Fd maps(::open(path, O_RDONLY | O_CLOEXEC));
  if (!maps) return false;
  const int rc = query(maps.get(), address, mapping);
  return rc == 0 || (rc != -ENOENT && scan(maps.get(), address, mapping));
}

/// As far as the stack may grow. Its top holds the data that the kernel passes to a program at its
/// start. Empty: the file does not have it.
MemoryRange find_first_stack(const char* path) noexcept {
  // used without a limit: the heap grows towards the stack
  constexpr size_t kDeepest = size_t(64) << 30;
  const uintptr_t within = ::getauxval(AT_RANDOM);
  const util::File maps = util::open_to_read(path);
  MemoryRange below;
  char line[512];
  while (within && maps && std::fgets(line, sizeof(line), maps.get())) {
    Mapping mapping;
    if (!parse_mapping(line, mapping)) continue;
    if (mapping.range.start > within) break;
    if (mapping.range.end <= within) {
      below = mapping.range;
      continue;
    }
    rlimit limit{};
    if (::getrlimit(RLIMIT_STACK, &limit)) limit.rlim_cur = 0;
    const MemoryRange& stack = mapping.range;
    const size_t depth = std::min({size_t(limit.rlim_cur), kDeepest, stack.end - below.end});
    return {std::min(stack.start, stack.end - depth), stack.end};
  }
  return {};
}

const MemoryRange& first_stack() noexcept {
  static const MemoryRange stack = [] {
    const MemoryRange found = find_first_stack(kMaps[0]);
    return found.empty() ? find_first_stack(kMaps[1]) : found;
  }();
  return stack;
}

/// Empty for the first thread: libpthread reports bounds that are too wide and may include the
/// heap.
MemoryRange find_own_stack() noexcept {
  pthread_attr_t attributes;
  if (::pthread_getattr_np(::pthread_self(), &attributes)) return {};
  void* start = nullptr;
  size_t bytes = 0;
  const int rc = ::pthread_attr_getstack(&attributes, &start, &bytes);
  ::pthread_attr_destroy(&attributes);
  const auto at = reinterpret_cast<uintptr_t>(start);
  const MemoryRange stack{at, at + bytes};
  return rc || stack.overlaps(first_stack()) ? MemoryRange{} : stack;
}

}  // namespace

bool parse_mapping(const char* line, Mapping& mapping) noexcept {
  unsigned long start = 0, end = 0, inode = 0;
  char permissions[5] = "";
  int name = 0;
  if (std::sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu %n", &start, &end, permissions, &inode,
                  &name) < 4 ||
      name == 0)
    return false;
  mapping.range = {start, end};
  mapping.ours = permissions[0] == 'r' && permissions[1] == 'w' && permissions[3] == 'p' &&
                 (inode == 0 || std::strcmp(line + name, kHugePages) == 0);
  return true;
}

bool find_mapping(uintptr_t address, Mapping& mapping) noexcept {
  return find_mapping_in(kMaps[0], address, mapping) || find_mapping_in(kMaps[1], address, mapping);
}

bool is_stack(const MemoryRange& pages) noexcept {
  static thread_local const MemoryRange own = find_own_stack();
  return first_stack().overlaps(pages) || own.overlaps(pages);
}

}  // namespace erdma::transport::verbs

#include "transport/verbs/memory_map.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "util/fd.h"

namespace erdma::transport::verbs {
namespace {

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
  const util::Fd maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (!maps) return false;
  const int rc = query(maps.get(), address, mapping);
  return rc == 0 || (rc != -ENOENT && scan(maps.get(), address, mapping));
}

}  // namespace erdma::transport::verbs

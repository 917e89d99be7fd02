#include "transport/verbs/stacks.h"

#include <pthread.h>
#include <sys/auxv.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "transport/verbs/memory_map.h"

namespace erdma::transport::verbs {
namespace {

struct CloseMaps {
  void operator()(FILE* file) const noexcept { std::fclose(file); }
};

/// As far as the stack may grow. Its top holds the data that the kernel passes to a program at its
/// start.
MemoryRange find_first_stack() noexcept {
  // used without a limit: the heap grows towards the stack
  constexpr size_t kDeepest = size_t(64) << 30;
  const uintptr_t within = ::getauxval(AT_RANDOM);
  const std::unique_ptr<FILE, CloseMaps> maps(std::fopen("/proc/self/maps", "re"));
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
  static const MemoryRange stack = find_first_stack();
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

bool is_stack(const MemoryRange& pages) noexcept {
  static thread_local const MemoryRange own = find_own_stack();
  return first_stack().overlaps(pages) || own.overlaps(pages);
}

}  // namespace erdma::transport::verbs

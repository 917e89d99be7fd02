// Large regions. One huge page, or a few MiB, are mapped repeatedly to make up a region.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rig.h"

namespace erdma::hardware {
namespace {

constexpr size_t kHuge = size_t(2) << 20;
constexpr size_t kFourGib = size_t(4) << 30;

/// Maps one file of `piece` bytes repeatedly to `length` bytes of addresses.
std::byte* repeated(size_t length, size_t piece, unsigned flags) {
  const int file = ::memfd_create("region", MFD_CLOEXEC | flags);
  if (file < 0 || ::ftruncate(file, off_t(piece)))
    cannot("a file of %zu bytes: %s", piece, std::strerror(errno));
  void* const place =
      ::mmap(nullptr, length + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) cannot("%zu bytes of addresses: %s", length, std::strerror(errno));
  const uintptr_t start = (reinterpret_cast<uintptr_t>(place) + kHuge - 1) & ~uintptr_t(kHuge - 1);
  for (size_t at = 0; at < length; at += piece) {
    void* const wanted = reinterpret_cast<void*>(start + at);
    if (::mmap(wanted, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != wanted)
      cannot("%s: %s", flags & MFD_HUGETLB ? "no huge page (vm.nr_hugepages)" : "memory",
             std::strerror(errno));
  }
  ::close(file);
  return reinterpret_cast<std::byte*>(start);
}

// --- The active side writes the last eight bytes of the passive side's region.
constexpr char kMark[] = "the end";

void region_passive(const Options& options, size_t length) {
  End end(options);
  std::byte* const memory = repeated(length, kHuge, MFD_HUGETLB);
  std::memset(memory, 0, kHuge);
  const Stopwatch since;
  Region region(end.pd(), memory, length);
  fact("registered", region ? "yes" : std::strerror(errno));
  fact("register_us", since.us());
  end.wait_for_peer();
  end.accept(region ? region.window() : Window{});
  end.watch("passive", 0, 8'000);
  fact("arrived",
       std::memcmp(memory + length - sizeof(kMark), kMark, sizeof(kMark)) ? "no" : "yes");
}

void region_active(const Options& options) {
  End end(options);
  char mark[sizeof(kMark)];
  std::memcpy(mark, kMark, sizeof(kMark));
  const Region local(end.pd(), mark, sizeof(mark));
  if (!local) fail("a region: %s", std::strerror(errno));
  end.connect({});
  if (end.theirs().length == 0) return fact("registered", "no");
  end.move(1, IBV_WR_RDMA_WRITE, local, sizeof(mark), end.theirs(),
           end.theirs().length - sizeof(mark));
  end.watch("active", 1, 5'000);
  end.disconnect();
}

void whole_passive(const Options& options) {
  region_passive(options, kFourGib);
}

void below_passive(const Options& options) {
  region_passive(options, kFourGib - kHuge);
}

void small_pages(const Options& options) {
  const Options bound = alone(options);
  const End end(bound);
  constexpr size_t kLength = size_t(1) << 30;
  std::byte* const memory = repeated(kLength, size_t(64) << 20, 0);
  (void)::madvise(memory, kLength, MADV_NOHUGEPAGE);
  const Stopwatch since;
  const Region region(end.pd(), memory, kLength);
  fact("error", region ? 0 : errno);
  fact("register_us", since.us());
  if (!region) std::printf("1 GiB: %s\n", std::strerror(errno));
}

}  // namespace

const std::vector<NamedCase> kMemoryCases = {
    {"region_below", below_passive, region_active, "a region of 4 GiB - 2 MiB, to its last byte"},
    {"region_4g", whole_passive, region_active, "a region of 4 GiB, to its last byte"},
    {"small_pages", nullptr, small_pages, "a region of 1 GiB of small pages"},
};

}  // namespace erdma::hardware

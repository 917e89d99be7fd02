#include "transport/shm/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <rdma/fi_errno.h>

#include "util/error_text.h"
#include "util/file_size.h"
#include "util/lacks.h"
#include "util/log.h"
#include "util/memory_file.h"
#include "util/process_epoch.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace erdma::transport::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// Allocates memory through the mapping alone. Returns 0 or -errno. The kernel requires the address
/// of a page's first byte, and page sizes differ between machines; backing the start of the first
/// page again costs nothing.
int populate(void* base, size_t offset, size_t bytes) noexcept {
  const size_t before = offset & (size_t(getpagesize()) - 1);
  std::byte* const from = static_cast<std::byte*>(base) + offset - before;
  return madvise(from, before + bytes, MADV_POPULATE_WRITE) ? -errno : 0;
}

/// Frees the pages that populate() could have before it failed; fallocate() frees them itself.
/// Pages that the range shares with others stay.
void unpopulate(void* base, size_t offset, size_t bytes) noexcept {
  const size_t page = size_t(getpagesize());
  const size_t first = (offset + page - 1) / page * page, end = (offset + bytes) / page * page;
  if (first < end) (void)madvise(static_cast<std::byte*>(base) + first, end - first, MADV_REMOVE);
}

/// EAGAIN is a lack of memory, too: the process locks all its mappings and has reached its limit.
/// Callers of this file would repeat the operation for ever.
int mapping_error() noexcept {
  return errno == EAGAIN ? -FI_ENOMEM : -errno;
}

}  // namespace

Memfd::Memfd(Memfd&& other) noexcept
    : x_fd(std::move(other.x_fd)),
      x_epoch(other.x_epoch),
      x_base(std::exchange(other.x_base, nullptr)),
      x_bytes(other.x_bytes) {}

Memfd& Memfd::operator=(Memfd&& other) noexcept {
  if (this == &other) return *this;
  reset();
  x_fd = std::move(other.x_fd);
  x_base = std::exchange(other.x_base, nullptr);
  x_bytes = other.x_bytes;
  x_epoch = other.x_epoch;
  return *this;
}

Memfd::~Memfd() {
  reset();
}

void Memfd::reset() noexcept {
  // In a forked child the range does not belong to this object: another mapping may be there by
  // now.
  if (x_base && x_epoch == util::process_epoch()) munmap(x_base, x_bytes);
  x_base = nullptr;
  x_fd.reset();
}

int Memfd::map(size_t bytes) noexcept {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, x_fd.get(), 0);
  if (base == MAP_FAILED) return mapping_error();
  x_base = base;
  x_bytes = bytes;
  x_epoch = util::process_epoch();
  return madvise(base, bytes, MADV_DONTFORK) ? mapping_error() : 0;
}

util::Result<Memfd> Memfd::create(const char* name, size_t bytes, size_t backed) {
  Memfd segment;
  segment.x_fd.reset(util::make_memory_file(name));
  if (!segment.x_fd) {
    const int error = errno;
    ERDMA_NOTICE(descriptors, EP_CTRL, "memfd_create(%s): %s%s", name,
                 util::ErrorText(error).c_str(), util::remedy_of_lack(error));
    return -error;
  }
  if (const int rc = util::set_file_size(segment.fd(), bytes)) {
    ERDMA_NOTICE(local_path, EP_CTRL, "cannot have %zu bytes of shared memory (%s): %s%s", bytes,
                 name, util::ErrorText(-rc).c_str(),
                 rc == -EFBIG ? "; raise RLIMIT_FSIZE (ulimit -f)" : "");
    return rc == -EFBIG ? rc : -FI_ENOMEM;
  }
  if (segment.back(0, backed)) return -FI_ENOMEM;
  if (fcntl(segment.fd(), F_ADD_SEALS, kSeals)) return -errno;
  if (const int rc = segment.map(bytes)) {
    ERDMA_WARN(EP_CTRL, "cannot map %zu bytes of shared memory (%s): %s\n", bytes, name,
               util::ErrorText(-rc).c_str());
    return rc;
  }
  return segment;
}

util::Result<Memfd> Memfd::adopt(util::Fd&& fd, size_t bytes) {
  struct stat status {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd.get(), &status) ||
      size_t(status.st_size) != bytes)
    return -FI_EINVAL;
  Memfd segment;
  segment.x_fd = std::move(fd);
  if (const int rc = segment.map(bytes)) {
    ERDMA_NOTICE(local_path, EP_CTRL,
                 "cannot map %zu bytes that a peer shares: %s; raise RLIMIT_AS (ulimit -v), "
                 "RLIMIT_MEMLOCK (ulimit -l) or vm.max_map_count",
                 bytes, util::ErrorText(-rc).c_str());
    fd = std::move(segment.x_fd);
    return rc;
  }
  return segment;
}

int Memfd::back(size_t offset, size_t bytes) noexcept {
  if (!bytes) return 0;
  const int rc =
      x_fd ? util::allocate_range(x_fd.get(), offset, bytes) : populate(x_base, offset, bytes);
  if (!rc) return 0;
  if (!x_fd) unpopulate(x_base, offset, bytes);
  ERDMA_WARN(EP_CTRL, "no memory for %zu bytes to share with peers: %s\n", bytes,
             util::ErrorText(-rc).c_str());
  return -FI_ENOMEM;
}

void Memfd::close_fd_unless_needed() noexcept {
  if (!populate(x_base, 0, 1)) x_fd.reset();
}

}  // namespace erdma::transport::shm

#include "fabric/mr.h"

#include <sched.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "fabric/abi.h"
#include "fabric/cntr.h"
#include "fabric/domain.h"
#include "fabric/fid_ops.h"
#include "hmem/cuda.h"
#include "util/clock.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

constexpr uint64_t kAccess = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ |
                             FI_REMOTE_WRITE | FI_MULTICAST | FI_COLLECTIVE;
// FI_MR_BASIC, by value: libfabric 2 lets no one write its name.
constexpr int kMrBasic = 1 << 0;
// Hints that change nothing for host memory.
constexpr uint64_t kIgnoredFlags = FI_HMEM_HOST_ALLOC | FI_HMEM_DEVICE_ONLY;

/// FI_MR_DMABUF and struct fi_mr_dmabuf of libfabric 1.20: ABI, whatever headers this is built
/// with.
constexpr uint64_t kMrDmabuf = uint64_t(1) << 40;
struct FileMemory {
  int fd;
  uint64_t offset;  ///< bytes, of both the file and `base`
  size_t length;
  void* base;
};
#ifdef FI_MR_DMABUF
static_assert(kMrDmabuf == FI_MR_DMABUF && sizeof(FileMemory) == sizeof(fi_mr_dmabuf) &&
              offsetof(FileMemory, base) == offsetof(fi_mr_dmabuf, base_addr));
#endif

/// How long fi_close waits for operations of living peers, and then for the end of theirs that do
/// not go on.
constexpr uint64_t kPatienceNanoseconds = 1'000'000'000;
/// For peers to say that they no longer access a region directly, or that they are at it; and in so
/// many steps of ours at least, as it may be we who got no processor all the time.
constexpr uint64_t kRevocationNanoseconds = 100'000'000;
constexpr unsigned kRevocationSteps = 100;

int mr_regattr(fid_t fid, const fi_mr_attr* attr, uint64_t flags, fid_mr** mr) noexcept {
  if (!fid || fid->fclass != FI_CLASS_DOMAIN) return -FI_EINVAL;
  return reg_mr(Domain::from(fid), attr, flags, mr);
}

// NOLINTNEXTLINE(readability-function-size): libfabric sets the number of parameters
int mr_regv(fid_t fid, const iovec* iov, size_t count, uint64_t access, uint64_t offset,
            uint64_t requested_key, uint64_t flags, fid_mr** mr, void* context) noexcept {
  fi_mr_attr attr{};
  attr.mr_iov = iov;
  attr.iov_count = count;
  attr.access = access;
  attr.offset = offset;
  attr.requested_key = requested_key;
  attr.context = context;
  return mr_regattr(fid, &attr, flags, mr);
}

// NOLINTNEXTLINE(readability-function-size): as above
int mr_reg(fid_t fid, const void* buffer, size_t length, uint64_t access, uint64_t offset,
           uint64_t requested_key, uint64_t flags, fid_mr** mr, void* context) noexcept {
  const iovec iov{const_cast<void*>(buffer), length};
  return mr_regv(fid, &iov, 1, access, offset, requested_key, flags, mr, context);
}

int check_iov(const iovec* iov, size_t count) noexcept {
  if (!iov || count == 0 || count > MemoryRegion::kMaxIov) return -FI_EINVAL;
  for (size_t i = 0; i < count; ++i) {
    const auto start = reinterpret_cast<uintptr_t>(iov[i].iov_base);
    if ((!start && iov[i].iov_len) || iov[i].iov_len > UINTPTR_MAX - start) return -FI_EINVAL;
  }
  return 0;
}

}  // namespace

fi_ops_mr g_mr_ops = {
    .size = sizeof(fi_ops_mr),
    .reg = mr_reg,
    .regv = mr_regv,
    .regattr = mr_regattr,
};

MemoryRegion::MemoryRegion(MemoryRegions& owner, const fi_mr_attr& attr, const iovec* memory,
                           size_t pieces) noexcept
    : fid_mr{}, x_owner(owner) {
  access = attr.access;
  iov_count = pieces;
  std::copy_n(memory, pieces, iov);
  fid.fclass = FI_CLASS_MR;
  fid.context = attr.context;
  fid.ops = &g_fid_ops<MemoryRegion>;
  mem_desc = this;
}

/// There is nothing to enable; whoever does as with other providers is not disappointed.
int MemoryRegion::control(int command, void*) noexcept {
  return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

int MemoryRegion::close() noexcept {
  return x_owner.close(*this);
}

/// Endpoints need no binding, as FI_MR_ENDPOINT is never asked for.
int MemoryRegion::bind(fid_t object, uint64_t flags) {
  if (!object) return -FI_EINVAL;
  if (object->fclass == FI_CLASS_EP) return flags ? -FI_EBADFLAGS : 0;
  return object->fclass == FI_CLASS_CNTR ? x_owner.bind(*this, Counter::from(object), flags)
                                         : -FI_EINVAL;
}

void MemoryRegion::accessed(uint64_t how) noexcept {
  Counter* const reads = how & FI_REMOTE_READ ? x_reads : nullptr;
  Counter* const writes = how & FI_REMOTE_WRITE ? x_writes : nullptr;
  if (reads) reads->add_success(1);
  if (writes && writes != reads) writes->add_success(1);
}

void MemoryRegion::keep(transport::DeviceMemoryKeeper& keeper, const transport::Dmabuf* file) {
  for (size_t i = 0; i < iov_count; ++i)
    if (!x_kept[i] && iov[i].iov_len > 0) x_kept[i] = keeper.keep(iov[i], file);
}

MemoryRegions::MemoryRegions(util::OptionalLock& lock, int mr_mode, uint32_t api_version,
                             std::function<void()> registered, std::function<void()> closed,
                             hmem::Cuda* cuda)
    : x_lock(lock),
      x_provider_keys(mr_mode & (FI_MR_PROV_KEY | kMrBasic)),
      x_attr_has_auth_key(FI_VERSION_GE(api_version, FI_VERSION(1, 5))),
      x_attr_has_interface(FI_VERSION_GE(api_version, FI_VERSION(1, 9))),
      x_attr_has_dmabuf(FI_VERSION_GE(api_version, FI_VERSION(1, 20))),
      x_cuda(cuda),
      x_registered(std::move(registered)),
      x_closed(std::move(closed)) {}

MemoryRegions::~MemoryRegions() {
  for (const auto& [key, region] : x_regions) delete region;
}

/// What the attributes name: an iovec, or a dmabuf.
struct MemoryRegions::Memory {
  iovec iov[MemoryRegion::kMaxIov];
  size_t count = 0;
  bool device = false;
  bool in_file = false;
  transport::Dmabuf file{};
};

int MemoryRegions::open(const fi_mr_attr* attr, uint64_t flags, fid_mr** mr) {
  if (!attr || !mr) return -FI_EINVAL;
  Memory memory;
  if (const int rc = take(*attr, flags, memory)) return rc;
  auto region = std::make_unique<MemoryRegion>(*this, *attr, memory.iov, memory.count);
  if (memory.device)
    if (const int rc = register_for_peers(*region, memory)) return rc;
  const transport::Dmabuf* const file = memory.in_file ? &memory.file : nullptr;
  transport::DeviceMemoryKeeper* const early = memory.device ? x_keeper.load() : nullptr;
  if (early) region->keep(*early, file);
  util::Guard guard(x_lock);
  transport::DeviceMemoryKeeper* const late = memory.device ? x_keeper.load() : nullptr;
  if (late && !early) region->keep(*late, file);
  uint64_t key = attr->requested_key;
  if (const int rc = choose_key(key)) return rc;
  region->key = key;
  x_regions.emplace(key, region.get());
  if (x_registered) x_registered();
  *mr = region.release();
  return 0;
}

void MemoryRegions::keep_device_memory_with(transport::DeviceMemoryKeeper& keeper) {
  util::Guard guard(x_lock);
  x_keeper.store(&keeper);
  for (const auto& [key, region] : x_regions)
    if (region->device) region->keep(keeper, nullptr);
}

protocol::Region* MemoryRegions::HostRegions::region(uint64_t key) noexcept {
  protocol::Region* const found = all.region(key);
  if (!found || !found->device) return found;
  ERDMA_INFO(MR, "a peer names GPU memory to an endpoint without FI_HMEM: refused\n");
  return nullptr;
}

int MemoryRegions::close(MemoryRegion& region) noexcept {
  {
    util::Guard guard(x_lock);
    if (find(region.key) == &region) x_regions.erase(region.key);
    if (region.registered || region.used)
      for (RegionUser* user : x_users) user->revoke(region.key);
  }
  const bool over = await_users(region);
  region.registered.reset();  // a peer that did not answer has no access any more
  if (!over) return -FI_EBUSY;
  {
    util::Guard guard(x_lock);
    unbind(region);
  }
  // Whoever did not let go still refers to it.
  if (region.users.load(std::memory_order_acquire) == 0) delete &region;
  // The last: the domain may go as soon as it has no child, and this object with it.
  if (x_closed) x_closed();
  return 0;
}

/// Operations of peers under way can't be stopped half-way, only driven to their end: at once, or
/// with that of their connections. In a forked child there is nobody who could. False: some are
/// under way still.
bool MemoryRegions::await_users(MemoryRegion& region) noexcept {
  const util::SystemClock clock;
  uint64_t deadline = 0, answers_until = 0;
  unsigned steps = 0;
  while (region.users.load(std::memory_order_acquire) > 0 && x_epoch == util::process_epoch()) {
    if (!deadline) {
      answers_until = clock.now() + kRevocationNanoseconds;
      deadline = clock.now() + kPatienceNanoseconds;
    }
    const bool unanswered = ++steps > kRevocationSteps && clock.now() > answers_until;
    const bool late = clock.now() > deadline;
    {
      util::Guard guard(x_lock);
      for (RegionUser* user : x_users) {
        if (unanswered) user->stop_waiting(region.key, late);
        if (late) user->abandon(region);
        user->progress();
      }
    }
    if (late && clock.now() > deadline + kPatienceNanoseconds) {
      ERDMA_WARN(
          MR,
          "a region can't be closed: a peer is inside a transfer that does not end; if it is "
          "stopped, let it go on, and close the region again\n");
      return false;
    }
    sched_yield();
  }
  return true;
}

int MemoryRegions::bind(MemoryRegion& region, Counter& cntr, uint64_t flags) {
  constexpr uint64_t kEvents = FI_REMOTE_READ | FI_REMOTE_WRITE;
  if (flags & ~kEvents) return -FI_EBADFLAGS;
  if (!flags || !cntr.takes(x_lock)) return -FI_EINVAL;
  util::Guard guard(x_lock);
  for (const uint64_t event : {FI_REMOTE_READ, FI_REMOTE_WRITE})
    if (flags & event && region.counter(event)) return -FI_EINVAL;
  for (RegionUser* user : x_users) user->watch_counter(cntr);
  for (const uint64_t event : {FI_REMOTE_READ, FI_REMOTE_WRITE})
    if (flags & event) region.counter(event) = &cntr;
  for (RegionUser* user : x_users) user->revoke(region.key);
  return 0;
}

void MemoryRegions::unbind(MemoryRegion& region) noexcept {
  for (const uint64_t event : {FI_REMOTE_READ, FI_REMOTE_WRITE}) {
    Counter* const cntr = std::exchange(region.counter(event), nullptr);
    if (!cntr || cntr->watched() || counts_with(*cntr)) continue;
    for (RegionUser* user : x_users) user->unwatch_counter(*cntr);
  }
}

bool MemoryRegions::counts_with(const Counter& cntr) const noexcept {
  return std::any_of(x_regions.begin(), x_regions.end(), [&](const auto& entry) {
    return entry.second->counter(FI_REMOTE_READ) == &cntr ||
           entry.second->counter(FI_REMOTE_WRITE) == &cntr;
  });
}

void MemoryRegions::add(RegionUser& user) {
  x_users.push_back(&user);
  for (const auto& [key, region] : x_regions)
    for (const uint64_t event : {FI_REMOTE_READ, FI_REMOTE_WRITE})
      if (Counter* const cntr = region->counter(event)) user.watch_counter(*cntr);
}

void MemoryRegions::remove(RegionUser& user) noexcept {
  std::erase(x_users, &user);
}

MemoryRegion* MemoryRegions::find(uint64_t key) noexcept {
  const auto found = x_regions.find(key);
  return found == x_regions.end() ? nullptr : found->second;
}

int MemoryRegions::take(const fi_mr_attr& attr, uint64_t flags, Memory& memory) const noexcept {
  if (const int rc = check(attr, flags)) return rc;
  if (flags & kMrDmabuf) {
    if (const int rc = take_dmabuf(attr, memory)) return rc;
  } else if (const int rc = check_iov(attr.mr_iov, attr.iov_count)) {
    return rc;
  } else {
    memory.count = attr.iov_count;
    std::copy_n(attr.mr_iov, memory.count, memory.iov);
  }
  return check_memory(attr, memory);
}

int MemoryRegions::check(const fi_mr_attr& attr, uint64_t flags) const noexcept {
  if (flags & ~(kIgnoredFlags | (x_attr_has_dmabuf ? kMrDmabuf : 0))) return -FI_EBADFLAGS;
  if (attr.access & ~kAccess || attr.offset) return -FI_EINVAL;
  return x_attr_has_auth_key && attr.auth_key_size ? -FI_EOPNOTSUPP : 0;
}

int MemoryRegions::take_dmabuf(const fi_mr_attr& attr, Memory& memory) const noexcept {
  if (!x_cuda || attr.iface != FI_HMEM_CUDA) {
    ERDMA_WARN(MR,
               "a dmabuf can be registered of FI_HMEM_CUDA only, on a domain opened with "
               "FI_HMEM\n");
    return -FI_EOPNOTSUPP;
  }
  FileMemory named{};
  if (!attr.mr_iov || attr.iov_count != 1) return -FI_EINVAL;
  std::memcpy(&named, attr.mr_iov, sizeof(named));
  if (named.fd < 0 || !named.base || named.length == 0) return -FI_EINVAL;
  memory.iov[0] = {static_cast<std::byte*>(named.base) + named.offset, named.length};
  memory.count = 1;
  memory.in_file = true;
  memory.file = {named.fd, named.offset};
  return check_iov(memory.iov, 1);
}

/// What the memory is: the driver says so, whatever the attributes name.
int MemoryRegions::check_memory(const fi_mr_attr& attr, Memory& memory) const noexcept {
  const fi_hmem_iface iface = x_attr_has_interface ? attr.iface : FI_HMEM_SYSTEM;
  if (iface != FI_HMEM_SYSTEM && (iface != FI_HMEM_CUDA || !x_cuda)) {
    ERDMA_WARN(MR,
               "memory of this interface can't be registered: iface must be FI_HMEM_SYSTEM or, "
               "on a domain opened with FI_HMEM, FI_HMEM_CUDA\n");
    return -FI_ENOSYS;
  }
  if (!x_cuda) return 0;
  for (size_t i = 0; i < memory.count; ++i) {
    const iovec& part = memory.iov[i];
    const bool on_gpu = x_cuda->is_device(part.iov_base);
    if (on_gpu && !x_cuda->covers(part.iov_base, part.iov_len)) {
      ERDMA_WARN(MR, "a region is longer than the GPU memory it begins in\n");
      return -FI_EINVAL;
    }
    if (!on_gpu && iface == FI_HMEM_CUDA) {
      ERDMA_WARN(MR, "memory was registered as FI_HMEM_CUDA, but it is not memory of a GPU\n");
      return -FI_EINVAL;
    }
    memory.device |= on_gpu;
  }
  return 0;
}

/// Device memory is registered with the NIC at once: whoever registers it is to know whether peers
/// can access it, and reads of one's own are to take the NIC's way.
int MemoryRegions::register_for_peers(MemoryRegion& region, const Memory& memory) const {
  region.device = true;
  region.register_tried = true;
  const bool reads = region.access & FI_REMOTE_READ, writes = region.access & FI_REMOTE_WRITE;
  if ((!reads && !writes) || !x_registrar || !x_provider_keys || memory.iov[0].iov_len == 0)
    return 0;
  if (memory.count > 1) {
    ERDMA_WARN(MR, "GPU memory that peers access must be registered piece by piece\n");
    return -FI_EOPNOTSUPP;
  }
  auto registered =
      x_registrar->open(memory.iov[0], memory.in_file ? &memory.file : nullptr, reads, writes);
  if (!registered) return registered.error();
  region.registered = std::move(*registered);
  return 0;
}

/// In: the key that was asked for. Out: the key to use.
int MemoryRegions::choose_key(uint64_t& key) noexcept {
  if (!x_provider_keys) return find(key) ? -FI_ENOKEY : 0;
  do {
    if (const int rc = random_key(key)) return rc;
  } while (key == 0 || key == FI_KEY_NOTAVAIL || find(key));
  return 0;
}

int MemoryRegions::random_key(uint64_t& key) noexcept {
  if (x_random_left == 0) {
    // Up to 256 bytes come whole, uninterrupted.
    static_assert(sizeof(x_random) <= 256);
    if (getrandom(x_random.data(), sizeof(x_random), 0) != ssize_t{sizeof(x_random)})
      return errno ? -errno : -FI_EOTHER;
    x_random_left = x_random.size();
  }
  key = std::exchange(x_random[--x_random_left], 0);
  return 0;
}

int reg_mr(Domain& domain, const fi_mr_attr* attr, uint64_t flags, fid_mr** mr) noexcept {
  return abi_call([&] { return domain.memory_regions().open(attr, flags, mr); });
}

}  // namespace erdma::fabric

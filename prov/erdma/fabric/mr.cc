#include "fabric/mr.h"

#include <sched.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "fabric/cntr.h"
#include "fabric/domain.h"
#include "fabric/info_offer.h"
#include "util/clock.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

/// How long fi_close waits for the next operation of a peer to end. It cannot tell how far an
/// operation has come, so it then ends the connections that carry the others, and waits as long
/// again for the end of these connections.
constexpr uint64_t kPatienceNanoseconds = 1'000'000'000;
/// How long it waits at most before that: a peer may have many operations under way, and let one
/// end now and then.
constexpr uint64_t kMostPatience = 30 * kPatienceNanoseconds;
/// How long fi_close waits for peers to answer that they have stopped direct access to a region. It
/// also waits for a number of progress steps, in case this process got no CPU time meanwhile.
constexpr uint64_t kRevocationNanoseconds = 100'000'000;
constexpr unsigned kRevocationSteps = 100;

int mr_regattr(fid_t fid, const fi_mr_attr* attr, uint64_t flags, fid_mr** mr) noexcept {
  if (!fid || fid->fclass != FI_CLASS_DOMAIN) return -FI_EINVAL;
  Domain& domain = Domain::from(fid);
  if (const int refused = domain.check_owned()) return refused;
  return abi_call([&] { return domain.memory_regions().open(attr, flags, mr); });
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

}  // namespace

fi_ops_mr g_mr_ops = {
    .size = sizeof(fi_ops_mr),
    .reg = mr_reg,
    .regv = mr_regv,
    .regattr = mr_regattr,
};

MemoryRegion::MemoryRegion(MemoryRegions& owner, Children* siblings, const fi_mr_attr& attr,
                           const iovec* memory, size_t pieces) noexcept
    : FidObject(FI_CLASS_MR, attr.context, siblings), x_owner(owner) {
  access = attr.access;
  iov_count = pieces;
  std::copy_n(memory, pieces, iov);
  mem_desc = this;
}

/// FI_ENABLE succeeds without doing anything, for applications that enable regions as other
/// providers need it.
int MemoryRegion::control(int command, void* argument) noexcept {
  if (command == FI_ENABLE) return 0;
  return command == FI_GET_RAW_MR ? raw_attr(static_cast<struct fi_mr_raw_attr*>(argument))
                                  : -FI_ENOSYS;
}

/// fi_mr_raw_attr(3): the raw key is the key itself.
int MemoryRegion::raw_attr(struct fi_mr_raw_attr* attr) const noexcept {
  if (!attr || !attr->key_size) return -FI_EINVAL;
  if (attr->flags) return -FI_EBADFLAGS;
  const size_t room = std::exchange(*attr->key_size, sizeof(fid_mr::key));
  if (room < sizeof(fid_mr::key)) return -FI_ETOOSMALL;
  if (!attr->raw_key) return -FI_EINVAL;
  std::memcpy(attr->raw_key, &this->fid_mr::key, sizeof(fid_mr::key));
  if (attr->base_addr) *attr->base_addr = reinterpret_cast<uintptr_t>(iov[0].iov_base);
  return 0;
}

int map_raw_key(const struct fi_mr_map_raw* map) noexcept {
  if (!map || !map->raw_key || !map->key || map->key_size != sizeof(*map->key)) return -FI_EINVAL;
  if (map->flags) return -FI_EBADFLAGS;
  std::memcpy(map->key, map->raw_key, sizeof(*map->key));
  return 0;
}

int MemoryRegion::close() noexcept {
  return x_owner.close(*this);
}

/// Binding an endpoint does nothing, since the provider does not require FI_MR_ENDPOINT.
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

MemoryRegions::MemoryRegions(util::DomainLock& lock, int mr_mode, uint32_t api_version,
                             Children* children, hmem::Cuda* cuda, const util::Clock* clock)
    : x_lock(lock),
      x_clock(clock),
      x_provider_keys(mr_mode & (FI_MR_PROV_KEY | kMrBasic)),
      x_attributes(api_version, cuda),
      x_children(children) {}

MemoryRegions::~MemoryRegions() {
  for (const auto& [name, region] : x_regions) delete region;
}

int MemoryRegions::open(const fi_mr_attr* attr, uint64_t flags, fid_mr** mr) {
  if (!attr || !mr) return -FI_EINVAL;
  NamedMemory memory;
  if (const int rc = x_attributes.take(*attr, flags, memory)) return rc;
  auto region = std::make_unique<MemoryRegion>(*this, x_children, *attr, memory.iov, memory.count);
  if (memory.device)
    if (const int rc = register_for_peers(*region, memory)) return rc;
  const transport::Dmabuf* const file = memory.dmabuf();
  transport::DeviceMemoryKeeper* const early = memory.device ? x_keeper.load() : nullptr;
  if (early)
    region->keep(*early, file);
  else if (memory.device)
    x_attributes.make_synchronous(memory);
  util::Guard guard(x_lock);
  transport::DeviceMemoryKeeper* const late = memory.device ? x_keeper.load() : nullptr;
  if (late && !early) region->keep(*late, file);
  region->key = attr->requested_key;
  if (const int rc = choose_key(*region)) return rc;
  x_regions.emplace(name(*region), region.get());
  *mr = region.release();
  return 0;
}

void MemoryRegions::keep_device_memory_with(transport::DeviceMemoryKeeper& keeper) {
  util::Guard guard(x_lock);
  x_keeper.store(&keeper);
  for (const auto& [name, region] : x_regions)
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
    if (region.access & (FI_REMOTE_READ | FI_REMOTE_WRITE)) serve_rest();
    const auto found = x_regions.find(name(region));
    if (found != x_regions.end() && found->second == &region) x_regions.erase(found);
    if (region.registered || region.used)
      for (RegionUser* user : x_users) user->revoke(region.key);
  }
  const bool over = await_users(region);
  region.registered.reset();  // ends the access of peers that did not answer
  if (!over) return -FI_EBUSY;
  {
    util::Guard guard(x_lock);
    unbind(region);
  }
  // Uncounted last: once the domain has no children it may be closed, and this object with it.
  const Child closed = region.leave();
  // In a forked child operations of the parent may still refer to the region.
  if (region.users.load(std::memory_order_acquire) == 0) delete &region;
  return 0;
}

/// Executes the operations of peers that have arrived. The application may know from elsewhere that
/// its peers have posted their last ones.
void MemoryRegions::serve_rest() noexcept {
  for (RegionUser* user : x_users) progress_until_idle(*user, kRestPolls);
}

/// Drives operations of peers on the region until none is left, since they can't be interrupted.
/// Once none has ended for a second it ends the connections of the remaining operations. A forked
/// child makes no progress, so it does not wait. Returns false if some operations have not ended.
bool MemoryRegions::await_users(MemoryRegion& region) noexcept {
  const util::SystemClock system;
  const util::Clock& clock = x_clock ? *x_clock : system;
  uint64_t began = 0, deadline = 0;
  uint32_t left = 0;
  unsigned steps = 0;
  bool late = false;
  while (region.users.load(std::memory_order_acquire) > 0 && x_epoch == util::process_epoch()) {
    const uint32_t users = region.users.load(std::memory_order_relaxed);
    if (!deadline) began = clock.now();
    if (!deadline || (!late && users < left))
      deadline = std::min(clock.now(), began + kMostPatience) + kPatienceNanoseconds;
    left = users;
    const bool unanswered =
        ++steps > kRevocationSteps && clock.now() > began + kRevocationNanoseconds;
    late = late || clock.now() > deadline;
    drive_users(region, unanswered, late);
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

/// `unanswered`: does not wait any longer for peers to give up direct access. `late`: ends
/// connections.
void MemoryRegions::drive_users(MemoryRegion& region, bool unanswered, bool late) noexcept {
  using protocol::Await;
  util::Guard guard(x_lock);
  for (RegionUser* user : x_users) {
    user->stop_waiting(region.key, !unanswered ? Await::answers
                                   : late      ? Await::nothing
                                               : Await::busy_peers);
    user->progress();
    user->abandon(region, late);
  }
}

int MemoryRegions::bind(MemoryRegion& region, Counter& cntr, uint64_t flags) {
  constexpr uint64_t kEvents = FI_REMOTE_READ | FI_REMOTE_WRITE;
  if (flags & ~kEvents) return -FI_EBADFLAGS;
  if (!flags || !cntr.takes(x_lock)) return -FI_EINVAL;
  util::Guard guard(x_lock);
  for (const uint64_t event : {FI_REMOTE_READ, FI_REMOTE_WRITE})
    if (flags & event && region.counter(event)) return -FI_EINVAL;
  watch(cntr);
  for (const uint64_t event : {FI_REMOTE_READ, FI_REMOTE_WRITE})
    if (flags & event) {
      region.counter(event) = &cntr;
      cntr.bound();
    }
  for (RegionUser* user : x_users) user->revoke(region.key);
  return 0;
}

void MemoryRegions::unbind(MemoryRegion& region) noexcept {
  for (const uint64_t event : {FI_REMOTE_READ, FI_REMOTE_WRITE}) {
    Counter* const cntr = std::exchange(region.counter(event), nullptr);
    if (!cntr) continue;
    cntr->unbound();
    unwatch(*cntr);
  }
}

/// Throws std::bad_alloc, and then has had no effect.
void MemoryRegions::watch(Counter& cntr) {
  try {
    for (RegionUser* user : x_users) user->watch_counter(cntr);
  } catch (...) {
    unwatch(cntr);
    throw;
  }
}

/// Endpoints keep a counter that deferred works or other regions use.
void MemoryRegions::unwatch(Counter& cntr) noexcept {
  if (cntr.watched() || counts_with(cntr)) return;
  for (RegionUser* user : x_users) user->unwatch_counter(cntr);
}

bool MemoryRegions::counts_with(const Counter& cntr) const noexcept {
  return std::any_of(x_regions.begin(), x_regions.end(), [&](const auto& entry) {
    return entry.second->counter(FI_REMOTE_READ) == &cntr ||
           entry.second->counter(FI_REMOTE_WRITE) == &cntr;
  });
}

void MemoryRegions::add(RegionUser& user) {
  if (std::find(x_users.begin(), x_users.end(), &user) == x_users.end()) x_users.push_back(&user);
  for (const auto& [name, region] : x_regions)
    for (const uint64_t event : {FI_REMOTE_READ, FI_REMOTE_WRITE})
      if (Counter* const cntr = region->counter(event)) user.watch_counter(*cntr);
}

void MemoryRegions::remove(RegionUser& user) noexcept {
  std::erase(x_users, &user);
}

MemoryRegion* MemoryRegions::find(uint64_t key) noexcept {
  const auto found = x_regions.find({key});
  return found == x_regions.end() ? nullptr : found->second;
}

/// Registers device memory with the NIC at once, so that the line about memory that the NIC can't
/// reach comes early, and so that reads of this process's own memory can use the NIC.
int MemoryRegions::register_for_peers(MemoryRegion& region, const NamedMemory& memory) const {
  region.device = true;
  region.register_tried = true;
  const bool reads = region.access & FI_REMOTE_READ, writes = region.access & FI_REMOTE_WRITE;
  if ((!reads && !writes) || !x_registrar || !x_provider_keys || memory.iov[0].iov_len == 0)
    return 0;
  if (memory.count > 1) {
    ERDMA_WARN(MR, "GPU memory that peers access must be registered piece by piece\n");
    return -FI_EOPNOTSUPP;
  }
  auto registered = x_registrar->open(memory.iov[0], memory.dmabuf(), reads, writes);
  if (registered) {
    region.registered = std::move(*registered);
    return 0;
  }
  // Without a registration the memory is accessed by packets, which CUDA copies. An endpoint that
  // may not call CUDA could not do that, so the application should hear of it now.
  return registered.error() == -FI_EOPNOTSUPP && !x_keeper.load() ? 0 : registered.error();
}

MemoryRegions::Name MemoryRegions::name(const MemoryRegion& region) const noexcept {
  const bool local = !x_provider_keys && !(region.access & (FI_REMOTE_READ | FI_REMOTE_WRITE));
  return {region.key, local ? &region : nullptr};
}

/// The region has the requested key. On return it has the key to use.
int MemoryRegions::choose_key(MemoryRegion& region) noexcept {
  if (!x_provider_keys) return x_regions.contains(name(region)) ? -FI_ENOKEY : 0;
  uint64_t key = 0;
  do {
    if (const int rc = random_key(key)) return rc;
  } while (key == 0 || key == FI_KEY_NOTAVAIL || find(key));
  region.key = key;
  return 0;
}

int MemoryRegions::random_key(uint64_t& key) noexcept {
  if (x_random_left == 0) {
    // getrandom(2) delivers up to 256 bytes completely, and no signal interrupts it.
    static_assert(sizeof(x_random) <= 256);
    if (getrandom(x_random.data(), sizeof(x_random), 0) != ssize_t{sizeof(x_random)})
      return errno ? -errno : -FI_EOTHER;
    x_random_left = x_random.size();
  }
  key = std::exchange(x_random[--x_random_left], 0);
  return 0;
}

}  // namespace erdma::fabric

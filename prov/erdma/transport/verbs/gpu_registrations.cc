#include "transport/verbs/gpu_registrations.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/cuda.h"
#include "transport/verbs/gpu_memory.h"
#include "transport/verbs/registration_cache.h"
#include "transport/verbs/shared_memory.h"
#include "util/clock.h"
#include "util/error_text.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

using RegionList = util::IntrusiveList<GpuRegion>;

/// Nanoseconds during which an allocation that found no room does not end other registrations.
constexpr uint64_t kRoomlessFor = 1'000'000'000;

/// True if the part of an allocation holds all of the memory.
template <typename Part>
bool holds(const Part& part, const iovec& memory) noexcept {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(memory.iov_base) - part.base;
  return offset < part.size && memory.iov_len <= part.size - offset;
}

void* pointer_to(uintptr_t address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): CUDA's are numbers
}

void destroy(RegionList& regions) noexcept {
  while (GpuRegion* region = regions.pop_front()) delete region;
}

/// Registrations that end with this object. It is declared before the lock is taken, because each
/// end is a firmware command, and may wait for CUDA.
struct Retired : RegionList {
  ~Retired() { destroy(*this); }
};

}  // namespace

GpuRegistrations::GpuRegistrations(const Device& device, hmem::Cuda& cuda,
                                   std::unique_ptr<RegistrationCache> host,
                                   const Config& config) noexcept
    : x_device(device), x_cuda(cuda), x_host(std::move(host)), x_config(config) {
  x_device.set_gpu_evictor(this);
}

GpuRegistrations::~GpuRegistrations() {
  x_device.set_gpu_evictor(nullptr);
  if (x_thread.running()) {
    {
      std::lock_guard guard(x_mutex);
      x_stop = true;
    }
    x_wake.ring();
    x_thread.join();
  }
  for (auto* list : {&x_idle, &x_held}) destroy(*list);
}

int GpuRegistrations::acquire(const void* address, size_t length, int rights,
                              Registration& registration) noexcept try {
  hmem::Allocation allocation;
  if (!x_cuda.is_device(address)) return x_host->acquire(address, length, rights, registration);
  if (!x_cuda.allocation(address, allocation)) return -FI_EOPNOTSUPP;
  const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - allocation.base;
  if (offset > allocation.size || length > allocation.size - offset) return -FI_EINVAL;
  util::Result<GpuRegion*> held = hold(allocation, rights);
  if (!held) return held.error();
  GpuRegion& region = **held;
  registration = {region.region->lkey, region.region->rkey, mark_entry(region)};
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

/// Allocations of GPUs stay registered at least from one transfer to the next.
bool GpuRegistrations::should_register(const iovec* memory, size_t count) noexcept {
  const auto on_gpu = [this](const iovec& piece) { return x_cuda.is_device(piece.iov_base); };
  return std::any_of(memory, memory + count, on_gpu) || x_host->should_register(memory, count);
}

bool GpuRegistrations::copies(const iovec* memory, size_t count) noexcept {
  return std::none_of(memory, memory + count,
                      [this](const iovec& piece) { return x_cuda.is_device(piece.iov_base); });
}

GpuRegion* GpuRegistrations::add_user(GpuRegion& region) noexcept {
  if (region.users++ > 0) return &region;
  if (region.linked()) {
    x_idle.erase(region);
    --x_idle_count;
  }
  x_held.push_back(region);
  return &region;
}

void GpuRegistrations::release(const Registration& registration) noexcept {
  GpuRegion* region = marked_entry<GpuRegion>(registration);
  if (!region) return x_host->release(registration);
  if (!x_cuda.usable())
    return;  // it belongs to the parent, in which another thread may hold the lock
  Retired retired;
  const std::lock_guard guard(x_mutex);
  if (--region->users > 0) return;
  x_held.erase(*region);
  if (region->stale || (region->by_address && !x_config.keeps_all && !lingers()))
    return retire(*region, retired);
  region->unused_since = util::SystemClock().now();
  x_idle.push_back(*region);
  ++x_idle_count;
  if (region->by_address && x_thread.running() && !x_watching) x_wake.ring();
  while (x_idle_count > x_config.max_idle) {
    retire(*x_idle.pop_front(), retired);
    --x_idle_count;
  }
}

// --- The end of unused registrations.

/// The NIC may have written under this registration, and it may be asked later whether these writes
/// need a flush, so it is recorded.
void GpuRegistrations::retire(GpuRegion& region, RegionList& retired) noexcept {
  if (region.rights & IBV_ACCESS_LOCAL_WRITE && !region.stale)
    x_written[x_written_count++ % x_written.size()] = {region.base, region.size, region.id,
                                                       region.rights, bool(region.flush)};
  retired.push_back(region);
}

/// Ends the registration that was not used for longest.
bool GpuRegistrations::evict_after(int error) noexcept {
  if (!for_want_of_room(error) || !x_cuda.usable()) return false;
  Retired retired;
  const std::lock_guard guard(x_mutex);
  GpuRegion* const oldest = x_idle.pop_front();
  if (!oldest) return false;
  --x_idle_count;
  retire(*oldest, retired);
  return true;
}

/// True if a thread will end the registration.
bool GpuRegistrations::lingers() noexcept {
  if (x_config.linger_ns == 0 || !x_wake) return false;
  return x_thread.running() ||
         x_thread.start<&GpuRegistrations::end_unused>("erdma-gpu", *this) == 0;
}

void GpuRegistrations::end_unused() noexcept {
  const util::SystemClock clock;
  for (int timeout = -1;;) {
    pollfd wake{x_wake.fd(), POLLIN, 0};
    if (::poll(&wake, 1, timeout) > 0) x_wake.drain();
    Retired retired;
    const std::lock_guard guard(x_mutex);
    if (x_stop) return;
    drop_unused(clock.now(), retired);
    timeout = x_watching ? int(x_config.linger_ns / 1'000'000) + 1 : -1;
  }
}

void GpuRegistrations::drop_unused(uint64_t now, RegionList& retired) noexcept {
  x_watching = false;
  for (GpuRegion* region = x_idle.front(); region;) {
    GpuRegion* const next = x_idle.next(*region);
    if (region->by_address && now - region->unused_since >= x_config.linger_ns) {
      x_idle.erase(*region);
      --x_idle_count;
      retire(*region, retired);
    } else if (region->by_address) {
      x_watching = true;
    }
    region = next;
  }
}

/// Adds a user to the registration of the allocation, and makes one if there is none. No call of
/// CUDA or of the NIC is made with the lock held: such a call may wait for a thread that frees
/// other memory, while that thread waits until end_unused() has ended a registration.
util::Result<GpuRegion*> GpuRegistrations::hold(const hmem::Allocation& allocation, int rights) {
  Retired stale;
  int gpu = x_refusals.any_gpu() ? x_cuda.gpu_of(pointer_to(allocation.base)) : -1;
  {
    const std::lock_guard guard(x_mutex);
    if (GpuRegion* const known = find(allocation, rights, stale)) return add_user(*known);
    if (x_refusals.contains(gpu, allocation.id)) return -FI_EOPNOTSUPP;
  }
  GpuRefusal why;
  std::unique_ptr<GpuRegion> made = make(allocation, rights, why);
  if (!made && why.want_of_room()) made = make_with_room(allocation, rights, why);
  if (!made && why.for_all()) gpu = x_cuda.gpu_of(pointer_to(allocation.base));
  const std::lock_guard guard(x_mutex);
  // Another thread may have made the same meanwhile.
  if (GpuRegion* const known = find(allocation, rights, stale)) return add_user(*known);
  if (made) return add_user(*made.release());
  if (!why.final()) return -FI_ENOMEM;
  refuse(allocation, gpu, why);
  return -FI_EOPNOTSUPP;
}

/// Also takes registrations of earlier allocations at the same address out of the lists, since no
/// transfer can use them.
GpuRegion* GpuRegistrations::find(const hmem::Allocation& allocation, int rights,
                                  RegionList& stale) noexcept {
  GpuRegion* found = nullptr;
  for (auto* list : {&x_held, &x_idle}) {
    for (GpuRegion* region = list->front(); region;) {
      GpuRegion* const next = list->next(*region);
      const bool overlaps = !region->stale && region->base < allocation.base + allocation.size &&
                            allocation.base < region->base + region->size;
      const bool same = overlaps && region->id == allocation.id;
      if (same && region->rights == rights) {
        found = region;
      } else if (overlaps && !same && region->users > 0) {
        region->stale = true;
      } else if (overlaps && !same) {
        list->erase(*region);
        --x_idle_count;
        stale.push_back(*region);
      }
      region = next;
    }
  }
  return found;
}

/// A registration by which the NIC may write to the allocation; null = there is none.
GpuRegion* GpuRegistrations::writable(const hmem::Allocation& allocation) noexcept {
  for (auto* list : {&x_held, &x_idle})
    for (GpuRegion* region = list->front(); region; region = list->next(*region))
      if (!region->stale && region->id == allocation.id && region->base == allocation.base &&
          (region->rights & IBV_ACCESS_LOCAL_WRITE))
        return region;
  return nullptr;
}

/// How the NIC wrote to an allocation whose registration has ended since; null: it did not.
const GpuRegistrations::Written* GpuRegistrations::written_before(
    const hmem::Allocation& allocation) const noexcept {
  const auto found = std::find_if(x_written.begin(), x_written.end(), [&](const Written& one) {
    return one.id == allocation.id && one.base == allocation.base;
  });
  return found == x_written.end() ? nullptr : &*found;
}

/// Finds the allocation that holds the memory among those to which the NIC could write.
bool GpuRegistrations::known_at(const iovec& memory, hmem::Allocation& found) noexcept {
  for (auto* list : {&x_held, &x_idle})
    for (GpuRegion* region = list->front(); region; region = list->next(*region))
      if (!region->stale && region->rights & IBV_ACCESS_LOCAL_WRITE && holds(*region, memory)) {
        found = {region->base, region->size, region->id};
        return true;
      }
  for (size_t i = 1; i <= std::min(x_written_count, x_written.size()); ++i) {  // the latest first
    const Written& one = x_written[(x_written_count - i) % x_written.size()];
    if (!holds(one, memory)) continue;
    found = {one.base, one.size, one.id};
    return true;
  }
  return false;
}

/// The allocation that holds memory to which the NIC may have written. The registrations name it
/// where CUDA cannot: in a thread without a context, for example. False: the NIC has not written.
bool GpuRegistrations::name(const iovec& memory, hmem::Allocation& found) noexcept {
  if (x_cuda.allocation(memory.iov_base, found)) return true;
  if (!x_cuda.usable()) return false;
  const std::lock_guard guard(x_mutex);
  return known_at(memory, found);
}

/// Adds a user to a registration by which the NIC may have written to the allocation. If it has
/// ended, makes another one. Null: the memory needs no flush.
util::Result<GpuRegion*> GpuRegistrations::hold_written(const hmem::Allocation& allocation) {
  int rights = 0;
  {
    const std::lock_guard guard(x_mutex);
    if (GpuRegion* const region = writable(allocation))
      return region->flush ? add_user(*region) : nullptr;
    const Written* const written = written_before(allocation);
    if (written && !written->flush) return nullptr;
    if (written) rights = written->rights;
  }
  if (!rights) return -FI_ENOMEM;
  return hold(allocation, rights);
}

/// The NIC writes only to memory that can be flushed later. Null: registration failed.
std::unique_ptr<GpuRegion> GpuRegistrations::make(const hmem::Allocation& allocation, int rights,
                                                  GpuRefusal& why) const {
  auto made = std::make_unique<GpuRegion>();
  const iovec memory{pointer_to(allocation.base), allocation.size};
  made->region = register_gpu_memory(x_device, x_cuda, memory, nullptr, rights, why);
  if (!made->region) return nullptr;
  made->by_address = why.as_dmabuf != 0;
  const bool flush =
      rights & IBV_ACCESS_LOCAL_WRITE &&
      (x_config.flush == FlushPolicy::always ||
       (x_config.flush == FlushPolicy::automatic && !x_cuda.orders_nic_writes(memory.iov_base)));
  if (flush)
    made->flush =
        register_gpu_memory(x_device, x_cuda, memory, nullptr, peer_rights(true, false), why);
  if (flush && !made->flush) return nullptr;
  made->base = allocation.base;
  made->size = allocation.size;
  made->id = allocation.id;
  made->rights = rights;
  return made;
}

/// Registrations that nobody uses make room. If even all of them were too few, the allocation gets
/// nobody's room for a while, since others would lose their registrations for each of its messages.
std::unique_ptr<GpuRegion> GpuRegistrations::make_with_room(const hmem::Allocation& allocation,
                                                            int rights, GpuRefusal& why) {
  std::unique_ptr<GpuRegion> made;
  const uint64_t now = util::SystemClock().now();
  if (x_roomless_id == allocation.id && now - x_roomless_since < kRoomlessFor) return nullptr;
  for (int error; !made && (error = why.want_of_room()) && x_device.ask_for_room(error);)
    made = make(allocation, rights, why);
  if (made || !why.want_of_room()) return made;
  x_roomless_id = allocation.id;
  x_roomless_since = now;
  return nullptr;
}

void GpuRegistrations::refuse(const hmem::Allocation& allocation, int gpu,
                              const GpuRefusal& why) noexcept {
  char which[32] = "some GPU memory";
  if (why.for_all()) {
    x_refusals.add_gpu(gpu, allocation.id);
    if (gpu >= 0) std::snprintf(which, sizeof(which), "memory of GPU %d", gpu);
  } else {
    x_refusals.add(allocation.id);
  }
  ERDMA_NOTICE(gpu_staged, MR,
               "%s can't be registered with %s (as a dmabuf: %s; by its address: %s): it is copied "
               "through host memory instead. %s",
               which, x_device.name().c_str(), util::ErrorText(why.as_dmabuf).c_str(),
               util::ErrorText(why.by_address).c_str(), why.remedy());
}

// --- DirectSource

bool GpuRegistrations::can_acquire(const iovec* memory, size_t count, int rights) noexcept {
  for (size_t i = 0; i < count; ++i) {
    Registration registration;
    if (memory[i].iov_len == 0) continue;
    if (!x_cuda.is_device(memory[i].iov_base) ||
        acquire(memory[i].iov_base, memory[i].iov_len, rights, registration))
      return false;
    release(registration);
  }
  return true;
}

bool GpuRegistrations::can_share(const iovec* memory, size_t count, Access access) noexcept {
  return can_acquire(memory, count, rights_of(access));
}

/// False if the remote memory is bounced: its owner moves it by packets, which a processor handles
/// here.
bool GpuRegistrations::can_move(const iovec* memory, size_t count, const RemoteKey& remote,
                                bool inbound) noexcept {
  RemoteMemory named;
  const int rights = inbound ? sink_rights(x_device.transport_type()) : kSourceRights;
  return decode(remote, named) && !named.bounced && can_acquire(memory, count, rights);
}

bool GpuRegistrations::may_be_written(const iovec* memory, size_t count) noexcept {
  return std::all_of(memory, memory + count, [this](const iovec& piece) {
    if (piece.iov_len == 0) return true;
    hmem::Allocation allocation;
    if (!name(piece, allocation)) return false;
    const std::lock_guard guard(x_mutex);
    return writable(allocation) || written_before(allocation);
  });
}

/// For memory that may have been written. If its registration has ended meanwhile, makes another
/// one.
FlushTarget GpuRegistrations::acquire_flush(const iovec& memory) noexcept try {
  FlushTarget target;
  hmem::Allocation allocation;
  if (memory.iov_len == 0 || x_config.flush == FlushPolicy::never) return target;
  if (!name(memory, allocation)) target.status = -FI_EIO;
  if (target.status) return target;
  util::Result<GpuRegion*> held = hold_written(allocation);
  target.status = held.error();
  if (!held || !*held) return target;
  GpuRegion& region = **held;
  target.held = mark_entry(region);
  if (region.flush)
    target.memory = key_of({uint64_t(memory.iov_base), 1, region.flush->rkey});
  else
    release_flush(std::exchange(target, {}));
  return target;
} catch (const std::bad_alloc&) {
  FlushTarget target;
  target.status = -FI_ENOMEM;
  return target;
}

void GpuRegistrations::release_flush(const FlushTarget& target) noexcept {
  if (target.held) release({0, 0, target.held});
}

}  // namespace erdma::transport::verbs

#include "transport/verbs/gpu_registrations.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/cuda.h"
#include "transport/verbs/registration_cache.h"
#include "transport/verbs/shared_memory.h"
#include "util/clock.h"
#include "util/error_text.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

using RegionList = util::IntrusiveList<GpuRegion>;
using hmem::cuda_api::address_of;
using hmem::cuda_api::pointer_to;

/// Nanoseconds during which an allocation that found no room does not end other registrations.
constexpr uint64_t kRoomlessFor = 1'000'000'000;

/// True if the part of an allocation holds all of the memory.
template <typename Part>
bool holds(const Part& part, const iovec& memory) noexcept {
  const uintptr_t offset = address_of(memory.iov_base) - part.base;
  return offset < part.size && memory.iov_len <= part.size - offset;
}

/// True if it holds some of the memory.
template <typename Part>
bool meets(const Part& part, const iovec& memory) noexcept {
  const uintptr_t begin = address_of(memory.iov_base);
  return part.base < begin + memory.iov_len && begin < part.base + part.size;
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
  x_thread.stop(x_mutex, x_stop, x_wake);
  for (auto* list : {&x_idle, &x_held}) destroy(*list);
}

int GpuRegistrations::acquire(const void* address, size_t length, int rights,
                              Registration& registration) noexcept try {
  hmem::Allocation allocation;
  if (!x_cuda.is_device(address)) return x_host->acquire(address, length, rights, registration);
  if (!x_cuda.allocation(address, allocation)) return -FI_EOPNOTSUPP;
  const uintptr_t offset = address_of(address) - allocation.base;
  if (offset > allocation.size || length > allocation.size - offset) return -FI_EINVAL;
  const hmem::Allocation part = part_of(allocation, {const_cast<void*>(address), length});
  if (part.size > x_device.limits().max_region) {
    ERDMA_NOTICE(gpu_staged, MR,
                 "%zu bytes of GPU memory are more than %s registers at once (%zu): messages of "
                 "this length are copied through host memory. Send shorter ones",
                 length, x_device.name().c_str(), size_t(x_device.limits().max_region));
    return -FI_EOPNOTSUPP;
  }
  util::Result<GpuRegion*> held = hold(part, rights);
  if (!held) return held.error();
  GpuRegion& region = **held;
  registration = {region.region->lkey, region.region->rkey, mark_entry(region)};
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

/// What is registered for an access: the whole allocation or, if that is longer than the NIC's
/// longest region, a part around the access. Parts overlap by half, so that most accesses to the
/// same bytes have the same part.
hmem::Allocation GpuRegistrations::part_of(const hmem::Allocation& whole,
                                           const iovec& memory) const noexcept {
  const size_t most = x_device.limits().max_region;
  if (whole.size <= most) return whole;
  const auto part = [&](size_t first, size_t size) {
    return hmem::Allocation{whole.base + first, std::min(size, whole.size - first), whole.id};
  };
  const size_t offset = address_of(memory.iov_base) - whole.base;
  const size_t half = std::bit_floor(most) / 2;
  const hmem::Allocation usual = part(offset / half * half, 2 * half);
  return holds(usual, memory) ? usual : part(offset, memory.iov_len);
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
    x_wake.await(timeout);
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

/// Adds a user to a registration that holds the part, and makes one if there is none. No call of
/// CUDA or of the NIC is made with the lock held: such a call may wait for a thread that frees
/// other memory, while that thread waits until end_unused() has ended a registration.
util::Result<GpuRegion*> GpuRegistrations::hold(const hmem::Allocation& part, int rights) {
  Retired stale;
  int gpu = x_refusals.any_gpu() ? x_cuda.gpu_of(pointer_to(part.base)) : -1;
  const bool pinned_since = x_device.has_pinned_gpu(gpu);  // by a region of the application
  {
    const std::lock_guard guard(x_mutex);
    if (pinned_since) x_refusals.remove_gpu(gpu);
    if (GpuRegion* const known = find(part, rights, stale)) return add_user(*known);
    if (x_refusals.contains(gpu, part.id)) return -FI_EOPNOTSUPP;
  }
  x_cuda.make_synchronous(part);
  GpuRefusal why;
  std::unique_ptr<GpuRegion> made = make(part, rights, why);
  if (!made && why.want_of_room()) made = make_with_room(part, rights, why);
  if (!made && why.for_all()) gpu = x_cuda.gpu_of(pointer_to(part.base));
  const std::lock_guard guard(x_mutex);
  // Another thread may have made the same meanwhile.
  if (GpuRegion* const known = find(part, rights, stale)) return add_user(*known);
  if (made) return add_user(*made.release());
  if (!why.final()) return -FI_ENOMEM;
  refuse(part, gpu, why);
  return -FI_EOPNOTSUPP;
}

/// Also takes registrations of earlier allocations at the same address out of the lists, since no
/// transfer can use them.
GpuRegion* GpuRegistrations::find(const hmem::Allocation& part, int rights,
                                  RegionList& stale) noexcept {
  GpuRegion* found = nullptr;
  const iovec memory{pointer_to(part.base), part.size};
  for (auto* list : {&x_held, &x_idle}) {
    for (GpuRegion* region = list->front(); region;) {
      GpuRegion* const next = list->next(*region);
      const bool overlaps = !region->stale && meets(*region, memory);
      const bool same = overlaps && region->id == part.id;
      if (same && region->rights == rights && holds(*region, memory)) {
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

/// A registration by which the NIC may write to some of the memory; null = there is none.
GpuRegion* GpuRegistrations::writable(const iovec& memory, uint64_t id) noexcept {
  for (auto* list : {&x_held, &x_idle})
    for (GpuRegion* region = list->front(); region; region = list->next(*region))
      if (!region->stale && region->id == id && meets(*region, memory) &&
          (region->rights & IBV_ACCESS_LOCAL_WRITE))
        return region;
  return nullptr;
}

/// How the NIC wrote to memory whose registration has ended since; null: it did not.
const GpuRegistrations::Written* GpuRegistrations::written_before(const iovec& memory,
                                                                  uint64_t id) const noexcept {
  const auto found = std::find_if(x_written.begin(), x_written.end(), [&](const Written& one) {
    return one.id == id && meets(one, memory);
  });
  return found == x_written.end() ? nullptr : &*found;
}

/// The id of the allocation that holds the memory, among those to which the NIC could write; 0:
/// there is none.
uint64_t GpuRegistrations::known_at(const iovec& memory) noexcept {
  for (auto* list : {&x_held, &x_idle})
    for (GpuRegion* region = list->front(); region; region = list->next(*region))
      if (!region->stale && region->rights & IBV_ACCESS_LOCAL_WRITE && meets(*region, memory))
        return region->id;
  for (size_t i = 1; i <= std::min(x_written_count, x_written.size()); ++i) {  // the latest first
    const Written& one = x_written[(x_written_count - i) % x_written.size()];
    if (meets(one, memory)) return one.id;
  }
  return 0;
}

/// The id of the allocation that holds memory to which the NIC may have written. The registrations
/// name it where CUDA cannot: in a thread without a context, for example. 0: the NIC has not
/// written.
uint64_t GpuRegistrations::name(const iovec& memory) noexcept {
  hmem::Allocation found;
  if (x_cuda.allocation(memory.iov_base, found)) return found.id;
  if (!x_cuda.usable()) return 0;
  const std::lock_guard guard(x_mutex);
  return known_at(memory);
}

/// Adds a user to a registration by which the NIC may have written to the memory. If it has ended,
/// makes another one. Null: the memory needs no flush.
util::Result<GpuRegion*> GpuRegistrations::hold_written(const iovec& memory, uint64_t id) {
  Written before{};
  {
    const std::lock_guard guard(x_mutex);
    if (GpuRegion* const region = writable(memory, id))
      return region->flush ? add_user(*region) : nullptr;
    const Written* const written = written_before(memory, id);
    if (written && !written->flush) return nullptr;
    if (written) before = *written;
  }
  if (!before.id) return -FI_ENOMEM;
  return hold({before.base, before.size, before.id}, before.rights);
}

/// The NIC writes only to memory that can be flushed later. Null: registration failed.
std::unique_ptr<GpuRegion> GpuRegistrations::make(const hmem::Allocation& part, int rights,
                                                  GpuRefusal& why) const {
  auto made = std::make_unique<GpuRegion>();
  const iovec memory{pointer_to(part.base), part.size};
  made->region = register_gpu_memory(x_device, x_cuda, memory, nullptr, rights, why);
  if (!made->region) return nullptr;
  made->by_address = why.as_dmabuf != 0;
  const bool flush =
      rights & IBV_ACCESS_LOCAL_WRITE && needs_flush(x_config.flush, x_cuda, memory.iov_base);
  if (flush)
    made->flush =
        register_gpu_memory(x_device, x_cuda, memory, nullptr, peer_rights(true, false), why);
  if (flush && !made->flush) return nullptr;
  made->by_address = made->by_address || why.as_dmabuf != 0;
  made->base = part.base;
  made->size = part.size;
  made->id = part.id;
  made->rights = rights;
  return made;
}

/// Registrations that nobody uses make room. If even all of them were too few, the allocation gets
/// nobody's room for a while, since others would lose their registrations for each of its messages.
std::unique_ptr<GpuRegion> GpuRegistrations::make_with_room(const hmem::Allocation& part,
                                                            int rights, GpuRefusal& why) {
  std::unique_ptr<GpuRegion> made;
  const uint64_t now = util::SystemClock().now();
  if (x_roomless_id == part.id && now - x_roomless_since < kRoomlessFor) return nullptr;
  for (int error; !made && (error = why.want_of_room()) && x_device.ask_for_room(error);)
    made = make(part, rights, why);
  if (made || !why.want_of_room()) return made;
  x_roomless_id = part.id;
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
    const uint64_t id = name(piece);
    if (!id) return false;
    const std::lock_guard guard(x_mutex);
    return writable(piece, id) || written_before(piece, id);
  });
}

/// For memory that may have been written. If its registration has ended meanwhile, makes another
/// one.
FlushTarget GpuRegistrations::acquire_flush(const iovec& memory) noexcept try {
  FlushTarget target;
  if (memory.iov_len == 0 || x_config.flush == FlushPolicy::never) return target;
  const uint64_t id = name(memory);
  if (!id) target.status = -FI_EIO;
  if (target.status) return target;
  util::Result<GpuRegion*> held = hold_written(memory, id);
  target.status = held.error();
  if (!held || !*held) return target;
  GpuRegion& region = **held;
  target.held = mark_entry(region);
  // The part that the NIC wrote may begin later than the memory.
  const uint64_t first = std::max<uint64_t>(address_of(memory.iov_base), region.base);
  if (region.flush)
    target.memory = key_of({first, 1, region.flush->rkey});
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

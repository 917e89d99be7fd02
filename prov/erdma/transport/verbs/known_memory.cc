#include "transport/verbs/known_memory.h"

#include <algorithm>
#include <array>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/cuda.h"
#include "transport/verbs/gpu_memory.h"
#include "transport/verbs/shared_memory.h"
#include "util/error_text.h"
#include "util/log.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {
namespace {

using hmem::cuda_api::address_of;

/// More than a packet and more than an allocation's alignment.
constexpr size_t kProbeBytes = 64 * 1024;

}  // namespace

/// One piece of memory of the application. It is deleted when neither the application nor an
/// operation uses it.
struct KnownMemory::Known {
  uintptr_t base = 0;
  size_t size = 0;
  /// Two registrations, by what a peer that knows the key may do: the use is unknown when the
  /// memory is registered, and CUDA cannot be asked later. Both null: the NIC cannot reach the
  /// memory.
  MemoryRegion for_reads, for_writes;
  GpuRefusal refusal;  ///< why they are null
  bool flush = false;  ///< writes of the NIC there must be flushed
  unsigned users = 1;

  const MemoryRegion& region(int rights) const noexcept {
    return rights & IBV_ACCESS_LOCAL_WRITE ? for_writes : for_reads;
  }
  /// True if the NIC reaches these bytes; the first of them is in this piece.
  bool reaches(const void* first, size_t length) const noexcept {
    return for_reads && length <= size - (address_of(first) - base);
  }
};

class KnownMemory::Kept final : public KeptMemory {
 public:
  Kept(KnownMemory& owner, Known& known) noexcept : x_owner(owner), x_known(known) {}
  ~Kept() override {
    // otherwise it belongs to the parent
    if (x_epoch == util::process_epoch()) x_owner.forget(x_known);
  }

 private:
  KnownMemory& x_owner;
  Known& x_known;
  const uint32_t x_epoch = util::process_epoch();
};

KnownMemory::KnownMemory(Device& device, hmem::Cuda& cuda, RegistrationCache& host,
                         FlushPolicy flush, const Options& options) noexcept
    : x_device(device),
      x_cuda(cuda),
      x_host(host),
      x_flush(flush),
      x_copier(options, device, host) {}

KnownMemory::~KnownMemory() {
  for (const auto& [base, known] : x_known) delete known;
}

// --- what is known ------------------------------------------------------------------------------

/// Memory that the NIC refuses is kept as well, because a processor must not touch it.
std::unique_ptr<KeptMemory> KnownMemory::keep(const iovec& memory, const Dmabuf* file) {
  auto known = std::make_unique<Known>();
  GpuRefusal& why = known->refusal;
  known->base = address_of(memory.iov_base);
  known->size = memory.iov_len;
  known->for_reads =
      register_gpu_region(x_device, x_cuda, memory, file, peer_rights(true, false), why);
  if (known->for_reads)
    known->for_writes =
        register_gpu_region(x_device, x_cuda, memory, file, peer_rights(false, true), why);
  if (!known->for_writes) known->for_reads.reset();
  if (!known->for_reads)
    ERDMA_NOTICE(gpu_refused, MR,
                 "%zu bytes of GPU memory can't be registered with %s (as a dmabuf: %s; by their "
                 "address: %s): endpoints that may not call CUDA can't send or receive there. %s",
                 memory.iov_len, x_device.name().c_str(), util::ErrorText(why.as_dmabuf).c_str(),
                 util::ErrorText(why.by_address).c_str(), why.remedy());
  known->flush = needs_flush(x_flush, x_cuda, memory.iov_base);
  auto kept = std::make_unique<Kept>(*this, *known);
  const std::lock_guard guard(x_mutex);
  x_known.emplace(known->base, known.get());
  x_longest = std::max(x_longest, known->size);
  (void)known.release();
  return kept;
}

/// A piece that holds all of the range; otherwise one that holds its first byte; null: the memory
/// is not a device's.
KnownMemory::Known* KnownMemory::find(const void* address, size_t length) const noexcept {
  const uintptr_t from = address_of(address);
  Known* begins_in = nullptr;
  for (auto next = x_known.upper_bound(from); next != x_known.begin();) {
    Known* const known = (--next)->second;
    const uintptr_t offset = from - known->base;
    if (offset >= x_longest) break;
    if (offset >= known->size) continue;
    if (known->reaches(address, length)) return known;
    begins_in = known;
  }
  return begins_in;
}

bool KnownMemory::is_device(const void* pointer) const noexcept {
  const std::lock_guard guard(x_mutex);
  return find(pointer, 1) != nullptr;
}

std::unique_ptr<KnownMemory::Known> KnownMemory::drop(Known& known) noexcept {
  return std::unique_ptr<Known>(--known.users == 0 ? &known : nullptr);
}

/// The application has closed its region. As in the other functions that drop a user, the last
/// one's `unused` ends after the lock.
void KnownMemory::forget(Known& known) noexcept {
  std::unique_ptr<Known> unused;
  const std::lock_guard guard(x_mutex);
  const auto [first, last] = x_known.equal_range(known.base);
  const auto found =
      std::find_if(first, last, [&](const auto& entry) { return entry.second == &known; });
  if (found == last) return;  // keep() lacked memory for the entry, and still owns the memory
  x_known.erase(found);
  unused = drop(known);
}

// --- for the NIC --------------------------------------------------------------------------------

int KnownMemory::acquire(const void* address, size_t length, int rights,
                         Registration& registration) noexcept {
  {
    const std::lock_guard guard(x_mutex);
    if (Known* const known = find(address, length)) {
      if (!known->reaches(address, length)) return -FI_EOPNOTSUPP;
      const MemoryRegion& region = known->region(rights);
      ++known->users;
      registration = {region->lkey, region->rkey, mark_entry(*known)};
      return 0;
    }
  }
  return x_host.acquire(address, length, rights, registration);
}

bool KnownMemory::should_register(const iovec* memory, size_t count) noexcept {
  const auto known = [this](const iovec& piece) { return is_device(piece.iov_base); };
  return std::any_of(memory, memory + count, known) || x_host.should_register(memory, count);
}

void KnownMemory::release(const Registration& registration) noexcept {
  Known* const known = marked_entry<Known>(registration);
  if (!known) return x_host.release(registration);
  if (!x_cuda.usable()) return;  // it belongs to the parent
  std::unique_ptr<Known> unused;
  const std::lock_guard guard(x_mutex);
  unused = drop(*known);
}

bool KnownMemory::reaches(const iovec* memory, size_t count) noexcept {
  const std::lock_guard guard(x_mutex);
  return std::all_of(memory, memory + count, [this](const iovec& piece) {
    if (piece.iov_len == 0) return true;
    const Known* const known = find(piece.iov_base, piece.iov_len);
    return known && known->reaches(piece.iov_base, piece.iov_len);
  });
}

bool KnownMemory::can_share(const iovec* memory, size_t count, Access) noexcept {
  return reaches(memory, count);
}

bool KnownMemory::may_be_written(const iovec* memory, size_t count) noexcept {
  return reaches(memory, count);
}

/// False if the remote memory is bounced: its owner moves it by packets, which a processor handles
/// here.
bool KnownMemory::can_move(const iovec* memory, size_t count, const RemoteKey& remote,
                           bool) noexcept {
  RemoteMemory named;
  return decode(remote, named) && !named.bounced && reaches(memory, count);
}

FlushTarget KnownMemory::acquire_flush(const iovec& memory) noexcept {
  FlushTarget target;
  if (memory.iov_len == 0) return target;
  const std::lock_guard guard(x_mutex);
  Known* const known = find(memory.iov_base, memory.iov_len);
  if (!known || !known->for_reads || !known->flush) return target;
  ++known->users;
  target.held = known;
  target.memory = key_of({address_of(memory.iov_base), 1, known->for_reads->rkey});
  return target;
}

void KnownMemory::release_flush(const FlushTarget& target) noexcept {
  if (!target.held || !x_cuda.usable()) return;
  std::unique_ptr<Known> unused;
  const std::lock_guard guard(x_mutex);
  unused = drop(*static_cast<Known*>(target.held));
}

// --- copies -------------------------------------------------------------------------------------

int KnownMemory::from_device(void* to, const void* from, size_t length) noexcept {
  Registration held;
  if (length == 0) return 0;
  if (const int rc = acquire(from, length, peer_rights(true, false), held)) return rc;
  const RemoteKey memory = key_of({address_of(from), length, held.rkey});
  const int rc = x_copier.read(to, {memory, 0, length});
  release(held);
  return rc;
}

/// The bytes are also visible there, if a flush is needed for that.
int KnownMemory::to_device(void* to, const void* from, size_t length) noexcept {
  Registration held;
  if (length == 0) return 0;
  if (const int rc = acquire(to, length, peer_rights(false, true), held)) return rc;
  const RemoteKey memory = key_of({address_of(to), length, held.rkey});
  int rc = x_copier.write({memory, 0, length}, from);
  const FlushTarget flush = acquire_flush({to, length});
  std::byte sink{};
  if (!rc && flush.held) rc = x_copier.read(&sink, {flush.memory, 0, 1});
  release_flush(flush);
  release(held);
  return rc;
}

// --- the probe ----------------------------------------------------------------------------------

int KnownMemory::probe() noexcept try {
  const auto scratch = x_cuda.allocate(kProbeBytes);
  if (!scratch) return tell_failure("CUDA's allocation of memory", true);
  const auto kept = keep({scratch->pointer(), kProbeBytes}, nullptr);
  const char* const failed = try_bytes(scratch->pointer());
  return failed ? tell_failure(failed, may_pass(scratch->pointer())) : 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

/// True if the memory is not registered, but may be another time.
bool KnownMemory::may_pass(const void* probed) noexcept {
  const std::lock_guard guard(x_mutex);
  const Known* const known = find(probed, 1);
  return !known->for_reads && !known->refusal.final();
}

int KnownMemory::tell_failure(const char* failed, bool passes) noexcept {
  ERDMA_NOTICE(gpu_refused, EP_CTRL,
               "GPU memory can't be used without calling CUDA: %s failed with %s. %s", failed,
               x_device.name().c_str(), passes ? "It is tried again the next time" : kNoWayRemedy);
  return passes ? -FI_EAGAIN : -FI_EOPNOTSUPP;
}

/// Null: all bytes arrived. Tested in both directions, because CUDA and the NIC might see different
/// memory.
const char* KnownMemory::try_bytes(void* device) noexcept {
  const iovec all{device, kProbeBytes};
  if (!reaches(&all, 1)) return "its registration";
  std::array<std::byte, 8192> there{}, back{};
  const iovec piece{static_cast<std::byte*>(device) + kProbeBytes / 2, there.size()};
  const auto fill = [&](unsigned seed) {
    for (size_t i = 0; i < there.size(); ++i)
      there[i] = std::byte((i * 31 + (i >> 8) + seed) & 255);
  };
  fill(1);
  if (x_cuda.scatter(&piece, 1, 0, there.data(), there.size())) return "CUDA's copy to it";
  if (gather(back.data(), &piece, 1, 0, back.size())) return "an RDMA READ of it";
  if (there != back) return "an RDMA READ of it, which brought other bytes than are there,";
  fill(2);
  if (scatter(&piece, 1, 0, there.data(), there.size())) return "an RDMA WRITE to it";
  // The READ flushes, whatever the policy is.
  if (gather(back.data(), &piece, 1, 0, 1)) return "an RDMA READ of it";
  if (x_cuda.gather(back.data(), &piece, 1, 0, back.size())) return "CUDA's copy of it";
  return there == back ? nullptr : "an RDMA WRITE to it, which CUDA does not see,";
}

}  // namespace erdma::transport::verbs

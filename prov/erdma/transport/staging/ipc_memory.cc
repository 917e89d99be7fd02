#include "transport/staging/ipc_memory.h"

#include <algorithm>
#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "util/log.h"

namespace erdma::transport::staging {
namespace {

/// Most open allocations of one peer. If more are in use, each is opened again for each message,
/// which takes longer than a staged copy.
constexpr size_t kMostOpen = 16;
/// Most descriptors that were passed to a peer that has not used them yet. FilePassing::take()
/// keeps 16.
constexpr size_t kMostHanded = 16;
/// Bytes that one poll() copies: about a millisecond over PCIe.
constexpr size_t kBytesPerPoll = size_t(32) << 20;
/// Nanoseconds that a reader waits for the file of an offer, which was sent before the offer. After
/// that the bytes are staged.
constexpr uint64_t kFilePatience = 1'000'000'000;

struct WireKey {
  KeyKind kind = KeyKind::ipc;
  uint8_t is_file = 0;  ///< of Kind::file
  uint16_t zero = 0;
  uint32_t id = 0;
  uint64_t offset = 0;
  hmem::cuda_api::IpcMemHandle handle{};
};
static_assert(sizeof(WireKey) == 80);

}  // namespace

void IpcKey::encode(RemoteKey& remote_key) const noexcept {
  WireKey wire;
  wire.is_file = handle.kind == hmem::IpcHandle::Kind::file;
  wire.id = handle.id;
  wire.offset = offset;
  wire.handle = handle.bytes;
  remote_key.put(wire);
}

IpcKey IpcKey::decode(const RemoteKey& remote_key) noexcept {
  WireKey wire;
  std::memcpy(&wire, remote_key.bytes, std::min(sizeof(wire), size_t(remote_key.size)));
  using Kind = hmem::IpcHandle::Kind;
  return {{wire.handle, wire.id, wire.is_file ? Kind::file : Kind::driver}, wire.offset};
}

// --- files that were passed ---------------------------------------------------------------------

bool PassedAllocations::name(FilePassing& files, hmem::Cuda& cuda, hmem::IpcHandle& handle) noexcept
    try {
  auto at = std::find_if(x_allocations.begin(), x_allocations.end(),
                         [&](const Passed& one) { return one.handle == handle; });
  if (at == x_allocations.end()) {
    if (!make_room()) return false;
    x_allocations.reserve(x_allocations.size() + 1);
    const util::Fd file = cuda.ipc().export_file(handle);
    if (!file) return false;
    util::Result<uint32_t> number = files.pass(file);
    if (!number) return false;
    at = x_allocations.insert(x_allocations.end(), {handle, *number, false, 0});
  }
  at->used = ++x_uses;
  hmem::FileName named = hmem::FileName::of(handle);
  named.number = at->number;
  named.put(handle);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

/// The file of an offer that the peer answered no longer waits in the peer, since the peer takes it
/// at the latest when it reads the offer.
bool PassedAllocations::make_room() noexcept {
  if (x_allocations.size() < kMostHanded) return true;
  const auto oldest = std::min_element(
      x_allocations.begin(), x_allocations.end(),
      [](const Passed& one, const Passed& other) { return one.used < other.used; });
  if (!oldest->answered) return false;
  x_allocations.erase(oldest);
  return true;
}

void PassedAllocations::answered(const hmem::IpcHandle& handle, bool read) noexcept {
  if (handle.kind != hmem::IpcHandle::Kind::file) return;
  const uint64_t number = hmem::FileName::of(handle).number;
  const auto at = std::find_if(x_allocations.begin(), x_allocations.end(),
                               [&](const Passed& one) { return one.number == number; });
  if (at == x_allocations.end()) return;
  at->answered = true;
  if (!read) x_allocations.erase(at);
}

// --- mappings -----------------------------------------------------------------------------------

util::Result<Source> IpcMappings::reach(const IpcKey& key, FilePassing& files, const void* near,
                                        size_t length) noexcept {
  util::Result<const Open*> found = open(key, files, near);
  if (!found) return found.error();
  const hmem::IpcMemory& memory = (*found)->memory;
  if (key.offset > memory.size || length > memory.size - key.offset) return -FI_EOPNOTSUPP;
  return Source{(*found)->here, key.offset};
}

util::Result<const IpcMappings::Open*> IpcMappings::open(const IpcKey& key, FilePassing& files,
                                                         const void* near) noexcept try {
  // Found by handle and id: a later allocation may have the handle of a former one.
  auto at = std::find_if(x_open.begin(), x_open.end(),
                         [&](const Open& one) { return one.handle == key.handle; });
  if (at == x_open.end()) {
    x_open.reserve(kMostOpen);
    Open made{key.handle, key.handle, {}, 0};
    if (const int rc = open_new(files, near, made)) return rc;
    at = x_open.insert(x_open.end(), made);
  }
  at->used = ++x_uses;
  return static_cast<const Open*>(&*at);
} catch (const std::bad_alloc&) {
  return -FI_EOPNOTSUPP;
}

int IpcMappings::open_new(FilePassing& files, const void* near, Open& made) noexcept {
  if (made.handle.kind != hmem::IpcHandle::Kind::file) {
    make_room(made.handle);
    util::Result<hmem::IpcMemory> memory = x_cuda->ipc().open(made.handle, near);
    if (memory) made.memory = *memory;
    return memory.error();
  }
  const hmem::FileName name = hmem::FileName::of(made.handle);
  util::Result<util::Fd> file = files.take(uint32_t(name.number));
  if (file.error() == -FI_EAGAIN) return is_late(name.number) ? -FI_EOPNOTSUPP : -FI_EAGAIN;
  if (name.number == x_awaited) x_awaited_since = 0;  // also if the file was lost on its way
  if (!file) return file.error();
  make_room(made.handle);
  util::Result<hmem::IpcMemory> memory =
      x_cuda->ipc().import_file(*file, name.size, near, made.here);
  if (memory) made.memory = *memory;
  return memory.error();
}

/// A hostile peer may name a file that it never sends. Files that are awaited at the same time
/// share the waiting time of the first of them.
bool IpcMappings::is_late(uint64_t number) noexcept {
  const uint64_t now = x_clock ? x_clock->now() : util::SystemClock().now();
  if (!x_awaited_since) {
    x_awaited = number;
    x_awaited_since = now;
  }
  if (now - x_awaited_since < kFilePatience) return false;
  if (number == x_awaited) x_awaited_since = 0;
  return true;
}

/// Closes the former allocation of the same place and, if there are too many, the least recently
/// used one.
void IpcMappings::make_room(const hmem::IpcHandle& handle) noexcept {
  std::erase_if(x_open, [&](const Open& one) {
    const bool stale = one.handle.same_place(handle);
    if (stale) x_cuda->ipc().close(one.here);
    return stale;
  });
  if (x_open.size() < kMostOpen) return;
  const auto oldest =
      std::min_element(x_open.begin(), x_open.end(),
                       [](const Open& one, const Open& other) { return one.used < other.used; });
  x_cuda->ipc().close(oldest->here);
  x_open.erase(oldest);
}

int IpcMappings::decline(const IpcKey& key, FilePassing& files) noexcept {
  if (key.handle.kind == hmem::IpcHandle::Kind::file)
    (void)files.take(uint32_t(hmem::FileName::of(key.handle).number));
  return -FI_EOPNOTSUPP;
}

void IpcMappings::close() noexcept {
  for (const Open& one : x_open) x_cuda->ipc().close(one.here);
  x_open.clear();
  x_awaited_since = 0;
}

// --- copies -------------------------------------------------------------------------------------

IpcReads::~IpcReads() {
  for (const Read& read : x_reads) x_cuda->ipc().close(read.source.handle);
}

int IpcReads::add(const Link& from, const Source& source, const void* near, const iovec* memory,
                  size_t count, size_t length, uint64_t token) noexcept try {
  x_reads.push_back({&from, source, near, {}, count, length, token});
  std::copy_n(memory, count, x_reads.back().memory);
  // The allocation is open already: this call counts one more user, and lets one more device read
  // it.
  const int rc = x_cuda->ipc().open(source.handle, near).error();
  if (rc) x_reads.pop_back();
  return rc;
} catch (const std::bad_alloc&) {
  return -FI_EAGAIN;
}

uint64_t IpcReads::finish(std::deque<Read>::iterator read) noexcept {
  const uint64_t token = read->token;
  x_cuda->ipc().close(read->source.handle);
  x_reads.erase(read);
  return token;
}

int IpcReads::poll(Sink& sink) noexcept {
  int steps = 0;
  for (size_t budget = kBytesPerPoll; budget > 0 && !x_reads.empty(); ++steps) {
    Read& read = x_reads.front();
    const size_t bytes = std::min(budget, read.length - read.done);
    budget -= bytes;
    int status = step(read, bytes);
    if (status == 0 && read.done < read.length) continue;
    // If the owner got its memory back during the copy, the bytes may not be those of the message.
    if (status == 0 && read.link->optional().files->left()) status = -FI_ECANCELED;
    sink.on_done(finish(x_reads.begin()), status);
  }
  return steps;
}

/// Opens the memory for each step, because other memory may have the address of a mapping that has
/// ended.
int IpcReads::step(Read& read, size_t bytes) noexcept {
  util::Result<hmem::IpcMemory> open = x_cuda->ipc().open(read.source.handle, read.near);
  if (!open) {
    ERDMA_NOTICE(gpu_refused, EP_DATA,
                 "a message from GPU memory is lost: the CUDA context ended while the message was "
                 "copied, and the memory can't be mapped again; reset no device meanwhile");
    return -FI_EIO;
  }
  const auto* const from =
      static_cast<const std::byte*>(hmem::cuda_api::pointer_to(open->base + read.source.offset));
  const int rc = copy(read, from + read.done, bytes);
  x_cuda->ipc().close(read.source.handle);
  read.done += bytes;
  return rc;
}

int IpcReads::copy(const Read& read, const std::byte* from, size_t bytes) noexcept {
  int rc = 0;
  hmem::for_each_part(read.memory, read.count, read.done, bytes,
                      [&](std::byte* part, size_t before, size_t length) {
                        if (!rc) rc = x_cuda->copy(part, from + before, length);
                      });
  return rc;
}

void IpcReads::end(const Link& link, Sink& sink, int status) noexcept {
  const auto ours = [&](const Read& read) { return read.link == &link; };
  for (;;) {  // the upcall may add reads
    const auto at = std::find_if(x_reads.begin(), x_reads.end(), ours);
    if (at == x_reads.end()) return;
    sink.on_done(finish(at), status);
  }
}

}  // namespace erdma::transport::staging

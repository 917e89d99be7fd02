// RMA on device memory through a NIC whose stores to a GPU are late, and the read that flushes
// them: the simulated adapter, in both of its personalities.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "fabric/hmem_rma_cases.h"
#include "fake/captured_log.h"
#include "transport/simulated_device.h"

namespace {

using namespace erdma::test;

void on_nic(const char* shm, bool peermem, bool dmabuf) {
  g_device = "erdma_0";
  g_direct = true;
  setenv("FI_ERDMA_SHM", shm, 1);
  setenv("SOFTERDMA_POSTED", "1", 1);
  setenv("SOFTERDMA_PEERMEM", peermem ? "1" : "0", 1);
  setenv("SOFTERDMA_DMABUF", dmabuf ? "1" : "0", 1);
}
void by_address() {
  on_nic("off", true, false);
}
void by_dmabuf() {
  on_nic("off", false, true);
}
/// Local peers use shared memory. Flushes use the NIC nevertheless.
void with_shared_memory() {
  on_nic("auto", true, true);
}
void without_cache() {
  by_address();
  setenv("FI_ERDMA_MR_CACHE", "off", 1);
}
/// The adapter reaches no GPU.
void out_of_reach() {
  on_nic("off", false, false);
  g_direct = false;
}
/// The adapter executes work requests after the post call has returned.
void late() {
  by_address();
  setenv("SOFTERDMA_LATE", "1", 1);
}

int control_adapter(const char* line) {
  auto* control = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "softerdma_control"));
  ck_assert_ptr_nonnull(reinterpret_cast<void*>(control));
  return control(line);
}

/// The number that a kernel reads at this device address.
uint64_t number_at(const void* at) {
  uint64_t number = 0;
  std::memcpy(&number, softcuda_alias(at, 8), 8);
  return number;
}

/// After the constructor, writes of a peer or of the endpoint itself access the device directly.
struct Flushed : HmemRmaPorts {
  explicit Flushed(bool to_self = true) : HmemRmaPorts(to_self) {
    for (uint64_t i = 1; i <= 3; ++i) write(&i, 8);
    flush();
    ck_assert_uint_eq(number(), 3);
  }
  uint64_t number() { return number_at(memory.at()); }
};

}  // namespace

SUITE(.run = on_simulated_devices);
SET_UPS("device memory in RMA", by_address, by_dmabuf, with_shared_memory, out_of_reach);
SET_UPS("copies of RMA by CUDA", by_address, by_dmabuf, with_shared_memory, out_of_reach);
// hmem_nic_test.cc runs these cases.
LEFT_OUT("device memory in messages");
LEFT_OUT("copies of messages by CUDA");

TEST_CASE(.set_up = {by_address, by_dmabuf, with_shared_memory, without_cache});

TEST(number_is_stale_until_it_is_flushed, 8) {
  Flushed ports(_i & 1);
  const bool nic = _i & 1 || getenv("FI_ERDMA_SHM")[0] == 'o';
  const uint64_t fresh = 77;
  ports.write(&fresh, 8);
  if (nic) ck_assert_uint_eq(ports.number(), 3);
  ports.flush(_i & 2 ? 4 : 1, _i & 4 ? 1'000'000 : 0);
  ck_assert_uint_eq(ports.number(), 77);
}

TEST_CASE(.set_up = by_address);

/// The data is stale without the flush, and exact with it, each time.
TEST(hundred_thousand_writes_are_flushed) {
  Flushed ports;
  size_t stale = 0;
  for (uint64_t i = 4; i < 100'004; ++i) {
    ports.write(&i, 8);
    stale += ports.number() != i;
    ports.flush();
    ck_assert_uint_eq(ports.number(), i);
  }
  ck_assert_uint_eq(stale, 100'000);
}

TEST_CASE(.set_up = late);

/// Fewer iterations, since completions come from a thread of the adapter here.
TEST(completion_of_a_flush_comes_after_it) {
  Flushed ports;
  for (uint64_t i = 4; i < 2004; ++i) {
    ports.write(&i, 8);
    ports.flush();
    ck_assert_uint_eq(ports.number(), i);
  }
}

TEST_CASE(.set_up = {by_address, by_dmabuf, with_shared_memory, without_cache});

/// Like NCCL's plugin, the endpoint asks for FI_READ alone: it is no target for peers.
TEST(who_only_reads_flushes_its_own_memory) {
  Ask ask = hmem_rma_ask();
  ask.caps |= FI_READ;
  Root root(ask);
  ck_assert(!(root.info->caps & (FI_REMOTE_READ | FI_REMOTE_WRITE)));
  ck_assert_int_eq(root.info->domain_attr->mr_mode, ask.mr_mode);
  Port port(root);
  const fi_addr_t itself = port.insert(port);
  const auto bytes = pattern(4096);
  Memory memory(true, bytes);
  Region region(root, memory.at(), 4096, FI_SEND | FI_RECV | FI_REMOTE_READ);
  char sink[4]{};
  ck_assert_int_eq(
      fi_read(port.ep, sink, 4, nullptr, itself, uint64_t(memory.at(100)), region.key(), &sink), 0);
  ck_assert_ptr_eq(port.wait().op_context, &sink);
  ck_assert_mem_eq(sink, bytes.data() + 100, 4);
}

/// A read of 0 bytes flushes at any address of the region, even at its end. Without a valid key it
/// does nothing.
TEST(read_of_nothing_flushes) {
  Flushed ports;
  const size_t offsets[] = {0, 1000, 1 << 20};
  for (const size_t offset : offsets) {
    const uint64_t fresh = offset + 100;
    ports.write(&fresh, 8);
    ck_assert_uint_ne(ports.number(), fresh);
    ports.flush(0, offset);
    ck_assert_uint_eq(ports.number(), fresh);
  }
  ck_assert_int_eq(fi_read(ports.b.ep, nullptr, 0, nullptr, ports.itself, 0, 12345, &ports), 0);
  ports.expect(ports.b, FI_RMA | FI_READ, &ports);
}

/// Only a read whose key names no memory that the NIC writes has nothing to flush.
TEST(read_of_nothing_that_can_not_flush_is_an_error) {
  Flushed ports;
  Memory other(true, std::vector<char>(4096));
  Region write_only(ports.root, other.at(), 4096, FI_REMOTE_WRITE);
  const struct {
    uint64_t address, key;
  } wrong[] = {{uint64_t(other.at()), write_only.key()},
               {ports.at(0) - 1, ports.region.key()},
               {ports.at(0) + (1 << 20) + 1, ports.region.key()}};
  for (const auto& [address, key] : wrong) {
    fi_context context;
    ck_assert_int_eq(fi_read(ports.b.ep, nullptr, 0, nullptr, ports.itself, address, key, &context),
                     0);
    const fi_cq_err_entry error = ports.b.wait_error();
    ck_assert_int_eq(error.err, FI_EACCES);
    ck_assert_ptr_eq(error.op_context, &context);
  }
  const fi_rma_iov pieces[] = {{ports.at(0), 0, ports.region.key()},
                               {ports.at(8), 0, ports.region.key()}};
  const iovec into{ports.scratch, 0};
  const fi_msg_rma two{&into, nullptr, 1, ports.itself, pieces, 2, &ports, 0};
  ck_assert_int_eq(fi_readmsg(ports.b.ep, &two, 0), 0);
  ck_assert_int_eq(ports.b.wait_error().err, FI_EOPNOTSUPP);
}

/// The read returns the GPU's data: the bytes that a kernel wrote.
TEST(flush_reads_what_the_gpu_holds) {
  Flushed ports;
  for (const char value : {'1', '2', '3'}) {
    fill_memory(DevicePointer(ports.memory.at()), value, 64);
    const auto copies = softcuda_calls("cuMemcpyAsync");
    ports.flush(64);
    for (const char byte : ports.scratch) ck_assert_int_eq(byte, value);
    ck_assert_uint_eq(softcuda_calls("cuMemcpyAsync"), copies);
  }
}

/// The test posts more flushes than fit any queue, without a retry. Each completes once.
TEST(flush_is_never_to_be_tried_again) {
  Flushed ports;
  constexpr size_t kFlushes = 20'000;
  std::vector<char> done(kFlushes);
  for (char& one : done)
    ck_assert_int_eq(fi_read(ports.b.ep, ports.scratch, 4, nullptr, ports.itself, ports.at(0),
                             ports.region.key(), &one),
                     0);
  for (size_t i = 0; i < kFlushes; ++i) {
    const fi_cq_tagged_entry entry = ports.b.wait();
    ck_assert_uint_eq(entry.flags, FI_RMA | FI_READ);
    ck_assert_int_eq((*static_cast<char*>(entry.op_context))++, 0);
  }
  ck_assert_int_eq(fi_cq_read(ports.b.cq, nullptr, 0), -FI_EAGAIN);
}

/// Flushes fail with wrong keys, rights or ranges, if the device fails, and if a read would need a
/// copy.
TEST(flush_that_fails_is_an_error) {
  Flushed ports;
  Memory other(true, std::vector<char>(4096));
  auto closed = std::make_unique<Region>(ports.root, other.at(), 4096);
  const uint64_t gone = closed->key();
  closed.reset();
  Region write_only(ports.root, other.at(), 4096, FI_REMOTE_WRITE);
  const uint64_t fresh = 99;
  ports.write(&fresh, 8);
  const struct {
    uint64_t address, key;
  } wrong[] = {{ports.at(0), ports.region.key() + 1},
               {uint64_t(other.at()), gone},
               {uint64_t(other.at()), write_only.key()},
               {ports.at((1 << 20) - 3), ports.region.key()}};
  for (const auto& [address, key] : wrong) {
    fi_context context;
    ck_assert_int_eq(
        fi_read(ports.b.ep, ports.scratch, 4, nullptr, ports.itself, address, key, &context), 0);
    const fi_cq_err_entry error = ports.b.wait_error();
    ck_assert_int_eq(error.err, FI_EACCES);
    ck_assert_uint_eq(error.flags, FI_RMA | FI_READ);
    ck_assert_ptr_eq(error.op_context, &context);
  }
  const fi_rma_iov pieces[] = {{ports.at(0), 4, ports.region.key()},
                               {ports.at(8), 4, ports.region.key()}};
  const iovec into{ports.scratch, 8};
  const fi_msg_rma two{&into, nullptr, 1, ports.itself, pieces, 2, &ports, 0};
  ck_assert_int_eq(fi_readmsg(ports.b.ep, &two, 0), 0);
  ck_assert_int_eq(ports.b.wait_error().err, FI_EOPNOTSUPP);
  ck_assert_uint_eq(ports.number(), 3);
  ck_assert_int_eq(control_adapter("wr n=1 op=read status=general"), 0);
  ck_assert_int_eq(fi_read(ports.b.ep, ports.scratch, 4, nullptr, ports.itself, ports.at(0),
                           ports.region.key(), &ports),
                   0);
  const fi_cq_err_entry error = ports.b.wait_error();
  ck_assert_int_ne(error.err, 0);
  ck_assert_uint_eq(error.flags, FI_RMA | FI_READ);
  ck_assert_int_eq(control_adapter("clear"), 0);
  // More reads may fail with the connection. Then a new connection is made.
  fi_cq_tagged_entry done{};
  while (done.op_context != &ports.sink) {
    fi_cq_err_entry failed{};
    ck_assert_int_eq(fi_read(ports.b.ep, ports.scratch, 4, nullptr, ports.itself, ports.at(0),
                             ports.region.key(), &ports.sink),
                     0);
    ssize_t rc;
    while ((rc = fi_cq_read(ports.b.cq, &done, 1)) == -FI_EAGAIN) continue;
    if (rc == -FI_EAVAIL) ck_assert_int_eq(fi_cq_readerr(ports.b.cq, &failed, 0), 1);
    if (rc == -FI_EAVAIL) ck_assert_ptr_eq(failed.op_context, &ports.sink);
  }
  ck_assert_uint_eq(ports.number(), 99);
}

/// The region is exactly the registered range. Peers can't access its neighbours.
TEST(region_of_a_part_of_an_allocation_is_just_that) {
  Root root(hmem_rma_ask());
  Port port(root);
  const fi_addr_t itself = port.insert(port);
  Memory memory(true, std::vector<char>(3 * 4096 + 100, '-'));
  Region region(root, memory.at(4097), 5000);
  const auto message = pattern(5000);
  char scratch[1];
  ck_assert_int_eq(fi_write(port.ep, message.data(), 5000, nullptr, itself,
                            uint64_t(memory.at(4097)), region.key(), nullptr),
                   0);
  port.wait();
  ck_assert_int_eq(fi_read(port.ep, scratch, 1, nullptr, itself, uint64_t(memory.at(9096)),
                           region.key(), nullptr),
                   0);
  port.wait();
  const auto seen = memory.bytes();
  ck_assert_int_eq(seen[4096], '-');
  ck_assert(std::equal(message.begin(), message.end(), seen.begin() + 4097));
  ck_assert_int_eq(seen[9097], '-');
}

/// As PyTorch's expandable segments do, if the NIC can register such memory.
TEST(region_may_span_mappings) {
  constexpr size_t kPiece = size_t(2) << 20;
  setenv("SOFTERDMA_PEERMEM", "1", 1);
  Root root(hmem_rma_ask());
  Port port(root);
  const fi_addr_t itself = port.insert(port);
  const DeviceMemory context(8);
  const MemAllocationProperties wanted{kMemoryPinned, 0, {kLocationDevice, 0}, nullptr, {}};
  DevicePointer range = 0;
  ck_assert_int_eq(cuMemAddressReserve(&range, 3 * kPiece, 0, 0, 0), 0);
  for (size_t i = 0; i < 2; ++i) {
    PhysicalMemory piece = 0;
    ck_assert_int_eq(cuMemCreate(&piece, kPiece, &wanted, 0), 0);
    ck_assert_int_eq(cuMemMap(range + i * kPiece, kPiece, 0, piece, 0), 0);
    ck_assert_int_eq(cuMemRelease(piece), 0);
  }
  auto* const first = reinterpret_cast<char*>(range);
  fid_mr* none = nullptr;
  ck_assert_int_eq(fi_mr_reg(root.domain, first, 2 * kPiece + 1, FI_SEND, 0, 0, 0, &none, nullptr),
                   -FI_EINVAL);
  {
    const Region region(root, first, 2 * kPiece);
    const uint64_t number = 0x0123456789abcdef;
    char scratch[8];
    ck_assert_int_eq(
        fi_write(port.ep, &number, 8, nullptr, itself, range + kPiece - 4, region.key(), nullptr),
        0);
    port.wait();
    ck_assert_int_eq(
        fi_read(port.ep, scratch, 8, nullptr, itself, range + kPiece - 4, region.key(), nullptr),
        0);
    port.wait();
    ck_assert_uint_eq(number_at(first + kPiece - 4), number);
  }
  for (size_t i = 0; i < 2; ++i) ck_assert_int_eq(cuMemUnmap(range + i * kPiece, kPiece), 0);
  ck_assert_int_eq(cuMemAddressFree(range, 3 * kPiece), 0);
}

TEST(address_that_comes_back_is_other_memory) {
  Root root(hmem_rma_ask());
  Port port(root);
  const fi_addr_t itself = port.insert(port);
  char scratch[8];
  void* before = nullptr;
  for (uint64_t i = 1; i <= 3; ++i) {
    Memory memory(true, std::vector<char>(8192));
    if (before) ck_assert_ptr_eq(memory.at(), before);
    before = memory.at();
    Region region(root, memory.at(), 8192);
    ck_assert_int_eq(
        fi_write(port.ep, &i, 8, nullptr, itself, uint64_t(before), region.key(), nullptr), 0);
    port.wait();
    ck_assert_int_eq(
        fi_read(port.ep, scratch, 8, nullptr, itself, uint64_t(before), region.key(), nullptr), 0);
    port.wait();
    ck_assert_uint_eq(number_at(before), i);
  }
}

TEST_CASE();

/// RMA there is copied by CUDA, as messages are. NCCL's plugin registers such memory although it
/// has found that there is no GPUDirect.
TEST(memory_that_the_nic_can_not_reach_is_copied_and_the_cause_told, 2) {
  on_nic(_i ? "auto" : "off", false, false);
  g_direct = false;
  HmemRmaPorts ports;
  std::string said;
  for (const auto& line : g_log)
    if (line.level == FI_LOG_WARN) said += line.text;
  ck_assert(contains(said, "nvidia-peermem"));
  ck_assert(contains(said, std::strerror(EFAULT)));
  ck_assert(contains(said, std::strerror(EOPNOTSUPP)));
  const auto message = pattern(100'000);
  ports.write(message.data(), message.size(), 5);
  const auto seen = ports.memory.bytes();
  ck_assert_int_eq(seen[4], '-');
  ck_assert(std::equal(message.begin(), message.end(), seen.begin() + 5));
  ck_assert_int_eq(seen[100'005], '-');
  // No write of the NIC has to be flushed, so a read of the own memory is a copy, too.
  ports.flush(4, 5);
  ck_assert_mem_eq(ports.scratch, message.data(), 4);
}

/// struct fi_mr_dmabuf of libfabric 1.20, which newer headers have.
struct FileMemory {
  int fd;
  uint64_t offset;
  size_t length;
  void* base;
};

TEST(region_can_be_named_by_a_dmabuf) {
  by_dmabuf();
  Ask wanted = hmem_rma_ask();
  wanted.version = FI_VERSION(1, 20);
  Root root(wanted);
  Port port(root);
  const fi_addr_t itself = port.insert(port);
  Memory memory(true, std::vector<char>(8192, '-'));
  int fd = -1;
  ck_assert_int_eq(cuMemGetHandleForAddressRange(&fd, DevicePointer(memory.at()), 8192, 1, 0), 0);
  const FileMemory file{fd, 4096, 4000, memory.at()};
  fi_mr_attr attr{};
  std::memcpy(&attr.mr_iov, std::array{&file}.data(), sizeof(void*));
  attr.iov_count = 1;
  attr.access = FI_REMOTE_READ | FI_REMOTE_WRITE;
  fid_mr* mr = nullptr;
  constexpr uint64_t kDmabuf = uint64_t(1) << 40;
  ck_assert_int_eq(fi_mr_regattr(root.domain, &attr, kDmabuf, &mr), -FI_EOPNOTSUPP);
  attr.iface = FI_HMEM_CUDA;
  ck_assert_int_eq(fi_mr_regattr(root.domain, &attr, kDmabuf, &mr), 0);
  close(fd);  // NCCL closes it, too
  const uint64_t number = 4711;
  char scratch[8];
  ck_assert_int_eq(fi_write(port.ep, &number, 8, nullptr, itself, uint64_t(memory.at(4096 + 8)),
                            fi_mr_key(mr), nullptr),
                   0);
  port.wait();
  ck_assert_int_eq(fi_read(port.ep, scratch, 8, nullptr, itself, uint64_t(memory.at(4096 + 8)),
                           fi_mr_key(mr), nullptr),
                   0);
  port.wait();
  ck_assert_uint_eq(number_at(memory.at(4096 + 8)), number);
  ck_assert_mem_eq(scratch, &number, 8);
  ck_assert_int_eq(fi_close(&mr->fid), 0);
}

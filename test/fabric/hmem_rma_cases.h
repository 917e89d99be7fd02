#pragma once

#include <iterator>

#include "fabric/hmem_cases.h"
#include "fabric/one_sided_rig.h"

/// RMA from and to memory of the simulated GPU, on whatever path the setup chooses.
namespace erdma::test {

inline Ask hmem_rma_ask() {
  Ask ask;
  ask.caps = FI_HMEM | FI_RMA | FI_MSG | FI_TAGGED;
  ask.mr_mode = FI_MR_HMEM | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  ask.version = FI_VERSION(1, 15);
  return ask;
}

/// a is the initiator. b is the target, with a region in device memory, or in host memory if
/// `device` is false.
struct HmemRmaPorts {
  explicit HmemRmaPorts(bool to_self = false, size_t length = 1 << 20, bool device = true)
      : root(hmem_rma_ask()),
        a(root),
        b(root),
        target(to_self ? a : b),
        address(a.insert(target)),
        itself(b.insert(b)),
        memory(device, std::vector<char>(length, '-')),
        sink(root, scratch, sizeof(scratch)),
        region(root, memory.at(), length) {}

  uint64_t at(size_t offset) { return uint64_t(memory.at(offset)); }
  template <typename Call>
  void post(Call call) {
    const WithoutCuda scope;
    ssize_t rc;
    while ((rc = call()) == -FI_EAGAIN) both();
    ck_assert_int_eq(rc, 0);
  }
  void both() {
    a.progress();
    b.progress();
  }
  void expect(Port& port, uint64_t flags, const void* context = nullptr) {
    const WithoutCuda scope;
    const fi_cq_tagged_entry entry = port.wait(&port == &a ? &b : &a);
    ck_assert_uint_eq(entry.flags, flags);
    ck_assert_ptr_eq(entry.op_context, context);
  }
  void write(const void* from, size_t length, size_t offset = 0) {
    post([&] {
      return fi_write(a.ep, from, length, nullptr, address, at(offset), region.key(), nullptr);
    });
    expect(a, FI_RMA | FI_WRITE);
  }
  /// Flushes by a read of the owner, as applications do. The call is not repeated.
  void flush(size_t length = 4, size_t offset = 0) {
    const WithoutCuda scope;
    ck_assert_int_eq(fi_read(b.ep, scratch, length, fi_mr_desc(sink.mr), itself, at(offset),
                             region.key(), &scratch),
                     0);
    expect(b, FI_RMA | FI_READ, &scratch);
  }

  Root root;
  Registered registered{root};
  Port a, b;
  Port& target;
  fi_addr_t address, itself;
  Memory memory;
  char scratch[64]{};
  Region sink, region;
};

constexpr size_t kRmaLengths[] = {0, 1, 8, 64, 65, 4096, 4097, 100'001, 1 << 20};

TEST_CASE(.name = "device memory in RMA");

/// Both kinds of memory at both ends; the owner flushes after each write.
TEST(hmem_rma_what_is_written_can_be_read_back, 8) {
  const bool to_self = _i & 1, from_device = _i & 2, to_device = _i & 4;
  HmemRmaPorts ports(to_self, 1 << 20, to_device);
  for (int round = 0; round < 3; ++round) {  // a grant answers the second round
    for (const size_t length : kRmaLengths) {
      auto message = pattern(length);
      for (char& byte : message) byte = char(byte + round);
      Memory from(from_device, message), back(from_device, std::vector<char>(length));
      ports.write(from.at(), length);
      ports.flush();
      const auto seen = ports.memory.bytes();
      ck_assert_msg(std::equal(message.begin(), message.end(), seen.begin()), "%zu bytes", length);
      ports.post([&] {
        return fi_read(ports.a.ep, back.at(), length, nullptr, ports.address, ports.at(0),
                       ports.region.key(), nullptr);
      });
      ports.expect(ports.a, FI_RMA | FI_READ);
      ck_assert_msg(back.bytes() == message, "%zu bytes", length);
    }
  }
}

TEST(hmem_rma_brings_data_pieces_and_what_is_injected, 2) {
  HmemRmaPorts ports(_i);
  for (const size_t length : {8u, 1000u, 200'000u}) {
    const auto message = pattern(size_t(length));
    Memory one(true, head(message, size_t(length) / 2)), two(false, {});
    two = Memory(false, {message.begin() + length / 2, message.end()});
    const iovec iov[] = {{one.at(), size_t(length) / 2}, {two.at(), size_t(length) / 2}};
    const uint64_t key = ports.region.key();
    const fi_rma_iov remote[] = {{ports.at(0), size_t(length) / 4, key},
                                 {ports.at(300'000), size_t(length) / 4 * 3, key}};
    const fi_msg_rma all{iov, nullptr, 2, ports.address, remote, 2, nullptr, 99};
    ports.post([&] { return fi_writemsg(ports.a.ep, &all, FI_REMOTE_CQ_DATA); });
    bool written = false, told = false;
    while (!written || !told) {
      fi_cq_tagged_entry entry{};
      for (Port* port : {&ports.a, &ports.b}) {
        if (fi_cq_read(port->cq, &entry, 1) != 1) continue;
        if (entry.flags & FI_REMOTE_WRITE) {
          ck_assert_uint_eq(entry.data, 99);
          ck_assert_uint_eq(entry.len, size_t(length));
          told = true;
        } else {
          ck_assert_uint_eq(entry.flags, FI_RMA | FI_WRITE);
          written = true;
        }
      }
    }
    const auto seen = ports.memory.bytes();
    ck_assert(std::equal(message.begin(), message.begin() + length / 4, seen.begin()));
    ck_assert(std::equal(message.begin() + length / 4, message.end(), seen.begin() + 300'000));
  }
  const auto message = pattern(500);
  Memory small(true, message);
  ports.post([&] {
    return fi_inject_write(ports.a.ep, small.at(), 500, ports.address, ports.at(7),
                           ports.region.key());
  });
  fill_memory(DevicePointer(small.at()), 0, 500);
  std::vector<char> back(500);
  while (back != message) {  // so long operations are not ordered
    ports.post([&] {
      return fi_read(ports.a.ep, back.data(), 500, nullptr, ports.address, ports.at(7),
                     ports.region.key(), nullptr);
    });
    ports.expect(ports.a, FI_RMA | FI_READ);
  }
}

TEST_CASE(.name = "copies of RMA by CUDA");

/// A copy by the driver fails: the initiator gets one error.
TEST(hmem_rma_failed_copy_is_an_error) {
  HmemRmaPorts ports;
  for (const size_t length : {8u, 100'000u}) {
    if (g_direct && length > 100) break;  // the NIC copies
    Memory device(true, std::vector<char>(length));
    std::vector<char> host(length);
    for (const bool reads : {false, true}) {
      ck_assert_int_eq(softcuda_control("fail cuMemcpyAsync error=719 times=1000"), 0);
      fi_context context;
      ports.post([&] {
        return reads ? fi_read(ports.a.ep, device.at(), length, nullptr, ports.address, ports.at(0),
                               ports.region.key(), &context)
                     : fi_write(ports.a.ep, device.at(), length, nullptr, ports.address,
                                ports.at(0), ports.region.key(), &context);
      });
      const fi_cq_err_entry error = ports.a.wait_error(&ports.b);
      ck_assert_int_eq(error.err, FI_EIO);
      ck_assert_ptr_eq(error.op_context, &context);
      ck_assert_int_eq(softcuda_control("clear"), 0);
    }
    ports.write(host.data(), length);
  }
}

TEST_CASE(.name = "device memory in RMA");

TEST(hmem_rma_is_refused_where_it_is_not_permitted) {
  HmemRmaPorts ports;
  Memory other(true, std::vector<char>(4096, '-'));
  Region read_only(ports.root, other.at(), 4096, FI_REMOTE_READ);
  const char byte = 'x';
  for (int i = 0; i < 3; ++i) {
    fi_context context;
    const uint64_t beyond = ports.at(0) + (1 << 20);
    ports.post([&] {
      return i == 0   ? fi_write(ports.a.ep, &byte, 1, nullptr, ports.address, uint64_t(other.at()),
                                 read_only.key(), &context)
             : i == 1 ? fi_write(ports.a.ep, &byte, 1, nullptr, ports.address, beyond,
                                 ports.region.key(), &context)
                      : fi_write(ports.a.ep, &byte, 1, nullptr, ports.address, ports.at(0),
                                 ports.region.key() + 1, &context);
    });
    const fi_cq_err_entry error = ports.a.wait_error(&ports.b);
    ck_assert_int_eq(error.err, FI_EACCES);
    ck_assert_uint_eq(error.flags, FI_RMA | FI_WRITE);
  }
  ports.write(&byte, 1);
  ports.flush();
  ck_assert_int_eq(ports.memory.bytes()[0], 'x');
  ck_assert_int_eq(other.bytes()[0], '-');
}

}  // namespace erdma::test

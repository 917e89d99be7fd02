// Device memory in messages through a NIC: the simulated adapter, in both of its personalities.
#include <arpa/inet.h>
#include <dlfcn.h>

#include <iterator>
#include <string>

#include "fabric/hmem_cases.h"
#include "transport/simulated_device.h"
#include "watched_memory.h"

namespace {

using namespace erdma::test;

void on_nic(const char* rendezvous, bool peermem, bool dmabuf) {
  g_device = "erdma_0";
  g_direct = peermem || dmabuf;
  setenv("FI_ERDMA_SHM", "off", 1);
  setenv("FI_ERDMA_RENDEZVOUS", rendezvous, 1);
  setenv("SOFTERDMA_POSTED", "1", 1);  // bytes that are not flushed stay invisible
  setenv("SOFTERDMA_PEERMEM", peermem ? "1" : "0", 1);
  setenv("SOFTERDMA_DMABUF", dmabuf ? "1" : "0", 1);
}
void staged_by_writing() {
  on_nic("write", false, false);
}
void staged_by_reading() {
  on_nic("read", false, false);
}
void direct_by_writing() {
  on_nic("write", true, false);
}
void direct_by_reading() {
  on_nic("read", false, true);
}

/// The peer can't register its GPU memory, so the peer's CPU must copy.
void without_registration() {
  on_nic("write", true, true);
  setenv("FI_ERDMA_MR_CACHE", "off", 1);
  g_direct = false;
}

bool connects_by_the_adapter() {
  const char* const personality = std::getenv("SOFTERDMA_PERSONALITY");
  return !personality || std::string(personality) != "compat";
}

SUITE(.run = on_simulated_devices);
SET_UPS("device memory in messages", staged_by_writing, staged_by_reading, direct_by_writing,
        direct_by_reading, without_registration);
SET_UPS("copies of messages by CUDA", staged_by_writing, staged_by_reading, direct_by_writing,
        direct_by_reading, without_registration);

TEST_CASE(.offered = can_watch_memory);

/// The sender copies from the GPU only if the NIC can register the memory in neither way.
TEST(long_message_is_read_by_the_nic_where_it_lies, 8) {
  on_nic(_i & 1 ? "read" : "write", _i & 2, _i & 4);
  HmemPorts ports;
  const auto message = pattern(300'000);
  Memory from(true, message), to(false, std::vector<char>(300'000));
  ports.receive(to.at(), 300'000, 1, nullptr);
  ports.send(from.at(), 300'000, 1, nullptr);
  ports.finish();
  ck_assert(to.bytes() == message);
  ck_assert_uint_eq(softcuda_calls("cuMemcpyAsync"), _i & 6 ? 0 : 1);
}

struct Landing {
  const char* flush;     ///< FI_ERDMA_HMEM_RECV_FLUSH
  const char* ordering;  ///< write ordering of the GPU
  bool flushed;
};
constexpr Landing kLandings[] = {{"auto", "ordering 0", true},
                                 {"auto", "ordering 100", false},
                                 {"on", "ordering 200", true},
                                 {"off", "ordering 0", false}};

/// The NIC writes into the GPU, and a flush follows if it is configured. Without one the data is
/// late on this adapter.
TEST(long_message_lands_in_the_gpu_and_is_flushed, 4 * std::size(kLandings)) {
  const Landing& landing = kLandings[_i / 4];
  on_nic(_i & 1 ? "read" : "write", true, _i & 2);
  setenv("FI_ERDMA_HMEM_RECV_FLUSH", landing.flush, 1);
  // Else the data arrives when the memory is deregistered, which takes place after some time.
  if (!landing.flushed) setenv("FI_ERDMA_HMEM_MR_CACHE", "on", 1);
  ck_assert_int_eq(softcuda_control(landing.ordering), 0);
  HmemPorts ports;
  const auto message = pattern(300'000);
  for (const bool from_device : {false, true}) {
    Memory from(from_device, message), to(true, std::vector<char>(300'000, '-'));
    const auto copies = softcuda_calls("cuMemcpyAsync");
    ports.receive(to.at(), 300'000, 1, nullptr);
    ports.send(from.at(), 300'000, 1, nullptr);
    ports.finish();
    ck_assert_uint_eq(softcuda_calls("cuMemcpyAsync"), copies);
    ck_assert_int_eq(to.bytes() == message, landing.flushed);
  }
}

/// CUDA may fail at any time.
TEST(message_is_flushed_though_cuda_can_not_name_its_memory, 2) {
  on_nic("write", !_i, _i);
  HmemPorts ports;
  const auto message = pattern(300'000);
  Memory from(false, message), to(true, std::vector<char>(300'000, '-'));
  ports.receive(to.at(), 300'000, 1, nullptr);
  ports.send(from.at(), 300'000, 1, nullptr);
  while (softcuda_calls("cuMemGetHandleForAddressRange") < 2) ports.both();  // until the grant
  ck_assert_int_eq(softcuda_control("fail cuPointerGetAttribute error=719 times=100000"), 0);
  ports.finish();
  ck_assert(to.bytes() == message);
  ck_assert_int_eq(softcuda_control("clear"), 0);
}

/// After a fatal error CUDA answers no question. The sender's host memory is sent nevertheless.
TEST(receive_fails_where_cuda_can_not_tell_its_memory, 4) {
  _i & 1 ? staged_by_reading() : staged_by_writing();
  HmemPorts ports;
  const size_t length = _i & 2 ? 300'000 : 64;
  Memory from(false, pattern(length)), to(true, std::vector<char>(length, '-'));
  fi_context received;
  ports.receive(to.at(), length, 1, &received);
  ck_assert_int_eq(softcuda_control("fail cuPointerGetAttribute error=719 times=100000"), 0);
  ck_assert_int_eq(softcuda_control("fail cuPointerGetAttributes error=719 times=100000"), 0);
  ports.send(from.at(), length, 1, nullptr);
  const fi_cq_err_entry error = ports.b.wait_error(&ports.a);
  ck_assert_ptr_eq(error.op_context, &received);
  ck_assert_int_eq(error.err, FI_EIO);
  ck_assert(to.bytes() == std::vector<char>(length, '-'));
  ck_assert_int_eq(softcuda_control("clear"), 0);
}

/// The memory is freed while no operation is in flight. A driver may delay the free until the
/// memory is deregistered.
TEST(memory_of_a_message_that_ended_can_be_freed, 4) {
  on_nic(_i & 1 ? "read" : "write", true, true);
  setenv("FI_ERDMA_HMEM_RECV_FLUSH", _i & 2 ? "on" : "off", 1);
  ck_assert_int_eq(softcuda_control("free waits"), 0);
  HmemPorts ports;
  const auto message = pattern(300'000);
  for (int round = 0; round < 2; ++round) {
    Memory from(true, message), to(true, std::vector<char>(300'000, '-'));
    ports.receive(to.at(), 300'000, 1, nullptr);
    ports.send(from.at(), 300'000, 1, nullptr);
    ports.finish();
  }
}

int adapter(const std::string& line) {
  auto* control = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "softerdma_control"));
  return control ? control(line.c_str()) : -1;
}

TEST_CASE();

/// The receiver gets one error, and the next message arrives.
/// The connection of b to itself breaks, and the flush takes another one.
TEST(flush_that_fails_once_is_repeated) {
  on_nic("write", true, false);
  HmemPorts ports;
  const auto message = pattern(300'000);
  Memory from(false, message), to(true, std::vector<char>(300'000));
  for (int round = 0; round < 2; ++round) {
    fill_memory(DevicePointer(to.at()), 0, 300'000);
    if (round) ck_assert_int_eq(adapter("wr n=1 op=read status=general"), 0);
    ports.receive(to.at(), 300'000, 1, nullptr);
    ports.send(from.at(), 300'000, 1, nullptr);
    ports.finish();
    ck_assert(to.bytes() == message);
  }
}

TEST(flush_that_fails_is_a_receive_that_fails) {
  on_nic("write", true, false);
  HmemPorts ports;
  const auto message = pattern(300'000);
  Memory from(false, message), to(true, std::vector<char>(300'000));
  const auto move = [&](fi_context& received) {
    ports.receive(to.at(), 300'000, 1, &received);
    ports.send(from.at(), 300'000, 1, nullptr);
  };
  fi_context received;
  move(received);
  ports.finish();
  ck_assert_int_eq(adapter("wr n=1 times=100 op=read status=general"), 0);
  move(received);
  const fi_cq_err_entry error = ports.b.wait_error(&ports.a);
  ck_assert_ptr_eq(error.op_context, &received);
  ck_assert_int_ne(error.err, 0);
  ck_assert_int_eq(adapter("clear"), 0);
  ports.a.wait(&ports.b);                  // the sender's bytes were taken
  for (bool arrived = false; !arrived;) {  // more messages may fail with the link of b to itself
    fill_memory(DevicePointer(to.at()), 0, 300'000);
    move(received);
    fi_cq_tagged_entry entry{};
    ssize_t rc;
    while ((rc = fi_cq_read(ports.b.cq, &entry, 1)) == -FI_EAGAIN) ports.a.progress();
    fi_cq_err_entry failed{};
    if (rc != 1) ck_assert_int_eq(fi_cq_readerr(ports.b.cq, &failed, 0), 1);
    ck_assert_ptr_eq(rc == 1 ? entry.op_context : failed.op_context, &received);
    ports.a.wait(&ports.b);
    arrived = rc == 1;
  }
  ck_assert(to.bytes() == message);
}

/// Makes the adapter refuse `times` connections to the port, starting with number `from`.
void refuse_connections(Port& port, int from, int times) {
  sockaddr_in name{};
  size_t length = sizeof(name);
  ck_assert_int_eq(fi_getname(&port.ep->fid, &name, &length), 0);
  const std::string line = "connect refuse n=" + std::to_string(from) +
                           " times=" + std::to_string(times) +
                           " port=" + std::to_string(ntohs(name.sin_port));
  ck_assert_int_eq(adapter(line), 0);
}

TEST_CASE(.offered = connects_by_the_adapter);

/// The NIC may be unable to connect to itself: without loopback, by a security group, or without
/// queue pairs.
TEST(flush_that_cannot_begin_is_a_receive_that_fails) {
  on_nic("write", true, false);
  HmemPorts ports;
  const auto message = pattern(300'000);
  Memory from(false, message), to(true, std::vector<char>(300'000));
  fi_context received;
  ports.send(from.at(), 8, 1, nullptr);  // connects the sender
  Memory small(false, std::vector<char>(8));
  ports.receive(small.at(), 8, 1, nullptr);
  ports.finish();
  refuse_connections(ports.b, 1, 1'000'000);
  for (int round = 0; round < 2; ++round) {
    ports.receive(to.at(), 300'000, 1, &received);
    ports.send(from.at(), 300'000, 1, nullptr);
    const fi_cq_err_entry error = ports.b.wait_error(&ports.a);
    ck_assert_ptr_eq(error.op_context, &received);
    ck_assert_int_ne(error.err, 0);
    ports.a.wait(&ports.b);
  }
  ck_assert_int_eq(adapter("clear"), 0);
  ports.receive(to.at(), 300'000, 1, &received);
  ports.send(from.at(), 300'000, 1, nullptr);
  ports.finish();
  ck_assert(to.bytes() == message);
}

/// An endpoint with FI_HMEM sends to itself through the NIC, too.
TEST(message_to_oneself_fails_where_the_nic_cannot_reach_itself, 8) {
  on_nic("write", _i & 1, false);
  HmemPorts ports(true);
  refuse_connections(ports.a, 1, 1'000'000);
  Memory from(_i & 2, std::vector<char>(_i & 4 ? 300'000 : 8));
  fi_context sent;
  ports.send(from.at(), from.bytes().size(), 1, &sent);
  const fi_cq_err_entry error = ports.a.wait_error();
  ck_assert_ptr_eq(error.op_context, &sent);
  ck_assert_int_ne(error.err, 0);
}

}  // namespace

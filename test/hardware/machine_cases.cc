// Facts about one machine, without a connection.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/userfaultfd.h>
#include <netpacket/packet.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "fi_erdma/pair/cuda.h"
#include "fi_erdma/pair/options.h"
#include "rig.h"

namespace erdma::hardware {
namespace {

std::string mac_text(const unsigned char* b) {
  char text[24];
  std::snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4],
                b[5]);
  return text;
}

void tell_limits(ibv_context* device) {
  ibv_device_attr attr{};
  if (const int rc = ibv_query_device(device, &attr)) fail("query: %s", std::strerror(rc));
  fact("firmware", attr.fw_ver);
  fact("vendor", attr.vendor_id);
  fact("part", attr.vendor_part_id);
  fact("max_qp", attr.max_qp);
  fact("max_qp_wr", attr.max_qp_wr);
  fact("max_sge", attr.max_sge);
  fact("max_cqe", attr.max_cqe);
  fact("max_mr", attr.max_mr);
  fact("max_mr_size", (long long)attr.max_mr_size);
  fact("reads", std::min(attr.max_qp_rd_atom, attr.max_qp_init_rd_atom));
  fact("vectors", device->num_comp_vectors);
  fact("page_size", (long long)::sysconf(_SC_PAGESIZE));
}

void tell_port(ibv_context* device) {
  ibv_port_attr port{};
  ibv_gid gid{};
  if (const int rc = ibv_query_port(device, 1, &port)) fail("port 1: %s", std::strerror(rc));
  fact("port", port.state == IBV_PORT_ACTIVE ? "ACTIVE" : "not ACTIVE");
  fact("mtu", 128LL << port.active_mtu);
  fact("max_message", port.max_msg_sz);
  if (ibv_query_gid(device, 1, 0, &gid)) return;
  fact("gid", mac_text(gid.raw));
}

void tell_inline(const End& end) {
  for (const uint32_t bytes : {256u, 192u, 128u, 96u, 80u, 64u, 32u}) {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = end.cq();
    attr.qp_type = IBV_QPT_RC;
    attr.cap = {4, 4, 1, 1, bytes};
    ibv_qp* const qp = ibv_create_qp(end.pd(), &attr);
    if (!qp) continue;
    (void)ibv_destroy_qp(qp);
    return fact("inline", bytes);
  }
  fact("inline", 0LL);
}

/// rdma-core before 35 does not report this.
const char* kernel_copies() {
#ifdef HAVE_IBV_IS_FORK_INITIALIZED
  return ibv_is_fork_initialized() == IBV_FORK_UNNEEDED ? "yes" : "no";
#else
  return "unknown";
#endif
}

/// ibv_fork_init() must be called before a device is opened, so this is a case of its own.
void forks(const Options&) {
  fact("kernel_copies", kernel_copies());
  fact("fork_init", ibv_fork_init() == 0 ? "works" : "fails");
}

void memory_events(const Options&) {
  int fd = int(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* user mode only */));
  if (fd < 0 && errno == EINVAL) fd = int(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  if (fd < 0) return fact("userfaultfd", std::strerror(errno));
  uffdio_api api{UFFD_API,
                 UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
                     UFFD_FEATURE_PAGEFAULT_FLAG_WP,
                 0};
  fact("userfaultfd", ::ioctl(fd, UFFDIO_API, &api) ? std::strerror(errno) : "works");
}

/// Reports the MAC address of the interface with this IP address.
void tell_interface(const std::string& own) {
  ifaddrs* list = nullptr;
  in_addr wanted{};
  std::string name;
  if (::inet_pton(AF_INET, own.c_str(), &wanted) != 1 || ::getifaddrs(&list)) return;
  for (const ifaddrs* each = list; each; each = each->ifa_next)
    if (each->ifa_addr && each->ifa_addr->sa_family == AF_INET &&
        reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr.s_addr == wanted.s_addr)
      name = each->ifa_name;
  for (const ifaddrs* each = list; each; each = each->ifa_next)
    if (each->ifa_addr && each->ifa_addr->sa_family == AF_PACKET && name == each->ifa_name)
      fact("mac", mac_text(reinterpret_cast<const sockaddr_ll*>(each->ifa_addr)->sll_addr));
  ::freeifaddrs(list);
}

/// Reports whether a TCP socket may have the port of a listener of the adapter.
void tell_ports(const Options& options, rdma_cm_id* listener) {
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_port = rdma_get_src_port(listener);
  (void)::inet_pton(AF_INET, options.own.c_str(), &own.sin_addr);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool taken = ::bind(socket, reinterpret_cast<sockaddr*>(&own), sizeof(own)) != 0;
  fact("listener_in_tcp", taken ? "yes" : "no");
  ::close(socket);
}

void limits(const Options& options) {
  const Options bound = alone(options);
  const End end(bound);
  tell_limits(end.device());
  tell_port(end.device());
  tell_inline(end);
  tell_interface(options.own);
  if (rdma_listen(end.listener(), 8)) fail("rdma_listen: %s", std::strerror(errno));
  tell_ports(bound, end.listener());
}

/// Reports the median in microseconds.
void time_of(const char* what, unsigned rounds, const std::function<double()>& once) {
  std::vector<double> times;
  for (unsigned i = 0; i < rounds; ++i) times.push_back(once());
  std::sort(times.begin(), times.end());
  std::printf("%s: median %.1f us, least %.1f, most %.1f of %u\n", what, times[rounds / 2] * 1000,
              times.front() * 1000, times.back() * 1000, rounds);
  fact((std::string(what) + "_us").c_str(), (long long)(times[rounds / 2] * 1000));
}

void time_registrations(const End& end) {
  constexpr size_t kLargest = size_t(256) << 20;
  void* const memory = ::mmap(nullptr, kLargest, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("256 MiB of memory: %s", std::strerror(errno));
  const auto once = [&](size_t bytes) {
    return [&end, memory, bytes] {
      const Stopwatch since;
      const Region region(end.pd(), memory, bytes);
      if (!region) fail("a region of %zu bytes: %s", bytes, std::strerror(errno));
      return since.ms();
    };
  };
  time_of("reg_4k", 100, once(4096));
  time_of("reg_1m", 20, once(size_t(1) << 20));
  time_of("reg_256m", 2, once(kLargest));
}

void costs(const Options& options) {
  const Options bound = alone(options);
  const End end(bound);
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = end.cq();
  attr.qp_type = IBV_QPT_RC;
  attr.cap = {64, 64, 1, 1, 0};
  std::vector<ibv_qp*> made;
  time_of("create_qp", 20, [&] {
    const Stopwatch since;
    made.push_back(ibv_create_qp(end.pd(), &attr));
    if (!made.back()) fail("ibv_create_qp: %s", std::strerror(errno));
    return since.ms();
  });
  unsigned next = 0;
  time_of("modify_to_error", 20, [&] {
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    const Stopwatch since;
    if (const int rc = ibv_modify_qp(made[next++], &error, IBV_QP_STATE))
      std::printf("modify: %s\n", std::strerror(std::abs(rc)));
    return since.ms();
  });
  time_of("destroy_qp", 20, [&] {
    const Stopwatch since;
    (void)ibv_destroy_qp(made[--next]);
    return since.ms();
  });
  time_registrations(end);
}

/// Frees GPU memory while the adapter has it registered, which may wait for ever. One thread does
/// all of it, as it has the current CUDA context.
void free_registered(const End& end, std::promise<void>& freed) {
  constexpr size_t kBytes = size_t(4) << 20;
  // On a machine without a GPU or its driver, the case cannot run.
  fi_erdma::pair::before_end([](fi_erdma::pair::Status status, const char* text) {
    if (status == fi_erdma::pair::kNotTried) cannot("%s", text);
  });
  void* const memory = fi_erdma::pair::cuda::allocate(kBytes);
  Region region(end.pd(), memory, kBytes);
  fact("registered", region ? "yes" : std::strerror(errno));
  if (region) {
    const Stopwatch since;
    fi_erdma::pair::cuda::free(memory);
    fact("free_us", since.us());
    const int rc = region.revoke();
    fact("deregistered", rc ? std::strerror(std::abs(rc)) : "yes");
  }
  freed.set_value();
}

void gpu(const Options& options) {
  const Options bound = alone(options);
  const End end(bound);
  std::promise<void> freed;
  std::thread([&] { free_registered(end, freed); }).detach();
  if (freed.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready) return;
  fact("free_us", -1);
  std::_Exit(0);  // the thread waits for resources of this process
}

}  // namespace

const std::vector<NamedCase> kMachineCases = {
    {"limits", nullptr, limits, "the adapter, its limits, its port"},
    {"forks", nullptr, forks, "what a fork does to registered memory"},
    {"memory_events", nullptr, memory_events, "whether the kernel tells of unmapped memory"},
    {"costs", nullptr, costs, "time of commands of the firmware"},
    {"gpu", nullptr, gpu, "memory of a GPU, registered by its address, then freed"},
};

}  // namespace erdma::hardware

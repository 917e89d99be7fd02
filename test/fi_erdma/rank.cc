// A rank of a job that stands still as hang.py says, one command a line; each is answered:
//   name              -> its address, in hexadecimal
//   peer ADDRESS      -> number of the peer
//   send PEER TAG SIZE COUNT [gpu], recv PEER|any TAG SIZE [gpu] -> ok, once posted
//   inject PEER TAG   -> ok, once a byte is injected
//   close             -> ok, once the endpoint is closed
//   complete N        -> ok, after N completions
//   poll, compute     -> ok, and then it polls or computes until SIGUSR1, and answers once more
//   wait              -> ok, and then it sleeps in a call of libfabric
//   use N             -> ok; the commands that follow are for endpoint N, which opens at its first
//                        use
// It ends with its input, and then leaves all of it as it is. With RANK_GPU=1 messages may be
// of a GPU.
#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

extern "C" fi_provider* fi_prov_ini(void);

namespace {

volatile std::sig_atomic_t g_goes_on = 1;

struct Port {
  fid_domain* domain = nullptr;
  fid_ep* ep = nullptr;
  fid_cq* cq = nullptr;
  fid_av* av = nullptr;
  unsigned done = 0;
};
std::map<unsigned, Port> g_ports;
Port* g_port = nullptr;

void expect(const char* what, ssize_t status) {
  if (status == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, fi_strerror(int(-status)));
  std::_Exit(1);
}

void open_endpoint() {
  fi_provider* const provider = fi_prov_ini();
  fi_info* const hints = fi_allocinfo();
  hints->mode = FI_CONTEXT;
  hints->caps = FI_TAGGED | FI_DIRECTED_RECV;
  if (std::getenv("RANK_GPU")) {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode = FI_MR_HMEM;
  }
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  expect("getinfo", provider->getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &info));
  expect("fabric", provider->fabric(info->fabric_attr, &fabric, nullptr));
  fabric->api_version = FI_VERSION(1, 17);
  expect("domain", fi_domain(fabric, info, &domain, nullptr));
  g_port->domain = domain;
  fi_cq_attr cq_attr{};
  cq_attr.wait_obj = FI_WAIT_UNSPEC;
  fi_av_attr av_attr{};
  expect("cq", fi_cq_open(domain, &cq_attr, &g_port->cq, nullptr));
  expect("av", fi_av_open(domain, &av_attr, &g_port->av, nullptr));
  expect("endpoint", fi_endpoint(domain, info, &g_port->ep, nullptr));
  expect("bind", fi_ep_bind(g_port->ep, &g_port->cq->fid, FI_TRANSMIT | FI_RECV));
  expect("bind", fi_ep_bind(g_port->ep, &g_port->av->fid, 0));
  expect("enable", fi_enable(g_port->ep));
}

void use(unsigned number) {
  const bool opens = !g_ports.contains(number);
  g_port = &g_ports[number];
  if (opens) open_endpoint();
}

void poll() {
  fi_cq_entry entry;
  const ssize_t got = fi_cq_read(g_port->cq, &entry, 1);
  if (got > 0) ++g_port->done;
  if (got != -FI_EAGAIN && got < 0) expect("cq_read", got);
}

std::string name() {
  unsigned char bytes[128];
  size_t length = sizeof(bytes);
  expect("name", fi_getname(&g_port->ep->fid, bytes, &length));
  std::string text;
  char digits[3];
  for (size_t i = 0; i < length; ++i) {
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

std::string peer(const std::string& address) {
  std::vector<unsigned char> bytes;
  for (size_t i = 0; i + 1 < address.size(); i += 2)
    bytes.push_back(static_cast<unsigned char>(std::stoul(address.substr(i, 2), nullptr, 16)));
  fi_addr_t number = FI_ADDR_UNSPEC;
  expect("insert", fi_av_insert(g_port->av, bytes.data(), 1, &number, 0, nullptr) - 1);
  return std::to_string(number);
}

/// Its memory and context stay.
struct Operation {
  explicit Operation(size_t size) : memory(size) {}
  std::vector<char> memory;
  fi_context context{};
};
std::deque<Operation> g_operations;

/// Of the first GPU. Its memory and its context stay.
void* gpu_memory(size_t size) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  const auto call = [&](const char* name, auto... arguments) {
    const auto function = reinterpret_cast<int (*)(decltype(arguments)...)>(dlsym(library, name));
    expect(name, function ? -function(arguments...) : -FI_ENOSYS);
  };
  int device = 0;
  void *context = nullptr, *memory = nullptr;
  expect("libcuda.so.1", library ? 0 : -FI_ENOENT);
  call("cuInit", 0U);
  call("cuDevicePrimaryCtxRetain", &context, device);
  call("cuCtxSetCurrent", context);
  call("cuMemAlloc_v2", &memory, size);
  return memory;
}

void* registered(void* memory, size_t size, uint64_t access) {
  const iovec piece{memory, size};
  fi_mr_attr attr{};
  attr.mr_iov = &piece;
  attr.iov_count = 1;
  attr.access = access;
  attr.iface = FI_HMEM_CUDA;
  fid_mr* region = nullptr;
  expect("mr_reg", fi_mr_regattr(g_port->domain, &attr, 0, &region));
  return fi_mr_desc(region);
}

/// Fewer where there is no room for more.
void send(fi_addr_t to, uint64_t tag, size_t size, unsigned count, bool gpu) {
  for (; count > 0; --count) {
    Operation& one = g_operations.emplace_back(gpu ? 0 : size);
    void* const memory = gpu ? gpu_memory(size) : one.memory.data();
    void* const desc = gpu ? registered(memory, size, FI_SEND) : nullptr;
    const ssize_t status = fi_tsend(g_port->ep, memory, size, desc, to, tag, &one.context);
    if (status == -FI_EAGAIN) return;
    expect("send", status);
  }
}

void receive(fi_addr_t from, uint64_t tag, size_t size, bool gpu) {
  Operation& one = g_operations.emplace_back(gpu ? 0 : size);
  void* const memory = gpu ? gpu_memory(size) : one.memory.data();
  void* const desc = gpu ? registered(memory, size, FI_RECV) : nullptr;
  expect("recv", fi_trecv(g_port->ep, memory, size, desc, from, tag, 0, &one.context));
}

void say(const std::string& answer) {
  std::cout << answer << std::endl;
}

void obey(const std::string& line) {
  std::istringstream words(line);
  std::string command, address, kind;
  uint64_t tag = 0;
  size_t size = 0;
  unsigned count = 0;
  words >> command;
  if (command == "name") return say(name());
  if (command == "peer") return words >> address, say(peer(address));
  if (command == "send") {
    words >> address >> tag >> size >> count >> kind;
    send(std::stoull(address), tag, size, count, kind == "gpu");
  } else if (command == "recv") {
    words >> address >> tag >> size >> kind;
    receive(address == "any" ? FI_ADDR_UNSPEC : std::stoull(address), tag, size, kind == "gpu");
  } else if (command == "inject") {
    words >> address >> tag;
    expect("inject", fi_tinject(g_port->ep, "x", 1, std::stoull(address), tag));
  } else if (command == "close") {
    expect("close", fi_close(&g_port->ep->fid));
  } else if (command == "use") {
    words >> count;
    use(count);
  } else if (command == "complete") {
    words >> count;
    while (g_port->done < count) poll();
  } else if (command == "wait") {
    say("ok");
    fi_cq_entry entry;
    (void)fi_cq_sread(g_port->cq, &entry, 1, nullptr, -1);
  } else if (command == "poll" || command == "compute") {
    say("ok");
    for (g_goes_on = 1; g_goes_on;) {
      if (command == "compute") continue;
      poll();
      usleep(100);  // leaves the processors to other tests
    }
  }
  say("ok");
}

}  // namespace

int main() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // it may poll for ever
  std::signal(SIGUSR1, [](int) { g_goes_on = 0; });
  use(0);
  say("ready");
  for (std::string line; std::getline(std::cin, line);) obey(line);
  std::_Exit(0);
}

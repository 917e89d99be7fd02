// Has an enabled endpoint until its input ends, for program.py. A line "SIZE COUNT" has a second
// endpoint send so many messages to the first, and "done" follows. A line "poll" has it poll for
// what does not come, after "polls", until SIGUSR1. A line "reopen COUNT" has it open a third
// endpoint, poll it so often and close it again, and "done" follows. A line "more COUNT" has it
// open so many endpoints and keep them.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

extern "C" fi_provider* fi_prov_ini(void);

namespace {

volatile std::sig_atomic_t g_polls = 1;

void expect(const char* what, ssize_t status) {
  if (status == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, fi_strerror(int(-status)));
  std::exit(1);
}

struct Port {
  fid_cq* cq = nullptr;
  fid_av* av = nullptr;
  fid_ep* ep = nullptr;

  void open(fid_domain* domain, fi_info* info) {
    fi_cq_attr cq_attr{};
    fi_av_attr av_attr{};
    expect("cq", fi_cq_open(domain, &cq_attr, &cq, nullptr));
    expect("av", fi_av_open(domain, &av_attr, &av, nullptr));
    expect("endpoint", fi_endpoint(domain, info, &ep, nullptr));
    expect("bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    expect("bind", fi_ep_bind(ep, &av->fid, 0));
    expect("enable", fi_enable(ep));
  }
  fi_addr_t find(const Port& other) {
    char name[64];
    size_t length = sizeof(name);
    expect("name", fi_getname(&other.ep->fid, name, &length));
    fi_addr_t address = FI_ADDR_UNSPEC;
    expect("insert", fi_av_insert(av, name, 1, &address, 0, nullptr) - 1);
    return address;
  }
  unsigned completions() {
    fi_cq_entry entry;
    const ssize_t got = fi_cq_read(cq, &entry, 1);
    if (got != -FI_EAGAIN && got < 0) expect("cq_read", got);
    return got > 0;
  }
  void close() {
    for (fid* const object : {&ep->fid, &av->fid, &cq->fid}) expect("close", fi_close(object));
  }
};

void transfer(Port& from, Port& to, fi_addr_t address, size_t size, unsigned count) {
  std::vector<char> message(size + 1), room(size + 1);
  fi_context contexts[2];
  for (; count > 0; --count) {
    expect("recv", fi_recv(to.ep, room.data(), size, nullptr, FI_ADDR_UNSPEC, &contexts[0]));
    ssize_t rc;
    while ((rc = fi_send(from.ep, message.data(), size, nullptr, address, &contexts[1])) ==
           -FI_EAGAIN)
      (void)from.completions(), (void)to.completions();
    expect("send", rc);
    for (unsigned done = 0; done < 2;) done += from.completions() + to.completions();
  }
}

}  // namespace

int main() {
  std::signal(SIGUSR1, [](int) { g_polls = 0; });
  setenv("FI_ERDMA_DEVICE", "shm", 0);
  fi_provider* const provider = fi_prov_ini();
  fi_info* const hints = fi_allocinfo();
  hints->mode = FI_CONTEXT;
  fi_info* info = nullptr;
  expect("getinfo", provider->getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &info));
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  expect("fabric", provider->fabric(info->fabric_attr, &fabric, nullptr));
  fabric->api_version = FI_VERSION(1, 17);
  expect("domain", fi_domain(fabric, info, &domain, nullptr));
  Port first, second;
  first.open(domain, info);
  std::puts("ready");
  std::fflush(stdout);
  fi_addr_t address = FI_ADDR_UNSPEC;
  std::vector<Port> kept;
  char line[64];
  while (std::fgets(line, sizeof(line), stdin)) {
    if (std::strcmp(line, "poll\n") == 0) {
      std::puts("polls");
      std::fflush(stdout);
      while (g_polls) (void)first.completions();
      continue;
    }
    if (std::strncmp(line, "reopen ", 7) == 0) {
      Port third;
      third.open(domain, info);
      for (unsigned long i = std::strtoul(line + 7, nullptr, 10); i > 0; --i)
        (void)third.completions();
      third.close();
      std::puts("done");
      std::fflush(stdout);
      continue;
    }
    if (std::strncmp(line, "more ", 5) == 0) {
      for (unsigned long i = std::strtoul(line + 5, nullptr, 10); i > 0; --i)
        kept.emplace_back().open(domain, info);
      std::puts("done");
      std::fflush(stdout);
      continue;
    }
    char* rest = nullptr;
    const size_t size = std::strtoul(line, &rest, 10);
    if (!second.ep) {
      second.open(domain, info);
      address = second.find(first);
    }
    transfer(second, first, address, size, unsigned(std::strtoul(rest, nullptr, 10)));
    std::puts("done");
    std::fflush(stdout);
  }
  for (Port& port : kept) port.close();
  if (second.ep) second.close();
  first.close();
  for (fid* const object : {&domain->fid, &fabric->fid}) expect("close", fi_close(object));
  fi_freeinfo(info);
  fi_freeinfo(hints);
}

// Has an enabled endpoint over shared memory until its input ends, for program.py.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

extern "C" fi_provider* fi_prov_ini(void);

namespace {

void expect(const char* what, int status) {
  if (status == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, fi_strerror(-status));
  std::exit(1);
}

}  // namespace

int main() {
  setenv("FI_ERDMA_DEVICE", "shm", 1);
  fi_provider* const provider = fi_prov_ini();
  fi_info* const hints = fi_allocinfo();
  hints->mode = FI_CONTEXT;
  fi_info* info = nullptr;
  expect("getinfo", provider->getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &info));
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_cq* cq = nullptr;
  fid_av* av = nullptr;
  fid_ep* ep = nullptr;
  fi_cq_attr cq_attr{};
  fi_av_attr av_attr{};
  expect("fabric", provider->fabric(info->fabric_attr, &fabric, nullptr));
  fabric->api_version = FI_VERSION(1, 17);
  expect("domain", fi_domain(fabric, info, &domain, nullptr));
  expect("cq", fi_cq_open(domain, &cq_attr, &cq, nullptr));
  expect("av", fi_av_open(domain, &av_attr, &av, nullptr));
  expect("endpoint", fi_endpoint(domain, info, &ep, nullptr));
  expect("bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
  expect("bind", fi_ep_bind(ep, &av->fid, 0));
  expect("enable", fi_enable(ep));
  std::puts("ready");
  std::fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  for (fid* object : {&ep->fid, &av->fid, &cq->fid, &domain->fid, &fabric->fid})
    expect("close", fi_close(object));
  fi_freeinfo(info);
  fi_freeinfo(hints);
}

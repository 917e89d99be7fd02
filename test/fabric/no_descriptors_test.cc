// Descriptors run out at each descriptor in turn that a call needs. The call returns -FI_EMFILE and
// leaks none. With enough descriptors it succeeds.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "fabric/rig.h"
#include "fake/captured_log.h"
#include "transport/simulated_device.h"

// For wait sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

using namespace erdma::test;

rlim_t next_descriptor() {
  const int next = fcntl(0, F_DUPFD_CLOEXEC, 0);
  ck_assert_int_ge(next, 0);
  close(next);
  return rlim_t(next);
}

/// True if a line since the last call said what the user can do.
bool remedy_told() {
  const std::lock_guard guard(g_log_mutex);
  const bool told = std::ranges::any_of(
      g_log, [](const LogLine& line) { return contains(line.text, "(ulimit -n) [W403]"); });
  g_log.clear();
  return told;
}

/// Runs the call with 0, 1, 2, ... free descriptors until it succeeds. Returns how many it needs.
template <typename Call>
rlim_t expect_refusals(const char* name, Call call) {
  rlimit usual{};
  getrlimit(RLIMIT_NOFILE, &usual);
  const rlim_t first = next_descriptor();
  int result = -FI_EMFILE;
  rlim_t more = 0;
  for (; result; ++more) {
    ck_assert_msg(result == -FI_EMFILE, "%s with %d descriptors: %s", name, int(more) - 1,
                  fi_strerror(-result));
    ck_assert_uint_eq(next_descriptor(), first);
    ck_assert_uint_lt(more, 64);
    const rlimit tight{first + more, usual.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
    result = call();
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &usual), 0);
  }
  return more - 1;
}

void choose_device() {
  g_device = g_on_devices ? "erdma_0" : "shm";
  setenv("FI_ERDMA_SHM", g_on_devices ? "off" : "auto", 1);
}

SUITE(.run = here_and_on_devices);

TEST_CASE(.set_up = choose_device);

TEST(each_object_that_lacks_a_descriptor_says_so) {
  Root root;
  fid_t made = nullptr;
  const auto opened = [&](int rc, auto& object) {
    if (rc == 0) made = &object->fid;
    return rc;
  };
  fi_cq_attr cq_attr{};
  fi_cntr_attr cntr_attr{};
  fi_eq_attr eq_attr{};
  fi_wait_attr wait_attr{};
  cq_attr.wait_obj = cntr_attr.wait_obj = eq_attr.wait_obj = wait_attr.wait_obj = FI_WAIT_FD;
  fid_cq* cq = nullptr;
  fid_cntr* cntr = nullptr;
  fid_eq* eq = nullptr;
  fid_wait* wait = nullptr;
  const auto each = [&](const char* name, auto open) {
    ck_assert_uint_ge(expect_refusals(name, open), 1);
    ck_assert_msg(remedy_told(), "%s", name);
    ck_assert_int_eq(fi_close(made), 0);
  };
  each("fi_cq_open", [&] { return opened(fi_cq_open(root.domain, &cq_attr, &cq, nullptr), cq); });
  each("fi_cntr_open",
       [&] { return opened(fi_cntr_open(root.domain, &cntr_attr, &cntr, nullptr), cntr); });
  each("fi_eq_open", [&] { return opened(fi_eq_open(root.fabric, &eq_attr, &eq, nullptr), eq); });
  each("fi_wait_open", [&] { return opened(fi_wait_open(root.fabric, &wait_attr, &wait), wait); });
}

TEST(an_endpoint_that_lacks_a_descriptor_says_so) {
  Root root;
  fid_cq* const cq = root.open_cq();
  fid_av* const av = root.open_av();
  fid_ep* ep = nullptr;
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
  ck_assert_uint_ge(expect_refusals("fi_enable", [&] { return fi_enable(ep); }), 3);
  ck_assert(remedy_told());
  for (fid_t object : {&ep->fid, &cq->fid, &av->fid}) ck_assert_int_eq(fi_close(object), 0);
}

TEST_CASE(.set_up = choose_device, .offered = not_on_devices);

TEST(a_domain_that_lacks_a_descriptor_for_its_thread_says_so) {
  Ask ask;
  ask.progress = FI_PROGRESS_AUTO;
  Root root(ask);
  fid_domain* domain = nullptr;
  const auto open = [&] { return fi_domain(root.fabric, root.info, &domain, nullptr); };
  ck_assert_uint_ge(expect_refusals("fi_domain", open), 2);
  ck_assert(remedy_told());
  ck_assert_int_eq(fi_close(&domain->fid), 0);
}

}  // namespace

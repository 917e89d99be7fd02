// Tests the end of endpoints that share their receives, while a NIC writes to the buffers.
#include <dlfcn.h>

#include <thread>

#include <infiniband/verbs.h>

#include "fabric/shared_receive_rig.h"
#include "transport/simulated_device.h"

namespace {

using namespace erdma::test;

fid_cq* g_watched = nullptr;  ///< read whenever a queue pair is about to be destroyed
unsigned g_destroyed = 0, g_too_early = 0;
constexpr uint64_t kSmallTag = 9;

/// The sender writes to the receiver's buffers, and does it only when the test lets it.
void on_nic() {
  g_device = "erdma_0";
  setenv("FI_ERDMA_SHM", "off", 1);
  setenv("FI_ERDMA_RENDEZVOUS", "write", 1);
}

/// A message for each endpoint, both of which have told the sender where to write.
struct Filled {
  explicit Filled(const Ask& ask = {}) : shared(ask) {
    for (const int which : {0, 1}) {
      send_small(which);
      while (!has_small()) shared.sender.progress();
    }
    // Both connections are up, and the sender, which makes no progress from now on, writes nothing.
    for (const int which : {0, 1}) {
      ck_assert_int_eq(fi_trecv(shared.srx, buffers[which].data(), message.size(), nullptr,
                                FI_ADDR_UNSPEC, uint64_t(which), 0, &contexts[which]),
                       0);
      ck_assert_int_eq(fi_tsend(shared.sender.ep, message.data(), message.size(), nullptr,
                                shared.to[which], uint64_t(which), nullptr),
                       0);
      // It is behind the long message, which has matched when this one is complete.
      send_small(which);
      while (!has_small()) {
      }
    }
  }
  void send_small(int which) {
    ck_assert_int_eq(
        fi_trecv(shared.srx, &small, 1, nullptr, FI_ADDR_UNSPEC, kSmallTag, 0, &contexts[2]), 0);
    ck_assert_int_eq(fi_tinject(shared.sender.ep, "s", 1, shared.to[which], kSmallTag), 0);
  }
  bool has_small() {
    fi_cq_tagged_entry entry{};
    const ssize_t rc = fi_cq_read(shared.cq, &entry, 1);
    if (rc == -FI_EAGAIN) return false;
    ck_assert_int_eq(rc, 1);
    ck_assert_ptr_eq(entry.op_context, &contexts[2]);
    return true;
  }
  void expect_cancelled(fi_context& context) {
    fi_cq_tagged_entry entry{};
    ck_assert_int_eq(fi_cq_read(shared.cq, &entry, 1), -FI_EAVAIL);
    fi_cq_err_entry error{};
    ck_assert_int_eq(fi_cq_readerr(shared.cq, &error, 0), 1);
    ck_assert_int_eq(error.err, FI_ECANCELED);
    ck_assert_ptr_eq(error.op_context, &context);
  }

  const std::vector<char> message = pattern(1 << 20);
  std::vector<char> buffers[2] = {std::vector<char>(1 << 20), std::vector<char>(1 << 20)};
  fi_context contexts[3];
  char small = 0;
  Shared shared;
};

int close(Member& member) {
  const int status = fi_close(&member.ep->fid);
  member.ep = nullptr;
  return status;
}

SUITE(.run = erdma::test::on_simulated_devices);

TEST_CASE(.set_up = on_nic);

TEST(a_buffer_is_given_back_only_when_no_nic_can_write_to_it) {
  Filled filled;
  Shared& shared = filled.shared;
  for (Member* member : {&shared.one, &shared.two}) {
    g_watched = shared.cq;
    g_destroyed = g_too_early = 0;
    ck_assert_int_eq(close(*member), 0);
    g_watched = nullptr;
    ck_assert_uint_ne(g_destroyed, 0);
    ck_assert_uint_eq(g_too_early, 0);
    filled.expect_cancelled(filled.contexts[member == &shared.two]);
  }
}

TEST(endpoints_that_are_closed_at_once_lose_no_receive) {
  Filled filled({.threading = FI_THREAD_SAFE});
  Shared& shared = filled.shared;
  std::thread other([&] { ck_assert_int_eq(close(shared.one), 0); });
  ck_assert_int_eq(close(shared.two), 0);
  other.join();
  unsigned cancelled = 0;
  fi_cq_tagged_entry entry{};
  while (fi_cq_read(shared.cq, &entry, 1) == -FI_EAVAIL) {
    fi_cq_err_entry error{};
    ck_assert_int_eq(fi_cq_readerr(shared.cq, &error, 0), 1);
    ck_assert_int_eq(error.err, FI_ECANCELED);
    cancelled |= error.op_context == &filled.contexts[0] ? 1 : 2;
  }
  ck_assert_uint_eq(cancelled, 3);
}

}  // namespace

/// Comes before the one of libibverbs or of the simulated adapter.
extern "C" [[gnu::visibility("default")]] int ibv_destroy_qp(ibv_qp* queue_pair) {
  static const auto real =
      reinterpret_cast<decltype(&ibv_destroy_qp)>(dlsym(RTLD_NEXT, "ibv_destroy_qp"));
  if (g_watched) {
    ++g_destroyed;
    fi_cq_tagged_entry entry{};
    g_too_early += fi_cq_read(g_watched, &entry, 1) != -FI_EAGAIN;
  }
  return real(queue_pair);
}

// A forked child may not use objects of its parent: each call returns an error, and the parent is
// not affected.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "fabric/trigger_rig.h"
#include "quiet_fork.h"

// For wait sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

using namespace erdma::test;

TEST_CASE(.set_up = on_shm);

/// Fails with the number, from 1, of the first call in a child that does not return
/// -FI_EOPBADSTATE.
template <typename Calls>
void expect_refused_in_child(Calls calls) {
  const pid_t child = quiet_fork();
  if (child == 0) {
    int number = 0;
    for (const ssize_t result : calls()) {
      ++number;
      if (result != -FI_EOPBADSTATE) _exit(number);
    }
    _exit(0);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status));
  ck_assert_int_eq(WEXITSTATUS(status), 0);
}

TEST(a_shared_context_of_the_parent_is_refused) {
  Root root;
  fid_ep* srx = nullptr;
  ck_assert_int_eq(fi_srx_context(root.domain, nullptr, &srx, nullptr), 0);
  char byte = 0;
  fi_context context;
  const fi_msg_tagged peek{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 7, 0, &context, 0};
  expect_refused_in_child([&] {
    return std::vector<ssize_t>{fi_recv(srx, &byte, 1, nullptr, FI_ADDR_UNSPEC, &context),
                                fi_trecv(srx, &byte, 1, nullptr, FI_ADDR_UNSPEC, 7, 0, &context),
                                fi_trecvmsg(srx, &peek, FI_PEEK), fi_cancel(&srx->fid, &context)};
  });
  ck_assert_int_eq(fi_recv(srx, &byte, 1, nullptr, FI_ADDR_UNSPEC, &context), 0);
  ck_assert_int_eq(fi_close(&srx->fid), 0);
}

/// Queues a send that waits until the counter reaches 1.
struct LaterWorld : TriggerWorld {
  char bytes[8] = {};
  fi_triggered_context later = condition(1);
  const iovec iov{bytes, 8};
  const fi_msg msg{&iov, nullptr, 1, to, &later, 0};
};

TEST(an_endpoint_of_the_parent_is_refused) {
  LaterWorld world;
  char* const bytes = world.bytes;
  fid_ep* const ep = world.a.ep;
  const uint64_t key = world.region.key();
  expect_refused_in_child([&] {
    return std::vector<ssize_t>{
        fi_send(ep, bytes, 8, nullptr, world.to, nullptr),
        fi_recv(ep, bytes, 8, nullptr, FI_ADDR_UNSPEC, nullptr),
        fi_write(ep, bytes, 8, nullptr, world.to, world.at(0), key, nullptr),
        fi_atomic(ep, bytes, 1, nullptr, world.to, world.at(0), key, FI_UINT64, FI_SUM, nullptr),
        fi_sendmsg(ep, &world.msg, FI_TRIGGER),
        fi_cancel(&ep->fid, nullptr),
    };
  });
  exchange(world.a, world.b, world.to, 1000);
}

/// A work that waited for a counter at the fork becomes due in the child, and ends with an error.
TEST(what_is_due_in_a_child_is_an_error_completion) {
  LaterWorld world;
  ck_assert_int_eq(fi_sendmsg(world.a.ep, &world.msg, FI_TRIGGER), 0);
  expect_refused_in_child([&] {
    world.add();
    fi_cq_tagged_entry entry;
    fi_cq_err_entry error{};
    if (fi_cq_read(world.a.cq, &entry, 1) != -FI_EAVAIL) return std::vector<ssize_t>{0};
    if (fi_cq_readerr(world.a.cq, &error, 0) != 1) return std::vector<ssize_t>{0};
    return std::vector<ssize_t>{-error.err};
  });
  ck_assert_int_eq(fi_recv(world.b.ep, world.bytes, 8, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  world.add();
  ck_assert_ptr_eq(world.a.wait(&world.b).op_context, &world.later);
}

TEST(a_wait_set_of_the_parent_is_refused) {
  Root root;
  fid_wait* set = nullptr;
  fi_wait_attr attr{};
  attr.wait_obj = FI_WAIT_FD;
  ck_assert_int_eq(fi_wait_open(root.fabric, &attr, &set), 0);
  expect_refused_in_child([&] { return std::vector<ssize_t>{fi_wait(set, 0), fi_wait(set, 1)}; });
  ck_assert_int_eq(fi_wait(set, 0), -FI_ETIMEDOUT);
  ck_assert_int_eq(fi_close(&set->fid), 0);
}

}  // namespace

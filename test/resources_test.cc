#include "resources.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "libcheck.h"
#include "transport/simulated_device.h"
#include "util/pool.h"
#include "util/recycler.h"

namespace erdma::protocol {
struct Undone {  // has a name like an object of an engine
  int member = 0;
};

}  // namespace erdma::protocol

namespace erdma::test {
namespace {

struct Held {
  int member = 0;
};

int inherited = -1;  ///< a descriptor from before every test

int shared_memory(const char* name) {
  const int fd = memfd_create(name, 0);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(posix_fallocate(fd, 0, 8192), 0);
  return fd;
}

void leaks_descriptor() {
  (void)shared_memory("erdma-leak");
}
void leaks_mapping() {
  const int fd = shared_memory("erdma-leak");
  ck_assert(mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
  close(fd);
}
void leaks_thread() {
  std::thread([] {
    pthread_setname_np(pthread_self(), "leak");
    for (;;) pause();
  }).detach();
}
void closes_a_stranger() {
  close(inherited);
}
void leaks_pool_object() {
  util::Pool<Held> pool;
  ck_assert_ptr_nonnull(pool.acquire());
}
void leaks_recycled_object() {
  util::Recycler<Held> recycler;
  ck_assert_ptr_nonnull(recycler.acquire());
  ck_assert_ptr_nonnull(recycler.acquire());
}
void leaves_an_operation() {
  util::Pool<protocol::Undone> pool;
  ck_assert_ptr_nonnull(pool.acquire());
}

ibv_context* context() {
  ibv_device** list = ibv_get_device_list(nullptr);
  ck_assert(list && *list);
  ibv_context* opened = ibv_open_device(*list);
  ibv_free_device_list(list);
  ck_assert_ptr_nonnull(opened);
  return opened;
}
ibv_pd* domain() {
  ibv_pd* pd = ibv_alloc_pd(context());
  ck_assert_ptr_nonnull(pd);
  return pd;
}
ibv_cq* queue(ibv_context* of) {
  ibv_cq* cq = ibv_create_cq(of, 8, nullptr, nullptr, 0);
  ck_assert_ptr_nonnull(cq);
  return cq;
}
void leaks_context() {
  (void)context();
}
void leaks_domain() {
  (void)domain();
}
void leaks_region() {
  static char memory[64];
  ck_assert_ptr_nonnull((ibv_reg_mr)(domain(), memory, sizeof(memory), 0));
}
void leaks_channel() {
  ck_assert_ptr_nonnull(ibv_create_comp_channel(context()));
}
void leaks_queue() {
  (void)queue(context());
}
void leaks_queue_pair() {
  ibv_pd* pd = domain();
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = queue(pd->context);
  init.cap = {1, 1, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  ck_assert_ptr_nonnull(ibv_create_qp(pd, &init));
}
void leaks_cm_id() {
  rdma_event_channel* channel = rdma_create_event_channel();
  ck_assert_ptr_nonnull(channel);
  rdma_cm_id* id = nullptr;
  ck_assert_int_eq(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), 0);
}

struct Leak {
  void (*leak)();
  std::vector<const char*> said;
};
const Leak kLeaks[] = {
    {leaks_descriptor, {"descriptor", "/memfd:erdma-leak", "8192 bytes"}},
    {leaks_mapping, {"mapping of /memfd:erdma-leak"}},
    {leaks_thread, {"thread", "named leak"}},
    {closes_a_stranger, {"of /dev/null: closed"}},
    {leaks_pool_object, {"Held: still out"}},
    {leaks_recycled_object, {"Held x 2: still out"}},
    {leaves_an_operation, {"erdma::protocol::Undone: still out"}},
    {leaks_context, {"1 contexts"}},
    {leaks_domain, {"1 protection domains"}},
    {leaks_region, {"1 memory regions"}},
    {leaks_channel, {"1 completion channels"}},
    {leaks_queue, {"1 completion queues"}},
    {leaks_queue_pair, {"1 queue pairs"}},
    {leaks_cm_id, {"1 rdma_cm ids"}},
};

void leaking(int i) {
  kLeaks[i].leak();
}
const TTest kLeaking{"leaking", leaking, __FILE__, __LINE__};

void give_all_back() {
  std::thread([] {}).join();
  const int fd = shared_memory("erdma-held");
  void* mapped = mmap(nullptr, 8192, PROT_READ, MAP_SHARED, fd, 0);
  ck_assert(mapped != MAP_FAILED);
  munmap(mapped, 8192);
  close(fd);
  util::Pool<Held> pool;
  pool.release(*pool.acquire());
  ibv_pd* pd = domain();
  ibv_context* of = pd->context;
  ck_assert_int_eq(ibv_dealloc_pd(pd), 0);
  ck_assert_int_eq(ibv_close_device(of), 0);
}

/// Reasons for which the tests above were reported; empty = passed.
std::vector<std::string> reports;

void run_leaking() {
  inherited = open("/dev/null", O_RDONLY);
  Suite* suite = suite_create("leaks");
  TCase* tc = tcase_create("on purpose");
  tcase_add_checked_fixture(tc, begin_counting, end_counting);
  tcase_add_loop_test(tc, &kLeaking, 0, int(std::size(kLeaks)));
  suite_add_tcase(suite, tc);
  SRunner* runner = srunner_create(suite);
  srunner_run_all(runner, CK_SILENT);
  TestResult** results = srunner_results(runner);
  for (int i = 0; i < srunner_ntests_run(runner); ++i)
    reports.emplace_back(tr_rtype(results[i]) == CK_PASS ? "" : tr_msg(results[i]));
  std::free(results);
  srunner_free(runner);
}

SUITE(.run = on_simulated_devices, .once = run_leaking);

TEST(what_a_test_leaves_behind_is_named, std::size(kLeaks)) {
  ck_assert_uint_eq(reports.size(), std::size(kLeaks));
#ifdef __SANITIZE_THREAD__
  if (kLeaks[_i].leak == leaks_thread) return;  // threads are not counted then (resources.cc)
#endif
  const std::string& report = reports[size_t(_i)];
  for (const char* words : kLeaks[_i].said)
    ck_assert_msg(report.find(words) != report.npos, "no \"%s\" in: %s", words, report.c_str());
}

TEST(what_is_given_back_is_not_named) {
  give_all_back();
}

TEST(operations_may_be_left_undone_on_purpose) {
  leaves_work_undone();
  leaves_an_operation();
}

}  // namespace

}  // namespace erdma::test

// One-sided operations within a host: to the endpoint itself, by CMA, and by copies if CMA is
// refused.

#include <thread>
#include <utility>

#include "fabric/one_sided_cases.h"

namespace {

using namespace erdma::test;

void with_cma() {
  setenv("FI_ERDMA_CMA", "on", 1);
}
void with_measured_paths() {
  unsetenv("FI_ERDMA_CMA");
}
void without_cma() {
  setenv("FI_ERDMA_CMA", "off", 1);
}

size_t bytes_of(fi_datatype type) {
  constexpr size_t kBytes[] = {1,
                               1,
                               2,
                               2,
                               4,
                               4,
                               8,
                               8,
                               sizeof(float),
                               sizeof(double),
                               2 * sizeof(float),
                               2 * sizeof(double),
                               sizeof(long double),
                               2 * sizeof(long double),
                               16,
                               16};
  return kBytes[type];
}

}  // namespace

SET_UPS("one-sided", with_cma, with_measured_paths, without_cma);

/// fi_mr(3): the calls for raw keys serve every region, although FI_MR_RAW is not set.
TEST(a_raw_key_opens_the_region_to_its_peer) {
  OneSidedPorts ports(false);
  uint64_t base = 0, key = 0;
  uint8_t raw[9];
  size_t length = 7;
  int context;
  ck_assert_int_eq(fi_mr_raw_attr(ports.region.mr, &base, raw, &length, 0), -FI_ETOOSMALL);
  ck_assert_uint_eq(length, ports.root.info->domain_attr->mr_key_size);
  length = sizeof(raw);
  ck_assert_int_eq(fi_mr_raw_attr(ports.region.mr, &base, raw, &length, 0), 0);
  ck_assert_uint_eq(length, ports.root.info->domain_attr->mr_key_size);
  ck_assert_uint_eq(base, ports.at(0));
  ck_assert_int_eq(fi_mr_map_raw(ports.root.domain, base, raw, length, &key, 0), 0);
  const char bytes[] = "raw";
  post(ports, [&] {
    return fi_write(ports.a.ep, bytes, 3, nullptr, ports.address, base + 8, key, &context);
  });
  ports.expect(FI_RMA | FI_WRITE, &context);
  ck_assert_mem_eq(ports.memory.data() + 8, bytes, 3);
  ck_assert_int_eq(fi_mr_unmap_key(ports.root.domain, key), 0);

  ck_assert_int_eq(fi_mr_raw_attr(ports.region.mr, &base, raw, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_mr_raw_attr(ports.region.mr, &base, nullptr, &length, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_mr_raw_attr(ports.region.mr, nullptr, raw, &length, 0), 0);
  ck_assert_int_eq(fi_mr_raw_attr(ports.region.mr, &base, raw, &length, 1), -FI_EBADFLAGS);
  for (const size_t wrong : {size_t{0}, length - 1, length + 1})
    ck_assert_int_eq(fi_mr_map_raw(ports.root.domain, base, raw, wrong, &key, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_mr_map_raw(ports.root.domain, base, nullptr, length, &key, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_mr_map_raw(ports.root.domain, base, raw, length, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_mr_map_raw(ports.root.domain, base, raw, length, &key, 1), -FI_EBADFLAGS);
}

/// fi_query_atomic reports for a domain what fi_*atomicvalid reports for its endpoints.
TEST(domain_and_endpoint_agree_on_what_is_atomic) {
  OneSidedPorts ports(false);
  fi_atomic_attr attr{};
  int offered = 0;
  for (int type = FI_INT8; type <= FI_UINT128 + 1; ++type)
    for (int op = FI_MIN; op <= FI_MSWAP + 1; ++op) {
      const auto datatype = fi_datatype(type);
      size_t counts[3] = {};
      const int valid[] = {
          fi_atomicvalid(ports.a.ep, datatype, fi_op(op), &counts[0]),
          fi_fetch_atomicvalid(ports.a.ep, datatype, fi_op(op), &counts[1]),
          fi_compare_atomicvalid(ports.a.ep, datatype, fi_op(op), &counts[2]),
      };
      const uint64_t forms[] = {0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC};
      for (int i = 0; i < 3; ++i) {
        attr = {};
        const int rc = fi_query_atomic(ports.root.domain, datatype, fi_op(op), &attr, forms[i]);
        ck_assert_int_eq(rc, valid[i]);
        ck_assert_uint_eq(attr.count, counts[i]);
        if (rc) continue;
        ++offered;
        ck_assert_uint_eq(attr.size, bytes_of(datatype));
      }
    }
  ck_assert_int_gt(offered, 0);
  ck_assert_int_eq(fi_query_atomic(ports.root.domain, FI_INT8, FI_SUM, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_query_atomic(ports.root.domain, FI_INT8, FI_SUM, &attr,
                                   FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC),
                   -FI_EINVAL);
  ck_assert_int_eq(fi_query_atomic(ports.root.domain, FI_INT8, FI_SUM, &attr, FI_TAGGED),
                   -FI_EOPNOTSUPP);
}

/// A target that learns in another way that it may leave, as from an endpoint that it polls, has
/// not looked for the last operations of others. Rows: it closes its region first, or not at all;
/// without CMA, and with.
TEST(what_arrived_before_the_target_closed_is_executed, 4) {
  _i < 2 ? without_cma() : with_cma();
  OneSidedPorts ports;
  int before, write, read;
  const auto post_write = [&](const char* bytes, size_t at, void* context) {
    post(ports, [&] {
      return fi_write(ports.a.ep, bytes, 8, nullptr, ports.address, ports.at(at),
                      ports.region.key(), context);
    });
  };
  post_write("whatever", 0, &before);  // connects
  ports.expect(FI_RMA | FI_WRITE, &before);
  char got[3000] = {};  // more than fits into a ring of a new peer at once
  post_write("the last", 64, &write);
  post(ports, [&] {
    return fi_read(ports.a.ep, got, sizeof(got), nullptr, ports.address, ports.at(64),
                   ports.region.key(), &read);
  });
  std::thread leaves([&] {
    if (_i % 2 == 0) ports.region.close();
    ck_assert_int_eq(fi_close(&std::exchange(ports.b.ep, nullptr)->fid), 0);
  });
  for (const void* context : {&write, &read}) {
    const fi_cq_tagged_entry entry = ports.a.wait();
    ck_assert_ptr_eq(entry.op_context, context);
  }
  leaves.join();
  ck_assert_mem_eq(ports.memory.data() + 64, "the last", 8);
  ck_assert_mem_eq(got, "the last", 8);
}

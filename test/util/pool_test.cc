#include "util/pool.h"

#include <set>

#include "libcheck.h"

/// Handles of pool objects: a stale handle finds nothing, and no valid handle equals the one for
/// "none".
namespace erdma::util {
namespace {

struct Thing {
  int number = 0;
};

TEST(a_handle_finds_its_object_until_the_release_and_nothing_afterwards) {
  Pool<Thing, 4> pool;
  Thing& first = *pool.acquire(Thing{1});
  const PoolHandle old = pool.handle(first);
  ck_assert_ptr_eq(pool.find(old), &first);
  pool.release(first);
  ck_assert_ptr_null(pool.find(old));
  Thing& second = *pool.acquire(Thing{2});  // the slot that was released last is used first
  ck_assert_ptr_eq(&second, &first);
  ck_assert_ptr_null(pool.find(old));
  ck_assert_ptr_eq(pool.find(pool.handle(second)), &second);
  pool.clear();
}

TEST(a_handle_that_names_no_slot_finds_nothing) {
  Pool<Thing, 4> pool;
  ck_assert_ptr_null(pool.find({}));
  Thing& thing = *pool.acquire();
  const PoolHandle handle = pool.handle(thing);
  ck_assert_ptr_null(pool.find({4, handle.generation}));
  ck_assert_ptr_null(pool.find({UINT32_MAX, handle.generation}));
  ck_assert_ptr_null(pool.find({handle.index + 1, handle.generation}));  // not acquired before
  pool.clear();
}

TEST(no_generation_of_a_slot_is_zero) {
  Pool<Thing, 4> pool;
  std::set<uint16_t> seen;
  for (uint32_t i = 0; i < 65535; ++i) {
    Thing& thing = *pool.acquire();
    const PoolHandle handle = pool.handle(thing);
    ck_assert_uint_ne(handle.generation, 0);
    seen.insert(handle.generation);
    pool.release(thing);
  }
  ck_assert_uint_eq(seen.size(), 65535);  // all generations except 0 were used
  Thing& again = *pool.acquire();
  ck_assert_uint_eq(pool.handle(again).generation, 1);
  pool.clear();
}

TEST(no_more_objects_than_the_limit_are_given_out) {
  Pool<Thing, 4> pool(5);
  Thing* last = nullptr;
  for (int i = 0; i < 5; ++i) ck_assert_ptr_nonnull(last = pool.acquire());
  ck_assert_ptr_null(pool.acquire());
  ck_assert_uint_eq(pool.in_use(), 5);
  pool.release(*last);
  ck_assert_ptr_eq(pool.acquire(), last);
  pool.clear();
}

}  // namespace

}  // namespace erdma::util

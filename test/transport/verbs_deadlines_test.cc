#include "libcheck.h"
#include "transport/verbs/deadlines.h"

namespace erdma::transport::verbs {
namespace {

struct Object {
  uint64_t deadline = 0;
};

TEST(an_object_is_due_at_its_deadline_and_not_before) {
  Deadlines<Object> deadlines;
  Object object;
  ck_assert(deadlines.add(object));
  ck_assert_ptr_null(deadlines.first());
  ck_assert_uint_eq(deadlines.next(), UINT64_MAX);
  deadlines.set(object, 100);
  ck_assert_uint_eq(deadlines.next(), 100);
  ck_assert_ptr_null(deadlines.due(99));
  ck_assert_ptr_eq(deadlines.due(100), &object);
}

TEST(the_first_object_is_due_first) {
  Deadlines<Object> deadlines;
  Object late, early;
  ck_assert(deadlines.add(late) && deadlines.add(early));
  deadlines.set(late, 200);
  deadlines.set(early, 100);
  ck_assert_ptr_eq(deadlines.first(), &early);
  ck_assert_ptr_eq(deadlines.due(300), &early);
  deadlines.clear(early);
  ck_assert_ptr_eq(deadlines.due(300), &late);
}

TEST(an_object_has_one_deadline_the_last_that_was_set) {
  Deadlines<Object> deadlines;
  Object object;
  ck_assert(deadlines.add(object));
  deadlines.set(object, 100);
  deadlines.set(object, 200);
  ck_assert_uint_eq(deadlines.size(), 1);
  ck_assert_ptr_null(deadlines.due(199));
  deadlines.clear(object);
  deadlines.clear(object);
  ck_assert_ptr_null(deadlines.first());
  ck_assert_uint_eq(deadlines.next(), UINT64_MAX);
}

TEST(an_object_that_is_removed_is_not_due) {
  Deadlines<Object> deadlines;
  Object kept, removed, stranger;
  ck_assert(deadlines.add(kept) && deadlines.add(removed));
  deadlines.set(removed, 100);
  deadlines.set(kept, 200);
  deadlines.remove(removed);
  deadlines.remove(stranger);
  ck_assert_uint_eq(deadlines.size(), 1);
  ck_assert_ptr_eq(deadlines.due(300), &kept);
  deadlines.remove(kept);
  ck_assert_ptr_null(deadlines.due(300));
}

}  // namespace

}  // namespace erdma::transport::verbs

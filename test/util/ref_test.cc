#include "util/ref.h"

#include <utility>

#include "libcheck.h"

namespace erdma::util {
namespace {

struct Alive : Counted {
  explicit Alive(int& number) : alive(number) { ++alive; }
  ~Alive() { --alive; }
  int& alive;
};

TEST(an_object_lives_as_long_as_there_is_a_reference) {
  int alive = 0;
  Ref<Alive> one = make_ref<Alive>(alive);
  Ref<Alive> other = one, none;
  ck_assert(one == other);
  ck_assert(!none && !(none == one));
  one = nullptr;
  ck_assert_int_eq(alive, 1);
  none = std::move(other);
  ck_assert(!other);  // NOLINT(bugprone-use-after-move)
  ck_assert_int_eq(alive, 1);
  none = Ref<Alive>(*none);  // of the object itself
  ck_assert_int_eq(none->alive, 1);
  none = {};
  ck_assert_int_eq(alive, 0);
}

TEST(assigning_a_reference_to_itself_changes_nothing) {
  int alive = 0;
  Ref<Alive> one = make_ref<Alive>(alive);
  const Ref<Alive>& same = one;
  one = same;
  ck_assert_int_eq(alive, 1);
  ck_assert_ptr_nonnull(one.get());
}

}  // namespace
}  // namespace erdma::util

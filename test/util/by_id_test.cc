#include "util/by_id.h"

#include "libcheck.h"

namespace erdma::util {
namespace {

struct Numbered : Counted {
  explicit Numbered(uint64_t number) : id(number) {}
  const uint64_t id;
};

TEST(objects_are_found_by_their_ids_until_they_are_erased) {
  ById<Numbered> objects;
  for (const uint64_t id : {2, 3, 5, 8}) objects.add(make_ref<Numbered>(id));
  for (const uint64_t id : {2, 3, 5, 8}) ck_assert_uint_eq(objects.find(id)->id, id);
  for (const uint64_t id : {0, 1, 4, 6, 9}) {
    ck_assert(!objects.find(id));
    ck_assert(!objects.erase(id));
  }
  ck_assert(objects.erase(3));
  ck_assert(!objects.erase(3));
  ck_assert(!objects.find(3));
  ck_assert(objects.erase(8));
  uint64_t sum = 0;
  for (const auto& object : objects) sum += object->id;
  ck_assert_uint_eq(sum, 7);
  objects.add(make_ref<Numbered>(uint64_t(9)));
  ck_assert_uint_eq(objects.find(9)->id, 9);
}

}  // namespace
}  // namespace erdma::util

#include "fabric/completion_ring.h"

#include <cstring>
#include <vector>

#include "libcheck.h"

using erdma::fabric::CompletionRing;
using erdma::protocol::Completion;
using erdma::protocol::ErrorCompletion;

namespace {

constexpr uint32_t kApi = FI_VERSION(1, 9);
int g_owner, g_other_owner;

void* context(size_t number) {
  return reinterpret_cast<void*>(number);
}

Completion numbered(size_t number) {
  Completion completion;
  completion.context = context(number);
  completion.flags = FI_RECV | FI_TAGGED;
  completion.length = 1000 + number;
  completion.buffer = context(2000 + number);
  completion.data = 3000 + number;
  completion.tag = 4000 + number;
  completion.source = 5000 + number;
  return completion;
}

ErrorCompletion failed(size_t number, int error) {
  ErrorCompletion completion;
  static_cast<Completion&>(completion) = numbered(number);
  completion.overflow = 7;
  completion.error = error;
  return completion;
}

ssize_t read_one(CompletionRing& ring, fi_cq_tagged_entry& entry) {
  return ring.read<fi_cq_tagged_entry>(&entry, 1, nullptr);
}

/// Every byte that the application does not expect to change.
bool untouched(const void* bytes, size_t from, size_t to) {
  for (size_t i = from; i < to; ++i)
    if (static_cast<const unsigned char*>(bytes)[i] != 0xa5) return false;
  return true;
}

}  // namespace

TEST(entry_is_read_in_every_format_and_nothing_beyond_it, 4) {
  struct Format {
    size_t size;
    ssize_t (CompletionRing::*read)(void*, size_t, fi_addr_t*) noexcept;
  };
  const Format formats[] = {
      {sizeof(fi_cq_entry), &CompletionRing::read<fi_cq_entry>},
      {sizeof(fi_cq_msg_entry), &CompletionRing::read<fi_cq_msg_entry>},
      {sizeof(fi_cq_data_entry), &CompletionRing::read<fi_cq_data_entry>},
      {sizeof(fi_cq_tagged_entry), &CompletionRing::read<fi_cq_tagged_entry>},
  };
  const Format& format = formats[_i];
  CompletionRing ring(0);
  for (size_t i = 1; i <= 3; ++i) ring.push(numbered(i), &g_owner);
  alignas(8) unsigned char out[4 * sizeof(fi_cq_tagged_entry)];
  std::memset(out, 0xa5, sizeof(out));
  ck_assert_int_eq((ring.*format.read)(out, 2, nullptr), 2);
  ck_assert(untouched(out, 2 * format.size, sizeof(out)));
  for (size_t i = 1; i <= 2; ++i) {
    const fi_cq_tagged_entry expected{
        context(i), FI_RECV | FI_TAGGED, 1000 + i, context(2000 + i), 3000 + i, 4000 + i};
    ck_assert_int_eq(std::memcmp(out + (i - 1) * format.size, &expected, format.size), 0);
  }
  ck_assert_int_eq((ring.*format.read)(out, 2, nullptr), 1);
  ck_assert_int_eq((ring.*format.read)(out, 2, nullptr), -FI_EAGAIN);
}

TEST(ring_keeps_order_and_loses_nothing_beyond_its_size, 5) {
  const size_t sizes[] = {0, 1, 100, 1024, 131072};
  CompletionRing ring(sizes[_i]);
  const size_t count = 10 * (sizes[_i] ? sizes[_i] : CompletionRing::kInitialCapacity);
  // Starts away from slot 0, so that the array wraps when it grows.
  fi_cq_tagged_entry entry;
  for (size_t i = 0; i < 11; ++i) {
    ring.push(numbered(i), &g_owner);
    ck_assert_int_eq(read_one(ring, entry), 1);
  }
  for (size_t i = 0; i < count; ++i) ring.push(numbered(i), &g_owner);
  ck_assert_uint_eq(ring.size(), count);
  for (size_t i = 0; i < count; ++i) {
    ck_assert_int_eq(read_one(ring, entry), 1);
    ck_assert_ptr_eq(entry.op_context, context(i));
    ck_assert_uint_eq(entry.tag, 4000 + i);
  }
  ck_assert_int_eq(read_one(ring, entry), -FI_EAGAIN);
}

TEST(ring_without_memory_gives_what_it_has_and_then_overrun) {
  CompletionRing ring(16, 32);
  for (size_t i = 0; i < 40; ++i) ring.push(numbered(i), &g_owner);
  ring.push_error(failed(40, FI_ECANCELED), &g_owner);
  std::vector<fi_cq_tagged_entry> entries(64);
  ck_assert_int_eq(ring.read<fi_cq_tagged_entry>(entries.data(), 64, nullptr), 32);
  ck_assert_ptr_eq(entries[31].op_context, context(31));
  for (int i = 0; i < 2; ++i) {
    ck_assert_int_eq(read_one(ring, entries[0]), -FI_EAVAIL);
    fi_cq_err_entry error{};
    ck_assert_int_eq(ring.read_error(&error, kApi), 1);
    ck_assert_int_eq(error.err, FI_EOVERRUN);
  }
}

TEST(errors_beyond_the_first_array_are_kept) {
  CompletionRing ring(0);
  constexpr size_t kCount = 5000;
  for (size_t i = 0; i < kCount; ++i) ring.push_error(failed(i, FI_EIO), &g_owner);
  fi_cq_err_entry error{};
  for (size_t i = 0; i < kCount; ++i) {
    ck_assert_int_eq(ring.read_error(&error, kApi), 1);
    ck_assert_ptr_eq(error.op_context, context(i));
  }
  ck_assert_int_eq(ring.read_error(&error, kApi), -FI_EAGAIN);
  ck_assert(!ring.readable());
}

TEST(error_keeps_its_place_among_completions) {
  CompletionRing ring(0);
  ring.push(numbered(1), &g_owner);
  ring.push_error(failed(2, FI_ETRUNC), &g_owner);
  ring.push_error(failed(3, FI_ECANCELED), &g_owner);
  ring.push(numbered(4), &g_owner);
  fi_cq_tagged_entry entries[4];
  fi_cq_err_entry error{};
  ck_assert_int_eq(ring.read_error(&error, kApi), -FI_EAGAIN);
  ck_assert_int_eq(ring.read<fi_cq_tagged_entry>(entries, 4, nullptr), 1);
  ck_assert_int_eq(ring.read<fi_cq_tagged_entry>(entries, 4, nullptr), -FI_EAVAIL);
  ck_assert_int_eq(ring.read_error(&error, kApi), 1);
  ck_assert_int_eq(error.err, FI_ETRUNC);
  ck_assert_int_eq(ring.read<fi_cq_tagged_entry>(entries, 4, nullptr), -FI_EAVAIL);
  ck_assert_int_eq(ring.read_error(&error, kApi), 1);
  ck_assert_int_eq(error.err, FI_ECANCELED);
  ck_assert_int_eq(ring.read_error(&error, kApi), -FI_EAGAIN);
  ck_assert_int_eq(ring.read<fi_cq_tagged_entry>(entries, 4, nullptr), 1);
  ck_assert_ptr_eq(entries[0].op_context, context(4));
}

TEST(error_tells_all_and_fits_the_application_of_each_api, 6) {
  struct Case {
    uint32_t api;
    size_t size;
    bool own_buffer;
  };
  const Case cases[] = {{FI_VERSION(1, 4), 72, false}, {FI_VERSION(1, 5), 80, true},
                        {FI_VERSION(1, 9), 80, true},  {FI_VERSION(1, 19), 80, true},
                        {FI_VERSION(1, 20), 88, true}, {FI_VERSION(2, 6), 88, true}};
  const Case& c = cases[_i];
  CompletionRing ring(0);
  ring.push_error(failed(1, FI_ETRUNC), &g_owner);
  // Filled with garbage, as in oneCCL: err_data is an invalid pointer.
  alignas(8) unsigned char out[128];
  std::memset(out, 0xa5, sizeof(out));
  auto* error = reinterpret_cast<fi_cq_err_entry*>(out);
  ck_assert_int_eq(ring.read_error(error, c.api), 1);
  ck_assert(untouched(out, c.size, sizeof(out)));
  ck_assert_ptr_eq(error->op_context, context(1));
  ck_assert_uint_eq(error->flags, FI_RECV | FI_TAGGED);
  ck_assert_uint_eq(error->len, 1001);
  ck_assert_ptr_eq(error->buf, context(2001));
  ck_assert_uint_eq(error->data, 3001);
  ck_assert_uint_eq(error->tag, 4001);
  ck_assert_uint_eq(error->olen, 7);
  ck_assert_int_eq(error->err, FI_ETRUNC);
  ck_assert_int_eq(error->prov_errno, FI_ETRUNC);
  ck_assert(untouched(&error->err_data, 0, sizeof(void*)) == c.own_buffer);
  if (c.size >= 80) ck_assert_uint_eq(error->err_data_size, 0);
  uint64_t source;
  std::memcpy(&source, out + 80, sizeof(source));
  if (c.size == 88) ck_assert_uint_eq(source, 5001);
}

TEST(sources_are_read_where_known) {
  CompletionRing ring(0);
  ring.push(numbered(1), &g_owner);
  ring.push(Completion{}, &g_owner);
  fi_cq_entry entries[3];
  fi_addr_t sources[3] = {1, 2, 3};
  ck_assert_int_eq(ring.read<fi_cq_entry>(entries, 3, sources), 2);
  ck_assert_uint_eq(sources[0], 5001);
  ck_assert_uint_eq(sources[1], FI_ADDR_NOTAVAIL);
  ck_assert_uint_eq(sources[2], 3);
}

TEST(purge_drops_the_entries_of_one_owner_only) {
  CompletionRing ring(16);
  for (size_t i = 0; i < 60; ++i) {
    const void* owner = i % 3 == 0 ? &g_owner : &g_other_owner;
    if (i % 4 == 0)
      ring.push_error(failed(i, int(i) + 1), owner);
    else
      ring.push(numbered(i), owner);
  }
  ring.purge(&g_owner);
  fi_cq_tagged_entry entry;
  for (size_t i = 0; i < 60; ++i) {
    if (i % 3 == 0) continue;
    fi_cq_err_entry error{};
    if (i % 4 == 0) {
      ck_assert_int_eq(read_one(ring, entry), -FI_EAVAIL);
      ck_assert_int_eq(ring.read_error(&error, kApi), 1);
      ck_assert_ptr_eq(error.op_context, context(i));
      ck_assert_int_eq(error.err, int(i) + 1);
    } else {
      ck_assert_int_eq(read_one(ring, entry), 1);
      ck_assert_ptr_eq(entry.op_context, context(i));
    }
  }
  ck_assert_int_eq(read_one(ring, entry), -FI_EAGAIN);
  ck_assert(!ring.holds_error());
}

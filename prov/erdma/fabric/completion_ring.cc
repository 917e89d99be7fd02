#include "fabric/completion_ring.h"

#include <bit>

#include "util/log.h"

namespace erdma::fabric {
namespace {

/// fi_cq_err_entry as of API 1.20. Applications of an older API have a prefix of it.
struct ErrorImage {
  void* context;
  uint64_t flags;
  size_t length;
  void* buffer;
  uint64_t data;
  uint64_t tag;
  size_t overflow;
  int error;
  int provider_error;
  void* error_data;
  size_t error_data_size;
  uint64_t source;
};
static_assert(offsetof(ErrorImage, error) == offsetof(fi_cq_err_entry, err));
static_assert(offsetof(ErrorImage, error_data) == offsetof(fi_cq_err_entry, err_data));
static_assert(sizeof(ErrorImage) >= sizeof(fi_cq_err_entry));
static_assert(sizeof(ErrorImage) == 88);

/// Bytes of fi_cq_err_entry in an application of an API version: it has err_data_size since 1.5,
/// and src_addr since 1.20.
size_t image_size(uint32_t api_version) noexcept {
  if (FI_VERSION_LT(api_version, FI_VERSION(1, 5))) return offsetof(ErrorImage, error_data_size);
  if (FI_VERSION_LT(api_version, FI_VERSION(1, 20))) return offsetof(ErrorImage, source);
  return sizeof(ErrorImage);
}

/// Applications print the text of prov_errno (fi_cq_strerror(3)), so it is the error itself.
void write_image(fi_cq_err_entry* error, ErrorImage image, uint32_t api_version) noexcept {
  image.provider_error = image.error;
  // The provider has no error data. Since 1.5 a nonzero err_data_size on input says that err_data
  // is a buffer of the application.
  const bool own_buffer = FI_VERSION_GE(api_version, FI_VERSION(1, 5)) && error->err_data_size != 0;
  image.error_data = own_buffer ? error->err_data : nullptr;
  image.error_data_size = 0;
  std::memcpy(error, &image, image_size(api_version));
}

}  // namespace

size_t CompletionRing::capacity_for(size_t size_hint) noexcept {
  constexpr size_t kLeast = 16;
  if (size_hint == 0) return kInitialCapacity;
  return std::bit_ceil(std::clamp(size_hint, kLeast, kInitialCapacity));
}

void CompletionRing::push_error(const protocol::ErrorCompletion& completion,
                                const void* owner) noexcept {
  const uint64_t position = x_entries.tail();
  Failure* failure = x_errors.append();
  if (!failure) {
    overrun();
    return;
  }
  *failure = {position, completion.overflow, completion.error};
  push(completion, owner);
  if (x_entries.tail() == position) x_errors.cut_tail(x_errors.tail() - 1);  // no room for it
  find_next_error();
}

/// Marks the queue as overrun, and returns an entry that is never read, for the caller to fill.
protocol::CompletionEntry& CompletionRing::overrun() noexcept {
  if (!x_overrun)
    ERDMA_WARN(CQ, "out of memory after %zu unread completions: the queue is overrun\n", size());
  x_overrun = true;
  return x_lost;
}

ssize_t CompletionRing::read_error(fi_cq_err_entry* error, uint32_t api_version) noexcept {
  if (x_entries.size() == 0 && x_overrun) {
    ErrorImage image{};
    image.error = FI_EOVERRUN;
    image.source = FI_ADDR_NOTAVAIL;
    write_image(error, image, api_version);
    return 1;
  }
  if (x_next_error != x_entries.head()) return -FI_EAGAIN;
  const protocol::CompletionEntry& entry = x_entries[x_next_error].completion;
  const Failure& failure = x_errors[x_errors.head()];
  write_image(error,
              {entry.context, entry.flags, entry.length, entry.buffer, entry.data, entry.tag,
               failure.overflow, failure.error, 0, nullptr, 0, entry.source},
              api_version);
  x_entries.drop_front(1);
  x_errors.drop_front(1);
  find_next_error();
  return 1;
}

void CompletionRing::purge(const void* owner) noexcept {
  uint64_t kept = x_entries.head();
  uint64_t error = x_errors.head();
  uint64_t kept_error = error;
  for (uint64_t i = x_entries.head(); i != x_entries.tail(); ++i) {
    const bool failed = error != x_errors.tail() && x_errors[error].position == i;
    if (x_entries[i].owner != owner) {
      if (failed) {
        x_errors[kept_error] = x_errors[error];
        x_errors[kept_error++].position = kept;
      }
      x_entries[kept++] = x_entries[i];
    }
    if (failed) ++error;
  }
  x_entries.cut_tail(kept);
  x_errors.cut_tail(kept_error);
  find_next_error();
}

}  // namespace erdma::fabric

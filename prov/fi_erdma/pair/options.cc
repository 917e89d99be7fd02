#include "fi_erdma/pair/options.h"

#include <unistd.h>

#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fi_erdma/libfabric.h"

namespace fi_erdma::pair {
namespace {

std::function<void(Status, const char*)>& teller() {
  static std::function<void(Status, const char*)> one;
  return one;
}

[[noreturn]] void end(Status status, const char* format, va_list arguments) {
  char text[2048];
  std::vsnprintf(text, sizeof text, format, arguments);
  if (teller()) teller()(status, text);
  std::fflush(stdout);
  std::fprintf(stderr, "fi_erdma[%d]: %s\n", int(::getpid()), text);
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

void before_end(std::function<void(Status, const char*)> tell) {
  teller() = std::move(tell);
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  end(kFailed, format, arguments);
}

void not_supported(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  end(kNotTried, format, arguments);
}

void must(long rc, const char* what) {
  if (rc != 0)
    fail("%s: %ld (%s)", what, rc, libfabric().error_text(int(rc < 0 ? rc : -rc)).c_str());
}

bool parse_size(const char* text, size_t& size) {
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, size);
  if (error != std::errc()) return false;
  const char* const units = "KMG";
  const char* const unit = rest == end ? nullptr : std::strchr(units, *rest);
  const size_t shift = unit ? 10 * size_t(unit - units + 1) : 0;
  if (size > kLargestSize >> shift) return false;
  size <<= shift;
  return rest + (unit ? 1 : 0) == end;
}

std::string sizes_text(const Options& options) {
  std::string text;
  for (const size_t size : options.sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return text + " bytes";
}

std::vector<size_t> all_sizes(size_t largest) {
  std::vector<size_t> sizes = {0, 1, 2};
  for (size_t power = 4; power <= largest; power *= 2) {
    for (size_t size : {power - 1, power, power + 1}) {
      if (size <= largest) sizes.push_back(size);
    }
  }
  return sizes;
}

std::string wanted_provider() {
  const char* const provider = std::getenv("FI_PROVIDER");
  return provider && *provider ? provider : "erdma";
}

}  // namespace fi_erdma::pair

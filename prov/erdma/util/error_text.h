#pragma once

#include <cstring>

namespace erdma::util {

/// A thread-safe strerror(). Use it as ErrorText(errno).c_str(); the text lives as long as this
/// object.
class ErrorText {
 public:
  explicit ErrorText(int error) noexcept : x_text(strerror_r(error, x_buffer, sizeof(x_buffer))) {}
  ErrorText(const ErrorText&) = delete;
  ErrorText& operator=(const ErrorText&) = delete;
  const char* c_str() const noexcept { return x_text; }

 private:
  char x_buffer[96];
  const char* x_text;
};

}  // namespace erdma::util

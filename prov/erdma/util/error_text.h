#pragma once

#include <cstring>

namespace erdma::util {

/// strerror() for any thread: ErrorText(errno).c_str() within one expression.
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

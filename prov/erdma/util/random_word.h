#pragma once

#include <sys/random.h>
#include <unistd.h>

#include <cstdint>

#include "util/clock.h"

namespace erdma::util {

/// A number that differs between the objects and processes of a host. It is random, except while
/// the kernel has no random numbers yet: the call does not wait for them (getrandom(2)).
inline uint64_t random_word() noexcept {
  uint64_t word = 0;
  if (::getrandom(&word, sizeof(word), GRND_NONBLOCK) != sizeof(word))
    word = uint64_t(::getpid()) << 32 ^ SystemClock().now();
  return word;
}

}  // namespace erdma::util

#pragma once

#include <cstdint>

namespace softerdma {

/// One line about the simulation itself, to stderr.
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// The caller broke a rule of the device. SOFTERDMA_STRICT says what happens then: report (a line
/// to stderr and to the file SOFTERDMA_REPORT), abort, or off.
void violation(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Violations of this process so far.
uint64_t violations();

}  // namespace softerdma

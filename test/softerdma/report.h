#pragma once

#include <cstdint>

namespace softerdma {

/// Writes one line about the simulation itself to stderr.
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// Reports that the caller broke a rule of the device. SOFTERDMA_STRICT chooses: report (a line to
/// stderr and to the file SOFTERDMA_REPORT), abort, or off.
void violation(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Returns the number of violations of this process so far.
uint64_t violations();

}  // namespace softerdma

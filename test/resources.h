#pragma once

#include <map>
#include <string>

namespace erdma::test {

/// What a process holds, or has lent: a description, and how often.
using Resources = std::map<std::string, long>;

/// Of this process: descriptors, threads, mappings of shared memory.
Resources held_by_process();
/// What owners that ended since begin_counting() gave away and did not get back.
Resources left_over();

/// Around every test, in its process (libcheck.h). end_counting() fails the test if there is more
/// than before, or if a descriptor is gone that the test did not open.
void begin_counting();
void end_counting();

}  // namespace erdma::test

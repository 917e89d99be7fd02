#pragma once

#include <map>
#include <string>

namespace erdma::test {

/// The resources that a process holds or has given out: a description, and their number.
using Resources = std::map<std::string, long>;

/// Counts the descriptors, threads and mappings of shared memory of this process.
Resources held_by_process();
/// Returns the resources that owners which ended since begin_counting() gave out and did not get
/// back.
Resources left_over();

/// These functions run before and after every test, in its process (libcheck.h). end_counting()
/// fails the test if there are more resources than before, or if a descriptor is closed that the
/// test did not open.
void begin_counting();
void end_counting();

}  // namespace erdma::test

#pragma once

#include <check.h>

// An old spelling of ck_abort_msg(), which would rename every C++ member called fail.
#undef fail

namespace erdma::test {

/// A TCase whose tests fail if they end with more descriptors, threads, shared memory or objects of
/// the simulated adapter than they began with, or if an owner in the provider ended before it had
/// all back that it had lent: pool objects, registrations, blocks, rings (resources.h).
TCase* counted_case(const char* name);

/// By a test that ends, on purpose, before all its operations have: what these hold is not counted.
void leaves_work_undone();

/// By a test that plays a peer which gives nothing back, or ends endpoints as if they had died:
/// what owners in the provider had lent then is not counted.
void leaves_owners_short();

}  // namespace erdma::test

// So that no test can forget it.
#define tcase_create(name) erdma::test::counted_case(name)

#pragma once

#include <check.h>

// An old spelling of ck_abort_msg(), which would rename every C++ member called fail.
#undef fail

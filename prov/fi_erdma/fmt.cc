// Compiles the functions that <fmt/core.h> declares once. Compiling them in each file would double
// its build time, and linking libfmt.so would add a library to install. configure defines
// FMT_HEADER_ONLY for versions of fmt that declare other functions.
#ifndef FMT_HEADER_ONLY

#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace {

// Using an inline function makes the compiler emit it for the other files.
[[gnu::used]] std::string (*const g_format)(fmt::string_view, fmt::format_args) = fmt::vformat;
[[gnu::used]] void (*const g_print)(fmt::string_view, fmt::format_args) = fmt::vprint;
[[gnu::used]] void (*const g_print_to)(std::FILE*, fmt::string_view,
                                       fmt::format_args) = fmt::vprint;

}  // namespace

#endif

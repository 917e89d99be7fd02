// The functions of fmt that <fmt/core.h> declares, compiled once: each file would take twice as
// long with them, and with libfmt.so users would have to have one library more. configure defines
// FMT_HEADER_ONLY for versions of fmt that declare others.
#ifndef FMT_HEADER_ONLY

#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace {

// What is inline, but used, is there for other files.
[[gnu::used]] std::string (*const g_format)(fmt::string_view, fmt::format_args) = fmt::vformat;
[[gnu::used]] void (*const g_print)(fmt::string_view, fmt::format_args) = fmt::vprint;
[[gnu::used]] void (*const g_print_to)(std::FILE*, fmt::string_view,
                                       fmt::format_args) = fmt::vprint;

}  // namespace

#endif

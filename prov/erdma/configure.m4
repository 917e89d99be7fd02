dnl SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
dnl Checks of the erdma provider, in the order in which they run.

dnl --- the version as libfabric has versions: two numbers
AC_DEFINE_UNQUOTED([ERDMA_MAJOR], [${PACKAGE_VERSION%%.*}], [the first number of the version])
erdma_minor=${PACKAGE_VERSION#*.}
AC_DEFINE_UNQUOTED([ERDMA_MINOR], [${erdma_minor%%.*}], [the second number of the version])

dnl --- C++20 as g++ 10 has it: constructs that the sources use and an older compiler or libstdc++ lacks
ERDMA_CXXFLAGS="-std=c++20"
erdma_save_CXXFLAGS=$CXXFLAGS
CXXFLAGS="$CXXFLAGS $ERDMA_CXXFLAGS"
AC_CACHE_CHECK([whether $CXX has C++20 (g++ 10 or better)], [erdma_cv_cxx20],
  [AC_COMPILE_IFELSE([AC_LANG_SOURCE([[
#include <algorithm>
#include <atomic>
#include <bit>
#include <concepts>
#include <span>
#include <thread>
enum class E { one };
template <std::invocable F> int call(F&& f) { return f(); }
struct S { int a = 0; int b = 0; bool operator==(const S&) const = default; };
constexpr S s = {.a = 1, .b = 2};
static_assert(s == S{1, 2} && std::has_single_bit(4u));
int probe() {
  std::jthread t([](std::stop_token) {});
  const int v[] = {1, 2};
  return call([&] { return int(std::ranges::find(v, 2) - v) + int(std::span(v).size()); }) + int(E::one);
}
]])], [erdma_cv_cxx20=yes], [erdma_cv_cxx20=no])])
CXXFLAGS=$erdma_save_CXXFLAGS
AS_IF([test "$erdma_cv_cxx20" != yes],
  [AC_MSG_ERROR([$CXX does not compile C++20 as this provider uses it. Install g++ 10 or better (Debian 12: apt install g++) or name another compiler with CXX=...])])

ERDMA_CXXFLAGS="$ERDMA_CXXFLAGS -fno-rtti -fvisibility=hidden -fno-semantic-interposition -pthread"
ERDMA_WARNINGS="-Wall -Wextra -Wconversion -Wshadow"

dnl --- --enable-werror, --enable-sanitizer
AC_ARG_ENABLE([werror],
  [AS_HELP_STRING([--enable-werror], [warnings are errors (for continuous integration)])],
  [], [enable_werror=no])
AS_IF([test "$enable_werror" = yes], [ERDMA_WARNINGS="$ERDMA_WARNINGS -Werror"])

AC_ARG_ENABLE([sanitizer],
  [AS_HELP_STRING([--enable-sanitizer=LIST],
    [build with these sanitizers: "address,undefined" or "thread"])],
  [], [enable_sanitizer=no])
AS_CASE([$enable_sanitizer],
  [no], [],
  [yes], [enable_sanitizer=address,undefined])
AS_IF([test "$enable_sanitizer" != no], [
  ERDMA_SANITIZER="-fsanitize=$enable_sanitizer -fno-sanitize-recover=all -fno-omit-frame-pointer"
  dnl Fences order atomics here, never plain data, so what g++ 12 warns of (it does not model them) is
  dnl no loss.
  AS_CASE([$enable_sanitizer], [*thread*], [ERDMA_SANITIZER="$ERDMA_SANITIZER -Wno-tsan"])
  erdma_save_CXXFLAGS=$CXXFLAGS
  CXXFLAGS="$CXXFLAGS $ERDMA_SANITIZER"
  AC_MSG_CHECKING([whether $CXX links with -fsanitize=$enable_sanitizer])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([$CXX does not know the sanitizer "$enable_sanitizer", or its library is missing])])
  CXXFLAGS=$erdma_save_CXXFLAGS
  dnl libtool links C++ libraries with -nostdlib, so the sanitizer's own library comes with the program.
  ERDMA_ALL_DEFINED=
], [
  ERDMA_SANITIZER=
  ERDMA_ALL_DEFINED="-Wl,-z,defs"
])
AC_SUBST([ERDMA_ALL_DEFINED])

dnl --- --enable-joined: what many files include is compiled once
AC_ARG_ENABLE([joined],
  [AS_HELP_STRING([--enable-joined=tests|programs|all],
    [compile files of tests, of tests and fi_erdma, or all, many at a time: fast where everything is built (for continuous integration)])],
  [], [enable_joined=no])
AS_CASE([$enable_joined],
  [yes], [enable_joined=all],
  [no|tests|programs|all], [],
  [AC_MSG_ERROR([--enable-joined takes tests, programs or all, not "$enable_joined"])])
AM_CONDITIONAL([JOIN_TESTS], [test "$enable_joined" != no])
AM_CONDITIONAL([JOIN_PROGRAMS], [test "$enable_joined" = programs || test "$enable_joined" = all])
AM_CONDITIONAL([JOIN_PROVIDER], [test "$enable_joined" = all])

dnl --- --enable-precompiled: headers that most files include are compiled once
AC_ARG_ENABLE([precompiled],
  [AS_HELP_STRING([--enable-precompiled],
    [compile common headers once ("make precompiled" comes first; for continuous integration)])],
  [], [enable_precompiled=no])
AM_CONDITIONAL([PRECOMPILE], [test "$enable_precompiled" != no])

dnl --- what is no library of its own since glibc 2.34; libtool leaves -pthread out of C++ libraries
AC_SEARCH_LIBS([dlopen], [dl], [], [AC_MSG_ERROR([no library has dlopen])])
AC_SEARCH_LIBS([pthread_create], [pthread], [], [AC_MSG_ERROR([no library has pthread_create])])

dnl --- libfabric: pkg-config, or a prefix. -isystem, as its 2.x headers warn under -Wshadow
AC_ARG_WITH([libfabric],
  [AS_HELP_STRING([--with-libfabric=PREFIX],
    [libfabric 1.17 or later, 2.x included, installed below PREFIX (default: pkg-config)])],
  [], [with_libfabric=yes])
AS_CASE([$with_libfabric],
  [no], [AC_MSG_ERROR([this is a libfabric provider: --without-libfabric makes no sense])],
  [yes], [
    PKG_CHECK_MODULES([LIBFABRIC], [libfabric >= 1.17], [],
      [AC_MSG_ERROR([libfabric 1.17 or later was not found by pkg-config. Install it (Debian 12: apt install libfabric-dev) or use --with-libfabric=PREFIX])])
    LIBFABRIC_CFLAGS=`AS_ECHO(["$LIBFABRIC_CFLAGS"]) | $SED 's/-I/-isystem /g'`
    LIBFABRIC_RPATH=
    erdma_libfabric_where="pkg-config `$PKG_CONFIG --modversion libfabric`"],
  [
    AS_IF([test -f "$with_libfabric/include/rdma/fabric.h"], [],
      [AC_MSG_ERROR([there is no $with_libfabric/include/rdma/fabric.h (--with-libfabric=PREFIX)])])
    erdma_libfabric_libdir=
    for erdma_dir in lib64 "lib/$host_cpu-linux-gnu" lib; do
      AS_IF([test -e "$with_libfabric/$erdma_dir/libfabric.so"],
        [erdma_libfabric_libdir=$with_libfabric/$erdma_dir])
    done
    AS_IF([test -n "$erdma_libfabric_libdir"], [],
      [AC_MSG_ERROR([there is no libfabric.so below $with_libfabric (--with-libfabric=PREFIX)])])
    LIBFABRIC_CFLAGS="-isystem $with_libfabric/include"
    LIBFABRIC_LIBS="-L$erdma_libfabric_libdir -lfabric"
    LIBFABRIC_RPATH="-R $erdma_libfabric_libdir"
    erdma_libfabric_where=$with_libfabric])
AC_SUBST([LIBFABRIC_CFLAGS])
AC_SUBST([LIBFABRIC_LIBS])
AC_SUBST([LIBFABRIC_RPATH])
AS_CASE([$with_libfabric], [yes], [DISTCHECK_LIBFABRIC=],
  [DISTCHECK_LIBFABRIC="--with-libfabric=$with_libfabric"])
AC_SUBST([DISTCHECK_LIBFABRIC])

erdma_save_CPPFLAGS=$CPPFLAGS
CPPFLAGS="$CPPFLAGS $LIBFABRIC_CFLAGS"
AC_MSG_CHECKING([whether the libfabric headers are 1.17 or later])
AC_COMPILE_IFELSE([AC_LANG_SOURCE([[
#include <rdma/fabric.h>
#include <rdma/providers/fi_prov.h>
#if FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION < 17
#error "too old"
#endif
]])], [AC_MSG_RESULT([yes])],
  [AC_MSG_RESULT([no])
   AC_MSG_ERROR([the libfabric headers found are older than 1.17 or incomplete])])
CPPFLAGS=$erdma_save_CPPFLAGS

dnl --- rdma-core: the NIC transport. -isystem, as its headers warn under -Wconversion. libibverbs 1.11.33 is that of version 33.
PKG_CHECK_MODULES([RDMA_CORE], [libibverbs >= 1.11.33 librdmacm],
  [AC_DEFINE([HAVE_RDMA_CORE], [1], [rdma-core (libibverbs and librdmacm) was found])],
  [AC_MSG_ERROR([rdma-core 33 or later was not found by pkg-config: libibverbs and librdmacm are needed (Debian 12: apt install libibverbs-dev librdmacm-dev)])])
RDMA_CORE_CFLAGS=`AS_ECHO(["$RDMA_CORE_CFLAGS"]) | $SED 's/-I/-isystem /g'`
dnl rdma-core has the first since 34, the second since 35.
erdma_save_LIBS=$LIBS
LIBS="$LIBS $RDMA_CORE_LIBS"
AC_CHECK_FUNCS([ibv_reg_dmabuf_mr ibv_is_fork_initialized])
LIBS=$erdma_save_LIBS
AS_IF([test "$ac_cv_func_ibv_reg_dmabuf_mr" = yes], [erdma_dmabuf=], [erdma_dmabuf=" without dmabuf (rdma-core 34)"])

dnl --- libsodium: the job key signs what endpoints say to each other when they connect
PKG_CHECK_MODULES([SODIUM], [libsodium >= 1.0.11], [],
  [AC_MSG_ERROR([libsodium was not found by pkg-config (Debian 12: apt install libsodium-dev)])])
SODIUM_CFLAGS=`AS_ECHO(["$SODIUM_CFLAGS"]) | $SED 's/-I/-isystem /g'`

dnl --- --enable-portable: one binary for systems whose libstdc++ and libsodium differ (packages/build-portable).
dnl libtool links C++ libraries with -nostdlib and names the compiler's own libraries itself, so that
dnl -static-libstdc++ says nothing to them, but to programs.
AC_ARG_ENABLE([portable],
  [AS_HELP_STRING([--enable-portable], [what is installed contains libstdc++, libgcc and libsodium])],
  [], [enable_portable=no])
ERDMA_PORTABLE=
AS_IF([test "$enable_portable" != no], [
  ERDMA_PORTABLE="-static-libstdc++ -static-libgcc"
  SODIUM_LIBS=`AS_ECHO([" $SODIUM_LIBS "]) | $SED 's/ -lsodium / -l:libsodium.a /'`
  postdeps_CXX=`AS_ECHO([" $postdeps_CXX "]) | $SED 's/ -lstdc++ / -l:libstdc++.a /; s/ -lgcc_s / -lgcc -lgcc_eh /g'`
  AS_CASE([$SODIUM_LIBS$postdeps_CXX], [*libsodium.a*libstdc++.a*-lgcc_eh*], [],
    [AC_MSG_ERROR([--enable-portable does not know how to link here: libsodium by "$SODIUM_LIBS", C++ by "$postdeps_CXX"])])
])
AC_SUBST([ERDMA_PORTABLE])

dnl --- --enable-softerdma: for people who test other programs on a simulated NIC
AC_ARG_ENABLE([softerdma],
  [AS_HELP_STRING([--enable-softerdma], [install the simulated eRDMA NIC, libsofterdma.so, in LIBDIR/erdma])],
  [], [enable_softerdma=no])
AM_CONDITIONAL([INSTALL_SOFTERDMA], [test "$enable_softerdma" != no])

dnl --- CUDA: headers only; libcuda is opened at run time
AC_ARG_WITH([cuda],
  [AS_HELP_STRING([--with-cuda=DIR|no], [CUDA headers below DIR (default: look in /usr/local/cuda)])],
  [], [with_cuda=auto])
CUDA_CPPFLAGS=
AS_CASE([$with_cuda],
  [no], [erdma_cuda=no],
  [auto|yes], [
    AS_IF([test -f /usr/local/cuda/include/cuda.h], [erdma_cuda=/usr/local/cuda],
      [erdma_cuda=no])
    AS_IF([test "$erdma_cuda.$with_cuda" = no.yes],
      [AC_MSG_ERROR([there is no /usr/local/cuda/include/cuda.h: use --with-cuda=DIR])])],
  [
    AS_IF([test -f "$with_cuda/include/cuda.h"], [erdma_cuda=$with_cuda],
      [AC_MSG_ERROR([there is no $with_cuda/include/cuda.h (--with-cuda=DIR)])])])
AS_IF([test "$erdma_cuda" != no],
  [CUDA_CPPFLAGS="-isystem $erdma_cuda/include"
   AC_DEFINE([HAVE_CUDA_H], [1], [cuda.h was found])])
AC_SUBST([CUDA_CPPFLAGS])

dnl --- the program fi_erdma: libraries of headers alone; without them it is left out
PKG_CHECK_MODULES([FI_ERDMA], [CLI11 >= 2.1 fmt >= 9 nlohmann_json >= 3.10],
  [erdma_program=yes], [erdma_program="no (CLI11, fmt or nlohmann-json was not found)"
   AC_MSG_WARN([the program fi_erdma is left out: it needs CLI11, fmt and nlohmann-json (Debian 12: apt install libcli11-dev libfmt-dev nlohmann-json3-dev)])])
FI_ERDMA_CFLAGS=`AS_ECHO(["$FI_ERDMA_CFLAGS"]) | $SED 's/-I/-isystem /g'`
dnl What fmt.cc has for all files is all that version 9 wants.
AS_IF([$PKG_CONFIG --atleast-version=10 fmt], [FI_ERDMA_CFLAGS="$FI_ERDMA_CFLAGS -DFMT_HEADER_ONLY"])
AM_CONDITIONAL([HAVE_FI_ERDMA], [test "$erdma_program" = yes])

dnl --- for make check, the man page, format-check and tidy: none is needed to build and install
AC_ARG_ENABLE([tests],
  [AS_HELP_STRING([--disable-tests], [no unit tests in make check])],
  [], [enable_tests=yes])
AS_IF([test "$enable_tests" != no],
  [PKG_CHECK_MODULES([CHECK], [check >= 0.12], [erdma_check=yes], [erdma_check=no])],
  [erdma_check=no])
AM_CONDITIONAL([HAVE_CHECK], [test "$erdma_check" = yes])
AM_CONDITIONAL([WANT_CHECK], [test "$enable_tests" != no])

AC_CHECK_PROGS([PANDOC], [pandoc])
AM_CONDITIONAL([HAVE_PANDOC], [test -n "$PANDOC"])
AM_CONDITIONAL([INSTALL_MAN], [test -n "$PANDOC" || { test -f "$srcdir/man/fi_erdma.1" && test -f "$srcdir/man/fi_erdma.7"; }])
AC_CHECK_PROGS([CLANG_FORMAT], [clang-format-14 clang-format])
AC_CHECK_PROGS([CLANG_TIDY], [clang-tidy-14 clang-tidy])

AC_SUBST([ERDMA_CXXFLAGS])
AC_SUBST([ERDMA_WARNINGS])
AC_SUBST([ERDMA_SANITIZER])

AC_DEFUN([ERDMA_SUMMARY], [
erdma_rdma_core=`$PKG_CONFIG --modversion libibverbs`
AS_IF([test "$prefix" = NONE], [prefix=$ac_default_prefix])
AS_IF([test "$exec_prefix" = NONE], [exec_prefix=$prefix])
eval erdma_libdir="$libdir"
eval erdma_libdir="$erdma_libdir"
AC_MSG_NOTICE([

  $PACKAGE_NAME $PACKAGE_VERSION
  compiler     $CXX ($ERDMA_CXXFLAGS)
  libfabric    $erdma_libfabric_where
  rdma-core    $erdma_rdma_core$erdma_dmabuf
  CUDA         $erdma_cuda
  sanitizer    $enable_sanitizer
  fi_erdma     $erdma_program
  unit tests   $erdma_check (libcheck)
  installs     liberdma-fi.so in $erdma_libdir/libfabric
])])

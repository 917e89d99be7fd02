#include "protocol/wire.h"

#include <string>

#include "libcheck.h"

/// The bytes of every header in version 7. A change of a line in this file changes what a peer of
/// the same version expects, so kVersion must be increased.
namespace {

using namespace erdma;
using namespace erdma::protocol::wire;

static_assert(kVersion == 7, "the bytes below belong to version 7");

/// Formats the value in hexadecimal, in groups of eight bytes.
template <typename T>
std::string hex(const T& value) {
  std::string text;
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  for (size_t i = 0; i < sizeof(value); ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    if (i && i % 8 == 0) text += ' ';
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

TEST(a_message_header_has_these_bytes) {
  const MessageHeader header{
      Op::rts,           0x12, 0x3456, 0x789abcde, 0x1112131415161718, 0x2122232425262728,
      0x3132333435363738};
  const char* const bytes = "02125634debc9a78 1817161514131211 2827262524232221 3837363534333231";
  ck_assert(hex(header) == bytes);
  ck_assert(hex(encode(header)) == bytes);
}

TEST(a_control_header_has_these_bytes) {
  const ControlHeader header{Op::cts, 0x12,       0x3456, 0x789abcde, 0x4142,
                             0,       0x51525354, -2,     0,          0x3132333435363738};
  ck_assert(hex(header) == "03125634debc9a78 4241000054535251 feffffff00000000 3837363534333231");
}

TEST(a_one_sided_header_has_these_bytes) {
  const OneSidedHeader header{Op::segments,
                              0x12,
                              0x3456,
                              0x789abcde,
                              {0x1112131415161718, 0x2122232425262728, 0x3132333435363738}};
  ck_assert(hex(header) == "07125634debc9a78 1817161514131211 2827262524232221 3837363534333231");
  ck_assert(hex(AtomicWord{0x61626364, 0x71, 0x72, 0}) == "6463626171720000");
}

TEST(operations_and_flags_have_these_numbers) {
  constexpr Op kOps[] = {Op::eager,   Op::rts,      Op::cts,    Op::fin,     Op::done,
                         Op::budget,  Op::segments, Op::write,  Op::read,    Op::atomic,
                         Op::result,  Op::grant,    Op::revoke, Op::revoked, Op::first_fragment,
                         Op::fragment};
  for (size_t i = 0; i < std::size(kOps); ++i) ck_assert_uint_eq(uint8_t(kOps[i]), i + 1);
  constexpr int kMessageFlags[] = {kTagged, kHasData, kWantFin, kFailed};
  for (size_t i = 0; i < std::size(kMessageFlags); ++i) ck_assert_int_eq(kMessageFlags[i], 1 << i);
  constexpr int kOneSidedFlags[] = {kHasData, kLast, 0, kKeyed, kSegments, kFetch, kCompare};
  for (size_t i = 0; i < std::size(kOneSidedFlags); ++i)
    ck_assert_int_eq(kOneSidedFlags[i], i == 2 ? 0 : 2 << i);
  ck_assert_int_eq(kGrantReads, 1);
  ck_assert_int_eq(kGrantWrites, 2);
  ck_assert_int_eq(kBusy, 1);
  ck_assert(kFree == 0 && kUsedUp == 1 && kUnexpected == 2);
}

}  // namespace

#pragma once

#include "fi_erdma/pair/options.h"

namespace fi_erdma::pair {

/// The tests of `fi_erdma test`. Each returns a Status and has default sizes.

/// Messages, reads and writes of all sizes, both ways at once, while the kernel refuses
/// process_vm_readv(2) or process_vm_writev(2), or both, to one side or both.
int test_refused_cma(TestOptions options);
/// An endpoint reads its own registered memory, as applications do to flush what a NIC wrote to a
/// GPU. No read may return -FI_EAGAIN, and each has one completion, after its bytes have arrived.
/// The test has one side.
int test_local_read(TestOptions options);
/// A server process is killed in the middle of traffic. Each operation of the client must end in
/// exactly one completion within a limit, and the endpoint must go on serving another peer.
int test_peer_death(TestOptions options);

}  // namespace fi_erdma::pair

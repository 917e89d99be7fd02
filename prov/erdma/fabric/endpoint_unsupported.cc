// What an endpoint of this version does not offer; nothing of it is advertised.
#include "fabric/endpoint_ops.h"

namespace erdma::fabric {

fi_ops_collective g_no_collective_ops = {
    .size = sizeof(fi_ops_collective),
    .barrier = not_offered,
    .broadcast = not_offered,
    .alltoall = not_offered,
    .allreduce = not_offered,
    .allgather = not_offered,
    .reduce_scatter = not_offered,
    .reduce = not_offered,
    .scatter = not_offered,
    .gather = not_offered,
    .msg = not_offered,
    .barrier2 = not_offered,
};

fi_ops_rma g_no_rma_ops = {
    .size = sizeof(fi_ops_rma),
    .read = not_offered,
    .readv = not_offered,
    .readmsg = not_offered,
    .write = not_offered,
    .writev = not_offered,
    .writemsg = not_offered,
    .inject = not_offered,
    .writedata = not_offered,
    .injectdata = not_offered,
};

fi_ops_atomic g_no_atomic_ops = {
    .size = sizeof(fi_ops_atomic),
    .write = not_offered,
    .writev = not_offered,
    .writemsg = not_offered,
    .inject = not_offered,
    .readwrite = not_offered,
    .readwritev = not_offered,
    .readwritemsg = not_offered,
    .compwrite = not_offered,
    .compwritev = not_offered,
    .compwritemsg = not_offered,
    .writevalid = not_offered,
    .readwritevalid = not_offered,
    .compwritevalid = not_offered,
};

}  // namespace erdma::fabric

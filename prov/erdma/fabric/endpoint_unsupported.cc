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

}  // namespace erdma::fabric

// Machines whose memory is of several nodes (NUMA), each of them near to some of the cores.
#pragma once

#include <cstdint>
#include <vector>

namespace stoker {

// Has this thread, and those that it starts from now on, take new pages of memory from these nodes in turn, so that all of them
// deliver what all cores read. False, and nothing changes, if the system does not do that, or was told otherwise before.
bool take_memory_in_turn(const std::vector<int32_t>& nodes);

}  // namespace stoker

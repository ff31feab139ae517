#include "nodes.hpp"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace stoker {

#if defined(__linux__)

namespace {

// Of <linux/mempolicy.h>, which needs headers of the kernel.
constexpr int kDefault = 0, kInterleave = 3;
constexpr size_t kWordBits = 8 * sizeof(unsigned long), kMostNodes = 1024;

}  // namespace

bool take_memory_in_turn(const std::vector<int32_t>& nodes) {
    unsigned long mask[kMostNodes / kWordBits] = {};
    for (const int32_t node : nodes) {
        if (node < 0 || size_t(node) >= kMostNodes) {
            return false;
        }
        mask[node / kWordBits] |= 1ul << (node % kWordBits);
    }
    int before = kDefault;
    if (syscall(SYS_get_mempolicy, &before, nullptr, 0ul, nullptr, 0ul) != 0 || before != kDefault) {
        return false;  // another program has said where memory is to be taken (numactl)
    }
    return syscall(SYS_set_mempolicy, kInterleave, mask, kMostNodes) == 0;
}

#else

bool take_memory_in_turn(const std::vector<int32_t>&) { return false; }

#endif

}  // namespace stoker

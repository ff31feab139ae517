// Memory between two places that nobody may touch, for tests (tools/sanitize.py guard). What reads or writes behind its last cache
// line ends the process, whatever instruction does it: sanitizers see neither tiles nor masked stores. All bits of it are set
// at first, which is no number for floats: what is read before it is written shows in the results.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace stoker {

constexpr size_t kGuardBytes = size_t(1) << 16;  // the largest page there is

constexpr size_t rounded_up_to(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

//   | kGuardBytes, closed | rest of a page | bytes | kGuardBytes, closed |
inline void* take_guarded(size_t bytes) {
    const size_t inner = rounded_up_to(bytes, kGuardBytes), all = inner + 2 * kGuardBytes;
    void* memory = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw std::bad_alloc();
    }
    auto* open = static_cast<uint8_t*>(memory) + kGuardBytes;
    if (mprotect(open, inner, PROT_READ | PROT_WRITE) != 0) {
        munmap(memory, all);
        throw std::bad_alloc();
    }
    std::memset(open, 0xff, inner);
    return open + inner - rounded_up_to(bytes, 64);
}

inline void give_back_guarded(void* memory, size_t bytes) {
    const size_t inner = rounded_up_to(bytes, kGuardBytes);
    munmap(static_cast<uint8_t*>(memory) + rounded_up_to(bytes, 64) - inner - kGuardBytes, inner + 2 * kGuardBytes);
}

}  // namespace stoker

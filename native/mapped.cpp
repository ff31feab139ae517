#include "mapped.hpp"

#include <sys/mman.h>

#include <new>

#if defined(STOKER_GUARD)
#include "guarded.hpp"
#endif

namespace stoker {

namespace {

#if defined(STOKER_GUARD)
void* take_pages(size_t bytes) { return take_guarded(bytes); }
void give_back_pages(void* memory, size_t bytes) { give_back_guarded(memory, bytes); }
#else
void* take_pages(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw std::bad_alloc();
    }
#if defined(MADV_HUGEPAGE)
    madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: without it, it only takes more misses of the TLB
#endif
    return memory;
}
void give_back_pages(void* memory, size_t bytes) { munmap(memory, bytes); }
#endif

}  // namespace

Mapped::Mapped(size_t bytes)
    : bytes_(bytes), memory_(bytes == 0 ? nullptr : static_cast<uint8_t*>(take_pages(bytes))) {}

Mapped::~Mapped() {
    if (memory_ != nullptr) {
        give_back_pages(memory_, bytes_);
    }
}

}  // namespace stoker

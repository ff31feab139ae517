// Memory for numbers, not set to anything.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "kv.hpp"

namespace stoker {

// Memory on a cache line's border; what fills huge pages lies in them, where the kernel has them.
template <class T> class Buffer {
public:
    explicit Buffer(size_t n = 0)
        : memory_(n ? static_cast<T*>(::operator new(n * sizeof(T), alignment(n))) : nullptr, Free{alignment(n)}) {
        if (alignment(n) == kHuge) {
            prefer_huge_pages(memory_.get(), n * sizeof(T));
        }
    }
    T* get() const { return memory_.get(); }

private:
    static constexpr std::align_val_t kLine{64}, kHuge{2 << 20};
    static constexpr std::align_val_t alignment(size_t n) { return n * sizeof(T) < size_t(kHuge) ? kLine : kHuge; }
    struct Free {
        std::align_val_t alignment;
        void operator()(T* p) const { ::operator delete(p, alignment); }
    };
    std::unique_ptr<T[], Free> memory_;
};

}  // namespace stoker

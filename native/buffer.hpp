// Memory for numbers, not set to anything, on a cache line's border.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace stoker {

// Small pages: of the rows that a large buffer has room for, most steps touch a few, and a huge page would come for the first.
template <class T> class Buffer {
public:
    explicit Buffer(size_t n = 0)
        : memory_(n ? static_cast<T*>(::operator new(n * sizeof(T), kLine)) : nullptr), size_(n) {}
    T* get() const { return memory_.get(); }
    // Grows if it must; then what was in it is lost.
    T* at_least(size_t n) {
        if (size_ < n) {
            *this = Buffer(n);
        }
        return get();
    }

private:
    static constexpr std::align_val_t kLine{64};
    struct Free {
        void operator()(T* p) const { ::operator delete(p, kLine); }
    };
    std::unique_ptr<T[], Free> memory_;
    size_t size_;
};

}  // namespace stoker

// Memory for numbers, not set to anything, on a cache line's border.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#if defined(STOKER_GUARD)
#include "guarded.hpp"
#endif

namespace stoker {

// Small pages: of the rows that a large buffer has room for, most steps touch a few, and a huge page would come for the first.
template <class T> class Buffer {
public:
    explicit Buffer(size_t n = 0)
        : memory_(n ? static_cast<T*>(take(n * sizeof(T))) : nullptr, GiveBack{n * sizeof(T)}), size_(n) {}
    T* get() const { return memory_.get(); }
    // Grows if it must; then what was in it is lost.
    T* at_least(size_t n) {
        if (size_ < n) {
            *this = Buffer(n);
        }
        return get();
    }

private:
#if defined(STOKER_GUARD)
    static void* take(size_t bytes) { return take_guarded(bytes); }
    static void give_back(void* memory, size_t bytes) { give_back_guarded(memory, bytes); }
#else
    static constexpr std::align_val_t kLine{64};
    static void* take(size_t bytes) { return ::operator new(bytes, kLine); }
    static void give_back(void* memory, size_t) { ::operator delete(memory, kLine); }
#endif
    struct GiveBack {
        size_t bytes;
        void operator()(T* memory) const { give_back(memory, bytes); }
    };
    std::unique_ptr<T[], GiveBack> memory_;
    size_t size_;
};

}  // namespace stoker

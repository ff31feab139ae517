// A large piece of memory, zeros at first, of which each page comes when it is first touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stoker {

class Mapped {
public:
    // Throws std::bad_alloc if the address space cannot be had.
    explicit Mapped(size_t bytes);
    ~Mapped();
    Mapped(const Mapped&) = delete;
    Mapped& operator=(const Mapped&) = delete;

    uint8_t* get() const { return memory_; }

private:
    size_t bytes_;
    uint8_t* memory_;
};

}  // namespace stoker

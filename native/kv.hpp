// The memory of the KV cache: equal pages, touched when they are first written. Which page belongs to whom is not known here.
// Layers may differ in their heads; where a layer begins is the same in every page:
//
//   page   | layer 0: its heads | layer 1: its heads | ...        a head: keys | values, see attention.hpp
//
// Where sequences come whole, nothing of a layer is needed any more when the next one begins: all take the same place in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention.hpp"
#include "mapped.hpp"

namespace stoker {

// What a layer keeps of each position; no heads = nothing.
struct KvHeads {
    int32_t count, size;
};

class KvCache {
public:
    // Throws std::bad_alloc if the address space cannot be had.
    KvCache(KvType type, const std::vector<KvHeads>& layers, bool take_turns, int32_t num_pages);

    const KvLayout& layout(int32_t layer) const { return layers_[layer].layout; }
    int32_t num_pages() const { return num_pages_; }
    size_t page_bytes() const { return page_bytes_; }
    uint8_t* page(int32_t page) { return memory_.get() + page * page_bytes_; }
    // The part of page 0 that belongs to a layer's head; at the same place in every page.
    uint8_t* head(int32_t layer, int32_t head) {
        return memory_.get() + layers_[layer].offset + head * layers_[layer].layout.head_bytes();
    }
    void copy_page(int32_t source, int32_t target);
    // Has the memory of pages [first, last) ready before anybody writes to it; what is in it stays as it is. Any thread, at
    // any time. A wish, too.
    void touch(int32_t first, int32_t last);
    // The system may have the memory of pages [first, last), of which nothing is read before it is written again.
    void give_back(int32_t first, int32_t last);
    // Takes positions [first, last) of a page that lies in `data` over, in all layers.
    void import_positions(int32_t page, const uint8_t* data, int32_t first, int32_t last);

private:
    struct Part {
        KvLayout layout;
        size_t offset;  // in a page
        int32_t num_heads;
    };

    static std::vector<Part> parts(KvType type, const std::vector<KvHeads>& layers, bool take_turns);

    const int32_t num_pages_;
    const std::vector<Part> layers_;
    const size_t page_bytes_;
    Mapped memory_;
};

}  // namespace stoker

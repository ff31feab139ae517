// The memory of the KV cache: equal pages, touched when they are first written. Which page belongs to whom is not known here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.hpp"

namespace stoker {

class KvCache {
public:
    // Throws std::bad_alloc if the address space cannot be had.
    KvCache(KvType type, int32_t num_layers, int32_t num_heads, int32_t head_size, int32_t num_pages);
    ~KvCache();
    KvCache(const KvCache&) = delete;
    KvCache& operator=(const KvCache&) = delete;

    const KvLayout& layout() const { return layout_; }
    int32_t num_pages() const { return num_pages_; }
    size_t page_bytes() const { return layout_.page_bytes; }
    uint8_t* page(int32_t page) { return memory_ + page * layout_.page_bytes; }
    // The part of page 0 that belongs to a layer's head; at the same place in every page.
    uint8_t* head(int32_t layer, int32_t head) {
        return memory_ + (size_t(layer) * num_heads_ + head) * layout_.head_bytes();
    }
    void copy_page(int32_t source, int32_t target);
    // Has the memory of pages [first, last) ready before anybody writes to it; what is in it stays as it is. Any thread, at
    // any time. A wish, too.
    void touch(int32_t first, int32_t last);
    // Takes positions [first, last) of a page that lies in `data` over, in all layers.
    void import_positions(int32_t page, const uint8_t* data, int32_t first, int32_t last);

private:
    KvLayout layout_;
    int32_t num_heads_;
    int32_t num_pages_;
    size_t num_planes_;  // in a page
    size_t bytes_;
    uint8_t* memory_;
};

}  // namespace stoker

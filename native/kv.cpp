#include "kv.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "spread.hpp"

namespace stoker {

namespace {

// `runs` runs of 32 elements, one a position: of each, positions [first, last).
void copy_columns(uint8_t* to, const uint8_t* from, size_t runs, size_t element, int32_t first, int32_t last) {
    for (size_t run = 0; run < runs; ++run) {
        const size_t at = (run * kPageTokens + first) * element;
        std::memcpy(to + at, from + at, (last - first) * element);
    }
}

// Of a plane of elements, and of its scales if there are any.
void copy_elements(uint8_t* to, const uint8_t* from, const KvLayout& kv, bool are_keys, int32_t first, int32_t last) {
    const size_t element = kv.type == KvType::f32 ? 4 : kv.type == KvType::f16 ? 2 : 1;
    const bool are_halves = kv.type == KvType::q4 && !are_keys;
    const size_t row = are_halves ? kv.head_size / 2 : kv.head_size * element;
    if (are_keys) {
        copy_columns(to, from, kv.head_size, element, first, last);
    } else {
        std::memcpy(to + first * row, from + first * row, (last - first) * row);
    }
    if (is_spread(kv.type)) {
        const size_t codes = row * kPageTokens, scale = are_halves ? sizeof(uint16_t) : sizeof(float);
        copy_columns(to + codes, from + codes, kv.head_size / kv.group(), scale, first, last);
    }
}

// Of a plane of codes of 16 bits, whole or in bytes that lie apart.
void copy_codes(uint8_t* to, const uint8_t* from, const KvLayout& kv, bool are_keys, int32_t first, int32_t last) {
    const bool whole = kv.type == KvType::i16;
    const size_t head_size = kv.head_size, bytes = 2 * head_size * kPageTokens;
    copy_columns(to + bytes, from + bytes, 1, sizeof(uint16_t), first, last);
    if (are_keys) {
        return copy_columns(to, from, head_size / 2, 4, first, last);
    }
    const int32_t positions = whole ? 2 : 4, element = whole ? 2 : 1;
    for (size_t line = 0; line < bytes; line += 64) {  // of 16 elements and 2 or 4 positions
        const int32_t position = int32_t(line % (32 * kPageTokens) / (whole ? 64 : 128)) * positions;
        for (int32_t i = std::max(first - position, 0); i < std::min(last - position, positions); ++i) {
            for (size_t at = line + i * element; at < line + 64; at += 4) {
                std::memcpy(to + at, from + at, element);
            }
        }
    }
}

}  // namespace

KvCache::KvCache(KvType type, const std::vector<KvHeads>& layers, bool take_turns, int32_t num_pages)
    : num_pages_(num_pages), layers_(parts(type, layers, take_turns)),
      page_bytes_(layers_.front().layout.page_bytes), memory_(page_bytes_ * num_pages) {}

std::vector<KvCache::Part> KvCache::parts(KvType type, const std::vector<KvHeads>& layers, bool take_turns) {
    std::vector<Part> found;
    size_t page_bytes = 0;
    for (const KvHeads& heads : layers) {
        const KvLayout layout = {type, heads.size, 0};
        const size_t begin = take_turns ? 0 : page_bytes;
        found.push_back({layout, begin, heads.count});
        page_bytes = std::max(page_bytes, begin + heads.count * layout.head_bytes());
    }
    for (Part& part : found) {
        part.layout.page_bytes = page_bytes;
    }
    return found;
}

void KvCache::touch([[maybe_unused]] int32_t first, [[maybe_unused]] int32_t last) {
#if defined(MADV_POPULATE_WRITE)
    constexpr size_t kSystemPage = size_t(1) << 16;  // the largest there is
    const size_t begin = first * page_bytes() / kSystemPage * kSystemPage;
    madvise(memory_.get() + begin, last * page_bytes() - begin, MADV_POPULATE_WRITE);
#endif
}

void KvCache::give_back(int32_t first, int32_t last) {
    const size_t system_page = sysconf(_SC_PAGESIZE);
    const size_t begin = (first * page_bytes() + system_page - 1) / system_page * system_page;
    const size_t end = last * page_bytes() / system_page * system_page;
    if (begin < end) {
        madvise(memory_.get() + begin, end - begin, MADV_DONTNEED);
    }
}

void KvCache::copy_page(int32_t source, int32_t target) { std::memcpy(page(target), page(source), page_bytes()); }

void KvCache::import_positions(int32_t page, const uint8_t* data, int32_t first, int32_t last) {
    uint8_t* to = this->page(page);
    if (last - first == kPageTokens) {
        std::memcpy(to, data, page_bytes());
        return;
    }
    for (const Part& part : layers_) {
        const KvLayout& layout = part.layout;
        to = this->page(page) + part.offset;
        const uint8_t* from = data + part.offset;
        for (int32_t plane = 0; plane < 2 * part.num_heads; ++plane) {
            const bool are_keys = plane % 2 == 0;
            if (is_coded(layout.type)) {
                copy_codes(to, from, layout, are_keys, first, last);
            } else {
                copy_elements(to, from, layout, are_keys, first, last);
            }
            to += are_keys ? layout.key_bytes() : layout.value_bytes();
            from += are_keys ? layout.key_bytes() : layout.value_bytes();
        }
    }
}

}  // namespace stoker

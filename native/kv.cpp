#include "kv.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace stoker {

namespace {

// `runs` runs of 32 elements, one a position: of each, positions [first, last).
void copy_columns(uint8_t* to, const uint8_t* from, size_t runs, size_t element, int32_t first, int32_t last) {
    for (size_t run = 0; run < runs; ++run) {
        const size_t at = (run * kPageTokens + first) * element;
        std::memcpy(to + at, from + at, (last - first) * element);
    }
}

// Of a plane of floats.
void copy_elements(uint8_t* to, const uint8_t* from, const KvLayout& kv, bool are_keys, int32_t first, int32_t last) {
    const size_t element = kv.type == KvType::f32 ? 4 : 2, row = kv.head_size * element;
    if (are_keys) {
        copy_columns(to, from, kv.head_size, element, first, last);
    } else {
        std::memcpy(to + first * row, from + first * row, (last - first) * row);
    }
}

// Lines of 64 bytes hold 16 elements of a few values, `element` bytes each; so do `planes` lines that follow each other.
void copy_lines(uint8_t* to, const uint8_t* from, size_t bytes, int32_t planes, int32_t element, int32_t first, int32_t last) {
    const int32_t positions = 4 / element;
    for (size_t line = 0; line < bytes; line += 64) {
        const int32_t position = int32_t(line / 64 / planes % (kPageTokens / positions)) * positions;
        for (int32_t i = std::max(first - position, 0); i < std::min(last - position, positions); ++i) {
            for (size_t at = line + i * element; at < line + 64; at += 4) {
                std::memcpy(to + at, from + at, element);
            }
        }
    }
}

// Of a plane of codes, and of its scales.
void copy_codes(uint8_t* to, const uint8_t* from, const KvLayout& kv, bool are_keys, int32_t first, int32_t last) {
    const size_t numbers = size_t(kv.head_size) * kPageTokens;
    const bool are_halves = kv.type == KvType::q4 && !are_keys, are_grouped = is_grouped(kv.type);
    const size_t bytes = are_halves ? kv.half_bytes() : are_grouped ? numbers : 2 * numbers;
    if (are_keys) {
        copy_columns(to, from, bytes / (4 * kPageTokens), 4, first, last);
    } else {
        copy_lines(to, from, bytes, kv.type == KvType::q16 ? 2 : 1, kv.type == KvType::i16 ? 2 : 1, first, last);
    }
    const size_t scale = are_grouped && !are_halves ? sizeof(float) : sizeof(uint16_t);
    copy_columns(to + bytes, from + bytes, are_grouped ? kv.head_size / kv.group() : 1, scale, first, last);
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
    if (page_bytes() == 0) {  // no layer has attention
        return;
    }
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
            const bool are_codes = is_coded(layout.type) || is_grouped(layout.type);
            (are_codes ? copy_codes : copy_elements)(to, from, layout, are_keys, first, last);
            to += are_keys ? layout.key_bytes() : layout.value_bytes();
            from += are_keys ? layout.key_bytes() : layout.value_bytes();
        }
    }
}

}  // namespace stoker

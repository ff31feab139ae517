#include "states.hpp"

#include <cstring>
#include <numeric>

namespace stoker {

States::States(const std::vector<size_t>& layer_floats, int32_t num_slots)
    : slot_floats_(std::accumulate(layer_floats.begin(), layer_floats.end(), size_t(0))),
      lengths_(slot_floats_ > 0 ? num_slots : 0), memory_(slot_floats_ * sizeof(float) * num_slots) {
    size_t offset = 0;
    for (const size_t floats : layer_floats) {
        offsets_.push_back(offset);
        offset += floats;
    }
}

void States::export_state(int32_t slot, uint8_t* to) { std::memcpy(to, of(slot), slot_bytes()); }

void States::import_state(int32_t slot, const uint8_t* from, int32_t length) {
    std::memcpy(of(slot), from, slot_bytes());
    lengths_[slot] = length;
}

}  // namespace stoker

#include "states.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace stoker {

States::States(const std::vector<size_t>& layer_floats, int32_t num_slots)
    : floats_(std::accumulate(layer_floats.begin(), layer_floats.end(), size_t(0))), slots_(floats_ > 0 ? num_slots : 0),
      memory_(2 * floats_ * sizeof(float) * slots_.size()) {
    size_t offset = 0;
    for (const size_t floats : layer_floats) {
        offsets_.push_back(offset);
        offset += floats;
    }
}

void States::keep(const std::vector<std::pair<int32_t, int32_t>>& rows_of_slots) {
    for (Slot& slot : slots_) {
        slot.kept_rows = -1;
    }
    for (const auto& [slot, rows] : rows_of_slots) {
        require(slot >= 0 && slot < num_slots() && rows >= 0, "no such slot, or rows");
        slots_[slot].kept_rows = rows;
    }
}

void States::begin(const Chunk& chunk) {
    Slot& slot = slots_[chunk.slot];
    slot.settled = slot.present;
    slot.length = slot.kept_length = -1;
}

int32_t States::settled_rows(const Chunk& chunk) const {
    const int32_t kept = slots_[chunk.slot].kept_rows;
    return kept < 0 ? chunk.length : std::min(kept, chunk.length);
}

void States::end(const Chunk& chunk) {
    Slot& slot = slots_[chunk.slot];
    if (const int32_t settled = settled_rows(chunk); settled < chunk.length) {
        slot.kept_length = chunk.start + settled;
        slot.present = 1 - slot.settled;
    }
    slot.length = chunk.start + chunk.length;
    slot.kept_rows = -1;
}

void States::roll_back(int32_t index) {
    Slot& slot = slots_[index];
    require(slot.kept_length >= 0, "no state was kept");
    slot.present = 1 - slot.present;
    slot.length = slot.kept_length;
    slot.kept_length = -1;
}

void States::copy(int32_t source, int32_t target) {
    require(source != target && slots_[source].length >= 0, "there is no state to copy");
    import_state(target, reinterpret_cast<const uint8_t*>(of(source, slots_[source].present)), slots_[source].length);
}

void States::export_state(int32_t slot, uint8_t* to) { std::memcpy(to, of(slot, slots_[slot].present), state_bytes()); }

void States::import_state(int32_t slot, const uint8_t* from, int32_t length) {
    std::memcpy(of(slot, slots_[slot].present), from, state_bytes());
    slots_[slot].length = length;
    slots_[slot].kept_length = -1;
}

}  // namespace stoker

// What recurrent layers keep of each sequence: a state of one size, however long the sequence is. A slot has two, whose memory
// comes when it is first written. One is that of its end. A pass may leave the other as it was somewhere in the slot's chunk, so
// that what follows there can be cut off again. At any other length a state is not to be had: it goes on, or begins anew.
//
//   slot   | one state | the other |        state   | layer 0: its floats | layer 1: its floats | ...   attention has none
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "mapped.hpp"
#include "spec.hpp"

namespace stoker {

class States {
public:
    // Throws std::bad_alloc if the address space cannot be had.
    States(const std::vector<size_t>& layer_floats, int32_t num_slots);

    bool are_needed() const { return floats_ > 0; }
    int32_t num_slots() const { return int32_t(slots_.size()); }
    size_t state_bytes() const { return floats_ * sizeof(float); }
    // Positions that a slot's state has seen; -1 = it is no state, because a pass has not ended.
    int32_t length(int32_t slot) const { return slots_[slot].length; }

    // Of the next pass: after so many rows of each slot's chunk its state stays as it is, and the other one goes on.
    void keep(const std::vector<std::pair<int32_t, int32_t>>& rows_of_slots);
    void begin(const Chunk& chunk);
    void end(const Chunk& chunk);
    // During a pass: rows of the slot's chunk after which its state is kept; all of them if it is not.
    int32_t settled_rows(const Chunk& chunk) const;
    // The state that the settled rows change, and the one that goes on with the others.
    float* settled(int32_t slot, int32_t layer) { return of(slot, slots_[slot].settled) + offsets_[layer]; }
    float* going_on(int32_t slot, int32_t layer) { return of(slot, 1 - slots_[slot].settled) + offsets_[layer]; }

    // Back to what the last pass of this slot has kept. Throws std::invalid_argument if that was nothing.
    void roll_back(int32_t slot);

    // The target has the source's state from now on. Throws std::invalid_argument if the source has none.
    void copy(int32_t source, int32_t target);
    void export_state(int32_t slot, uint8_t* to);
    void import_state(int32_t slot, const uint8_t* from, int32_t length);

private:
    struct Slot {
        int32_t length = 0;
        int32_t kept_length = -1;  // of the other state
        int32_t kept_rows = -1;    // of the next pass
        int32_t present = 0, settled = 0;
    };

    float* of(int32_t slot, int32_t which) {
        return reinterpret_cast<float*>(memory_.get()) + (2 * size_t(slot) + which) * floats_;
    }

    std::vector<size_t> offsets_;
    size_t floats_ = 0;
    std::vector<Slot> slots_;
    Mapped memory_;
};

}  // namespace stoker

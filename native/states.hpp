// What recurrent layers keep of each sequence: a state of one size, however long the sequence is. A slot has one, whose memory comes
// when it is first written. A state cannot be cut back: it is of one length, and goes on from there or begins anew.
//
//   slot   | layer 0: its floats | layer 1: its floats | ...        layers that attend have none
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mapped.hpp"

namespace stoker {

class States {
public:
    // Throws std::bad_alloc if the address space cannot be had.
    States(const std::vector<size_t>& layer_floats, int32_t num_slots);

    bool are_needed() const { return slot_floats_ > 0; }
    int32_t num_slots() const { return int32_t(lengths_.size()); }
    size_t slot_bytes() const { return slot_floats_ * sizeof(float); }
    float* layer(int32_t slot, int32_t layer) { return of(slot) + offsets_[layer]; }
    // Positions that a slot's state has seen; -1 = it is no state, because a pass has not ended.
    int32_t length(int32_t slot) const { return lengths_[slot]; }
    void set_length(int32_t slot, int32_t length) { lengths_[slot] = length; }

    void export_state(int32_t slot, uint8_t* to);
    void import_state(int32_t slot, const uint8_t* from, int32_t length);

private:
    float* of(int32_t slot) { return reinterpret_cast<float*>(memory_.get()) + slot * slot_floats_; }

    std::vector<size_t> offsets_;
    size_t slot_floats_ = 0;
    std::vector<int32_t> lengths_;
    Mapped memory_;
};

}  // namespace stoker

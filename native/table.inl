// The table of this instruction set: everything the .inl files before it defined.

#include "math.inl"
#include "rows.inl"
#include "attention.inl"
#include "attention_codes.inl"
#include "attention_q16.inl"
#include "attention_i16.inl"
#include "attention_groups.inl"
#include "attention_write.inl"
#include "attention_table.inl"
#include "recurrent.inl"
#include "sampling.inl"
#include "adapters.inl"

namespace stoker {

#define STOKER_NAME(isa) #isa
#define STOKER_NAME_OF(isa) STOKER_NAME(isa)
#define STOKER_TABLE(isa) isa##_kernels
#define STOKER_TABLE_OF(isa) STOKER_TABLE(isa)

// Only for who has asked the CPU: nothing of this instruction set may run before, not even to fill a table.
const Kernels& STOKER_TABLE_OF(STOKER_ISA)();
const Kernels& STOKER_TABLE_OF(STOKER_ISA)() {
    static constexpr Kernels table = {
        .name = STOKER_NAME_OF(STOKER_ISA),
        .quantize = STOKER_ISA::quantize,
        .matmul = STOKER_ISA::matmul,
        .matmul_scratch_bytes = STOKER_ISA::matmul_scratch_bytes,
        .unpack_row = STOKER_ISA::unpack_row,
        .rows = &STOKER_ISA::kRowKernels,
        .attention = &STOKER_ISA::kAttentionKernels,
        .recurrent = &STOKER_ISA::kRecurrentKernels,
        .sampling = &STOKER_ISA::kSamplingKernels,
        .adapters = &STOKER_ISA::kAdapterKernels,
    };
    return table;
}

}  // namespace stoker

// Asking the CPU what it has, and choosing a table of kernels by that.
#include "cpu.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace stoker {

// STOKER_TABLES, from CMakeLists.txt: X(scalar) X(avx2) ..., what is in this build, slowest first.
#define X(isa) const Kernels& isa##_kernels();
STOKER_TABLES
#undef X

namespace {

struct Features {
    bool scalar = true, avx2 = false, avxvnni = false, avx512 = false, amx = false, neon = false, dotprod = false, i8mm = false;
};

#if defined(__x86_64__)

struct Registers {
    unsigned a, b, c, d;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
    Registers r = {};
    __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
    return r;
}

// Which register files the operating system saves.
uint64_t saved_state() {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}

// Linux gives a process the tile registers (8 KB a thread) only if it asks.
[[maybe_unused]] bool request_tiles() {
#if defined(__linux__)
    constexpr long arch_req_xcomp_perm = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, arch_req_xcomp_perm, tile_data) == 0;
#else
    return false;
#endif
}

Features detect() {
    const auto all = [](unsigned reg, std::initializer_list<int> bits) {
        bool out = true;
        for (const int bit : bits) {
            out = out && (reg >> bit & 1);
        }
        return out;
    };
    Features f;
    const Registers base = cpuid(1, 0), seven = cpuid(7, 0), seven1 = cpuid(7, 1);
    if (!all(base.c, {12, 27, 28, 29})) {  // FMA, OSXSAVE, AVX, F16C
        return f;
    }
    const uint64_t saved = saved_state();
    f.avx2 = (saved & 0x6) == 0x6 && all(seven.b, {5, 8});  // AVX2, BMI2
    f.avxvnni = f.avx2 && all(seven1.a, {4});
    f.avx512 = f.avx2 && (saved & 0xe6) == 0xe6 && all(seven.b, {16, 17, 30, 31}) && all(seven.c, {11});  // F DQ BW VL, VNNI
#if defined(STOKER_SOFTWARE_TILES)
    f.amx = f.avx512;
#else
    f.amx = f.avx512 && (saved & 0x60000) == 0x60000 && all(seven.d, {24, 25}) && request_tiles();  // TILE, INT8
#endif
    return f;
}

#elif defined(__aarch64__) && defined(__linux__)

Features detect() {
    Features f;
    f.neon = true;  // part of the architecture
    f.dotprod = getauxval(AT_HWCAP) >> 20 & 1;             // ASIMDDP
    f.i8mm = f.dotprod && (getauxval(AT_HWCAP2) >> 13 & 1);  // I8MM
    return f;
}

#elif defined(__aarch64__) && defined(__APPLE__)

Features detect() {
    const auto has = [](const char* name) {
        int32_t value = 0;
        size_t size = sizeof(value);
        return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
    };
    Features f;
    f.neon = true;
    f.dotprod = has("hw.optional.arm.FEAT_DotProd");
    f.i8mm = f.dotprod && has("hw.optional.arm.FEAT_I8MM");
    return f;
}

#else

Features detect() { return {}; }

#endif

std::vector<const Kernels*> list_available() {
    const Features here = detect();
    std::vector<const Kernels*> out;
#define X(isa)                           \
    if (here.isa) {                      \
        out.push_back(&isa##_kernels()); \
    }
    STOKER_TABLES
#undef X
    return out;
}

// nullptr if this build or this CPU lacks them.
const Kernels* kernels_named(std::string_view name) {
    const auto& all = available_kernels();
    const auto found = std::ranges::find(all, name, &Kernels::name);
    return found == all.end() ? nullptr : *found;
}

}  // namespace

const std::vector<const Kernels*>& available_kernels() {
    static const std::vector<const Kernels*> tables = list_available();
    return tables;
}

const Kernels& best_kernels() {
    const char* wanted = std::getenv("STOKER_NATIVE_KERNELS");
    if (wanted == nullptr || *wanted == 0) {
        return *available_kernels().back();
    }
    if (const Kernels* table = kernels_named(wanted)) {
        return *table;
    }
    std::string message = "STOKER_NATIVE_KERNELS is '" + std::string(wanted) + "', but this CPU and this build have:";
    for (const Kernels* each : available_kernels()) {
        message += std::string(" ") + each->name;
    }
    throw std::runtime_error(message);
}

const Kernels& kernels_or_best(std::string_view name) {
    const Kernels* table = name.empty() ? &best_kernels() : kernels_named(name);
    if (table == nullptr) {
        throw std::invalid_argument("no such kernels on this CPU");
    }
    return *table;
}

}  // namespace stoker

#include "pool.hpp"

#include <unistd.h>

#include <chrono>
#include <stdexcept>

namespace stoker {

namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPieceBits = 24;
constexpr uint64_t kPieceMask = (uint64_t(1) << kPieceBits) - 1;

int32_t stage_of(uint64_t ticket) { return int32_t(ticket >> (2 * kPieceBits)); }
int32_t num_pieces_of(uint64_t ticket) { return int32_t(ticket >> kPieceBits & kPieceMask); }
int32_t next_piece_of(uint64_t ticket) { return int32_t(ticket & kPieceMask); }

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int32_t num_threads) : num_threads_(num_threads), owner_(getpid()) {
    try {
        for (int32_t thread = 1; thread < num_threads; ++thread) {
            threads_.emplace_back([this, thread] { serve(thread); });
        }
    } catch (...) {
        close();
        throw;
    }
}

Pool::~Pool() { close(); }

void Pool::close() {
    ticket_.store(kClosed, std::memory_order_release);
    version_.fetch_add(1, std::memory_order_release);
    version_.notify_all();
    for (std::thread& thread : threads_) {
        owner_ == getpid() ? thread.join() : thread.detach();
    }
}

void Pool::serve(int32_t thread) {
    for (;;) {
        const uint64_t ticket = work(thread);
        if (ticket == kClosed) {
            return;
        }
        wait_behind(ticket);
    }
}

void Pool::run(Program& program) {
    if (owner_ != getpid()) {
        throw std::runtime_error("a model cannot be used in a forked process: its threads stayed in the parent");
    }
    program_ = &program;
    begin_stage(0);
    for (uint64_t ticket; (ticket = work(0)) != kIdle;) {
        wait_behind(ticket);
    }
}

uint64_t Pool::work(int32_t thread) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (next_piece_of(ticket) < num_pieces_of(ticket)) {
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire)) {
            continue;
        }
        program_->compute(stage_of(ticket), next_piece_of(ticket), thread);
        if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(num_pieces_of(ticket))) {
            begin_stage(stage_of(ticket) + 1);
        }
        ticket = ticket_.load(std::memory_order_acquire);
    }
    return ticket;
}

// The first stage from `stage` on that has pieces. Only one thread is here at a time, and nobody holds a piece.
void Pool::begin_stage(int32_t stage) {
    const int32_t num_stages = program_->num_stages();
    while (stage < num_stages && program_->num_pieces(stage) == 0) {
        ++stage;
    }
    num_done_.store(0, std::memory_order_relaxed);
    const uint64_t ticket = uint64_t(stage) << (2 * kPieceBits);
    ticket_.store(stage < num_stages ? ticket | uint64_t(program_->num_pieces(stage)) << kPieceBits : kIdle,
                  std::memory_order_release);
    version_.fetch_add(1, std::memory_order_release);
    version_.notify_all();
}

void Pool::wait_behind(uint64_t ticket) const {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 16; ++i) {
            if (ticket_.load(std::memory_order_acquire) != ticket) {
                return;
            }
            pause();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    const uint32_t version = version_.load(std::memory_order_acquire);
    if (ticket_.load(std::memory_order_acquire) == ticket) {
        version_.wait(version, std::memory_order_acquire);
    }
}

}  // namespace stoker

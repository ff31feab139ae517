#include "pool.hpp"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <utility>

namespace stoker {

namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kNap = std::chrono::milliseconds(1);  // without a seat: one that is free between two passes is not worth taking
constexpr int kPieceBits = 24;
constexpr uint64_t kPieceMask = (uint64_t(1) << kPieceBits) - 1;

int32_t stage_of(uint64_t ticket) { return int32_t(ticket >> (2 * kPieceBits)); }
int32_t num_pieces_of(uint64_t ticket) { return int32_t(ticket >> kPieceBits & kPieceMask); }
int32_t num_taken_of(uint64_t ticket) { return int32_t(ticket & kPieceMask); }
bool has_pieces(uint64_t ticket) { return num_taken_of(ticket) < num_pieces_of(ticket); }

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int32_t num_threads, SharedCores* cores, std::vector<int32_t> cpus)
    : cores_(cores), cpus_(std::move(cpus)), owner_(getpid()), num_threads_(num_threads),
      next_(std::make_unique<Next[]>(num_threads)) {
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

// Where the system knows no such thing, or does not allow it, the thread moves as before.
void Pool::stay_at([[maybe_unused]] int32_t place) const {
#if defined(__linux__)
    thread_local int32_t last = -1;
    if (place < 0 || size_t(place) >= cpus_.size() || cpus_[place] == last) {
        return;
    }
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpus_[place], &only);
    pthread_setaffinity_np(pthread_self(), sizeof(only), &only);
    last = cpus_[place];
#endif
}

void Pool::serve(int32_t thread) {
    Seat seat(cores_);
    for (uint64_t ticket; (ticket = ticket_.load(std::memory_order_acquire)) != kClosed;) {
        if (!has_pieces(ticket)) {
            wait_behind(ticket, thread, seat);
        } else if (seat.try_acquire()) {
            stay_at(seat.place(thread));
            work(thread, seat);
        } else {
            std::this_thread::sleep_for(kNap);
        }
    }
}

void Pool::run(Program& program) {
    if (owner_ != getpid()) {
        throw std::runtime_error("a model cannot be used in a forked process: its threads stayed in the parent");
    }
    Seat seat(cores_);
    seat.acquire();
    stay_at(seat.place(0));
    program_ = &program;
    begin_stage(0);
    for (uint64_t ticket; (ticket = work(0, seat)) != kIdle;) {
        wait_behind(ticket, 0, seat);
    }
}

uint64_t Pool::work(int32_t thread, Seat& seat) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (has_pieces(ticket) && !(thread != 0 && seat.yield())) {
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acquire)) {
            continue;
        }
        program_->compute(stage_of(ticket), take_piece(num_pieces_of(ticket), thread), thread);
        if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(num_pieces_of(ticket))) {
            begin_stage(stage_of(ticket) + 1);
        }
        ticket = ticket_.load(std::memory_order_acquire);
    }
    return ticket;
}

int32_t Pool::take_piece(int32_t num_pieces, int32_t thread) {
    for (int32_t owner = thread;; owner = (owner + 1) % num_threads_) {
        const int32_t end = first_piece(num_pieces, owner + 1, num_threads_);
        std::atomic<int32_t>& next = next_[owner].piece;
        if (next.load(std::memory_order_relaxed) < end) {
            const int32_t piece = next.fetch_add(1, std::memory_order_relaxed);
            if (piece < end) {
                return piece;
            }
        }
    }
}

// The first stage from `stage` on that has pieces. Only one thread is here at a time, and nobody holds a piece.
void Pool::begin_stage(int32_t stage) {
    const int32_t num_stages = program_->num_stages();
    while (stage < num_stages && program_->num_pieces(stage) == 0) {
        ++stage;
    }
    num_done_.store(0, std::memory_order_relaxed);
    uint64_t ticket = kIdle;
    if (stage < num_stages) {
        const int32_t num_pieces = program_->num_pieces(stage);
        for (int32_t thread = 0; thread < num_threads_; ++thread) {
            next_[thread].piece.store(first_piece(num_pieces, thread, num_threads_), std::memory_order_relaxed);
        }
        ticket = uint64_t(stage) << (2 * kPieceBits) | uint64_t(num_pieces) << kPieceBits;
    }
    ticket_.store(ticket, std::memory_order_release);
    version_.fetch_add(1, std::memory_order_release);
    version_.notify_all();
}

void Pool::wait_behind(uint64_t ticket, int32_t thread, Seat& seat) const {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    while (seat.is_taken() && std::chrono::steady_clock::now() < deadline && !(thread != 0 && seat.yield())) {
        for (int i = 0; i < 16; ++i) {
            if (ticket_.load(std::memory_order_acquire) != ticket) {
                return;
            }
            pause();
        }
    }
    if (thread != 0) {
        seat.release();
    }
    const uint32_t version = version_.load(std::memory_order_acquire);
    if (ticket_.load(std::memory_order_acquire) == ticket) {
        version_.wait(version, std::memory_order_acquire);
    }
}

}  // namespace stoker

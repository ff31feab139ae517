#include "pool.hpp"

#include <unistd.h>

#include <chrono>
#include <stdexcept>

namespace stoker {

namespace {

constexpr auto kSpin = std::chrono::microseconds(30);

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Returns when `value` is no longer `old`.
void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 16; ++i) {
            if (value.load(std::memory_order_acquire) != old) {
                return;
            }
            pause();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    value.wait(old, std::memory_order_acquire);
}

}  // namespace

Pool::Pool(int num_threads) : num_threads_(num_threads), owner_(getpid()) {
    try {
        for (int thread = 1; thread < num_threads; ++thread) {
            threads_.emplace_back([this, thread] { serve(thread); });
        }
    } catch (...) {
        close();
        throw;
    }
}

Pool::~Pool() { close(); }

void Pool::close() {
    is_closing_ = true;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (std::thread& thread : threads_) {
        owner_ == getpid() ? thread.join() : thread.detach();
    }
}

void Pool::serve(int thread) {
    for (uint32_t seen = 0;; ++seen) {
        wait_for_change(round_, seen);
        if (is_closing_) {
            return;
        }
        work_(argument_, thread);
        barrier();
    }
}

void Pool::start(Work work, void* argument) {
    if (owner_ != getpid()) {
        throw std::runtime_error("a model cannot be used in a forked process: its threads stayed in the parent");
    }
    work_ = work;
    argument_ = argument;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    work(argument, 0);
    barrier();
}

void Pool::barrier() {
    const uint32_t before = passed_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < uint32_t(num_threads_)) {
        wait_for_change(passed_, before);
        return;
    }
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    passed_.fetch_add(1, std::memory_order_release);
    passed_.notify_all();
}

}  // namespace stoker

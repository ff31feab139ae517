#include "pool.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace stoker {

namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kNap = std::chrono::milliseconds(1);  // without a seat: one that is free between two passes is not worth taking
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
      ranges_(std::make_unique<Range[]>(num_threads)) {
    for (int32_t below = kFanIn; levels_.empty() || below / kFanIn < num_threads; below *= kFanIn) {
        levels_.push_back({below, std::make_unique<Group[]>((num_threads + below - 1) / below)});
    }
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
    open(kClosed);
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
    uint64_t seen = 0;  // the last ticket of which nothing is left
    for (uint64_t ticket; uint64_t(num_pieces_of(ticket = ticket_.load(std::memory_order_acquire))) != kClosed;) {
        if (num_pieces_of(ticket) == 0 || ticket == seen) {
            wait_behind(ticket, thread, seat);
        } else if (seat.try_acquire()) {
            stay_at(seat.place(thread));
            seen = work(thread, ticket, seat) ? ticket : seen;
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
    for (uint64_t ticket; num_pieces_of(ticket = ticket_.load(std::memory_order_acquire)) != 0;) {
        work(0, ticket, seat);
        wait_behind(ticket, 0, seat);
    }
}

bool Pool::work(int32_t thread, uint64_t ticket, Seat& seat) {
    for (int32_t owner = thread;;) {
        if (thread != 0 && seat.yield()) {
            return false;
        }
        const int32_t piece = take(thread, owner, ticket);
        if (piece >= 0) {
            ranges_[thread].num_stolen += owner != thread;
            program_->compute(stage_, piece, thread);
            finish(thread, owner, ticket);
            continue;
        }
        owner = next_owner(thread, owner, ticket);
        if (owner == thread || ticket_.load(std::memory_order_relaxed) != ticket) {
            return true;
        }
    }
}

// A range of which something is left has begun, or begins now, with the newest stage. So what a late thread has read cannot be
// mistaken: if its stage is over, all ranges are of it or of a later one.
int32_t Pool::take(int32_t thread, int32_t owner, uint64_t ticket) {
    const uint64_t stage = ticket & ~kPieceMask;
    const int32_t first = first_of(owner, ticket), end = first_of(owner + 1, ticket);
    std::atomic<uint64_t>& next = ranges_[owner].next;
    uint64_t found = next.load(std::memory_order_relaxed);
    for (int32_t piece = first; first < end && (found & ~kPieceMask) <= stage;) {
        piece = (found & ~kPieceMask) == stage ? int32_t(found & kPieceMask) : first;
        if (piece >= end) {
            break;
        }
        if (next.compare_exchange_weak(found, stage | uint64_t(piece + 1), std::memory_order_relaxed)) {
            if (piece + 1 == end) {
                levels_[0].groups[owner / kFanIn].taken_and_done.fetch_add(uint64_t(end - first) << 32, std::memory_order_relaxed);
                ++ranges_[thread].num_shared_writes;
            }
            return piece;
        }
    }
    return -1;
}

// First the others of its own group, then those of the groups behind it in which something is left.
int32_t Pool::next_owner(int32_t thread, int32_t owner, uint64_t ticket) const {
    const int32_t own = thread / kFanIn, num_groups = (num_threads_ + kFanIn - 1) / kFanIn;
    int32_t group = owner / kFanIn;
    const auto size = [&](int32_t g) { return std::min(kFanIn, num_threads_ - g * kFanIn); };
    const auto begin = [&](int32_t g) { return g * kFanIn + thread % kFanIn % size(g); };
    owner = group * kFanIn + (owner % kFanIn + 1) % size(group);
    while (owner == begin(group)) {  // all of the group are seen
        group = (group + 1) % num_groups;
        owner = begin(group);
        const uint64_t taken = levels_[0].groups[group].taken_and_done.load(std::memory_order_relaxed) >> 32;
        if (group == own || int64_t(taken) < pieces_below(levels_[0], group, ticket)) {
            break;
        }
    }
    return owner;
}

void Pool::finish(int32_t thread, int32_t owner, uint64_t ticket) {
    const int32_t size = first_of(owner + 1, ticket) - first_of(owner, ticket);
    std::atomic<int32_t>& num_done = ranges_[owner].num_done;
    if (num_done.fetch_add(1, std::memory_order_acq_rel) + 1 < size) {
        return;
    }
    num_done.store(0, std::memory_order_relaxed);  // until the next stage opens, no thread has this range
    int64_t done = size;
    for (const Level& level : levels_) {
        const int32_t group = owner / level.num_threads;
        std::atomic<uint64_t>& all = level.groups[group].taken_and_done;
        ++ranges_[thread].num_shared_writes;
        const uint64_t sum = all.fetch_add(uint64_t(done), std::memory_order_acq_rel) + uint64_t(done);
        const int64_t expected = pieces_below(level, group, ticket);
        if (int64_t(sum & 0xffffffff) < expected) {
            return;
        }
        all.store(0, std::memory_order_relaxed);
        done = expected;
    }
    begin_stage(stage_ + 1);
}

// The first stage from `stage` on that has pieces. Only one thread is here at a time, and no piece is held.
void Pool::begin_stage(int32_t stage) {
    const int32_t num_stages = program_->num_stages();
    while (stage < num_stages && program_->num_pieces(stage) == 0) {
        ++stage;
    }
    stage_ = stage;
    open(stage < num_stages ? program_->num_pieces(stage) : 0);
}

void Pool::open(uint64_t num_pieces) {
    ++num_opened_;
    const uint64_t before = ticket_.load(std::memory_order_relaxed) & ~kPieceMask;
    ticket_.store((before + kPieceMask + 1) | num_pieces, std::memory_order_release);
    version_.fetch_add(1, std::memory_order_release);
    version_.notify_all();
}

Pool::Counts Pool::counts() const {
    Counts all = {num_opened_, 2 * num_opened_, 0};
    for (int32_t thread = 0; thread < num_threads_; ++thread) {
        all.num_shared_writes += ranges_[thread].num_shared_writes;
        all.num_stolen += ranges_[thread].num_stolen;
    }
    return all;
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

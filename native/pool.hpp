// A few threads that work on the stages of one computation together. A stage is a number of pieces that anyone may take;
// the next stage begins when all of them are done, not when all threads have come: a thread that was held up (a server
// shares its cores) finds the others further on and joins them there.
//
//   ticket   | stage | number of pieces | taken |      one word: who advances it has a piece of the stage that it says
//
// Which one: each thread has a range of consecutive pieces, so that the memory it reads is consecutive, too; who has none left
// takes another's.
//
// Between stages threads spin briefly, because a stage lasts microseconds, then sleep. Where several processes share the
// cores (cores.hpp), a thread without a seat does neither: it sleeps until there is one for it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "cores.hpp"

namespace stoker {

// At most 65,534 stages of at most 2^24 - 1 pieces; a stage may have none.
class Program {
public:
    virtual int32_t num_stages() const = 0;
    virtual int32_t num_pieces(int32_t stage) const = 0;
    // Must not throw. What earlier stages wrote is visible; pieces of one stage are computed at the same time.
    virtual void compute(int32_t stage, int32_t piece, int32_t thread) = 0;

protected:
    ~Program() = default;
};

class Pool {
public:
    // `cores`: nullptr if they are not shared; must outlive this. `cpus`: where the thread on each seat is to stay, or of each
    // number if nothing is shared, the caller of `run` first; or empty.
    Pool(int32_t num_threads, SharedCores* cores, std::vector<int32_t> cpus);
    ~Pool();  // joins
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // Returns when all stages are done; the caller is thread 0. Afterwards no thread touches the program any more.
    // Throws std::runtime_error in a forked child, where the other threads do not exist.
    void run(Program& program);

    // Where a thread's range begins; that of the one after the last is `num_pieces`.
    static int32_t first_piece(int32_t num_pieces, int32_t thread, int32_t num_threads) {
        return int32_t(int64_t(num_pieces) * thread / num_threads);
    }

private:
    struct alignas(64) Next {
        std::atomic<int32_t> piece{0};
    };

    static constexpr uint64_t kIdle = uint64_t(0xffff) << 48;  // a stage without pieces
    static constexpr uint64_t kClosed = kIdle + 1;

    void serve(int32_t thread);
    void close();
    void stay_at(int32_t place) const;
    // Takes and computes pieces until the ticket is exhausted, or a helper's seat is wanted, and returns the ticket.
    uint64_t work(int32_t thread, Seat& seat);
    // For who advanced the ticket.
    int32_t take_piece(int32_t num_pieces, int32_t thread);
    void begin_stage(int32_t stage);
    // The caller keeps its seat; a helper does not sleep with one.
    void wait_behind(uint64_t ticket, int32_t thread, Seat& seat) const;

    SharedCores* const cores_;
    const std::vector<int32_t> cpus_;
    const pid_t owner_;
    const int32_t num_threads_;
    const std::unique_ptr<Next[]> next_;  // of each thread's range
    Program* program_ = nullptr;  // to be read only by who holds a piece
    std::vector<std::thread> threads_;
    // Each on a cache line of its own: they change at different times.
    alignas(64) std::atomic<uint64_t> ticket_{kIdle};
    alignas(64) std::atomic<uint32_t> num_done_{0};  // pieces of the stage
    alignas(64) std::atomic<uint32_t> version_{0};   // counts the tickets: what sleeping threads wait on
};

}  // namespace stoker

// A few threads that work on the stages of one computation together. A stage is a number of pieces that anyone may take;
// the next stage begins when all of them are done, not when all threads have come: a thread that was held up (a server
// shares its cores) finds the others further on and joins them there.
//
//   ticket         | stage since the pool began | number of pieces |      written once a stage, read by all
//   range          | stage | next piece |   | done |                      a line of each thread
//   group          | taken | done |                                       a line of eight ranges, of eight groups, ...
//
// Each thread has a range of consecutive pieces, so that the memory it reads is consecutive, too, and so that it alone writes to
// the line that says how far it is; a thread that has none left takes another's. A range of an earlier stage begins anew when its
// first piece is taken, so a stage is opened by one write. The thread that does the last piece of a range says so to its group, who does
// the last of a group to the next larger one: no line is written by more than nine threads in a stage, whatever the number of
// threads and pieces, unless they are stolen.
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

// At most 65,534 stages of at most 2^24 - 2 pieces; a stage may have none.
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

    // Writes to lines that other threads write to in the same stage, and pieces that were taken from the range of another
    // thread, both since the pool began; between two runs.
    struct Counts {
        int64_t num_stages = 0, num_shared_writes = 0, num_stolen = 0;
    };
    Counts counts() const;

private:
    static constexpr int32_t kFanIn = 8;
    static constexpr int kPieceBits = 24;
    static constexpr uint64_t kPieceMask = (uint64_t(1) << kPieceBits) - 1;
    static constexpr uint64_t kClosed = kPieceMask;  // in the place of a number of pieces

    // `next`: the stage it is of, and the next piece. The rest is of its thread alone.
    struct alignas(64) Range {
        std::atomic<uint64_t> next{0};
        std::atomic<int32_t> num_done{0};
        int64_t num_shared_writes = 0, num_stolen = 0;
    };
    // Pieces of the ranges below that are taken to the last one of their range, in the upper half, and done.
    struct alignas(64) Group {
        std::atomic<uint64_t> taken_and_done{0};
    };
    struct Level {
        int32_t num_threads;  // of a group
        std::unique_ptr<Group[]> groups;
    };

    static int32_t num_pieces_of(uint64_t ticket) { return int32_t(ticket & kPieceMask); }
    void serve(int32_t thread);
    void close();
    void stay_at(int32_t place) const;
    // Takes and computes pieces until none of the ticket's stage is left, or a helper's seat is wanted: then it returns false.
    bool work(int32_t thread, uint64_t ticket, Seat& seat);
    // A piece of the stage from the range of `owner`, or -1.
    int32_t take(int32_t thread, int32_t owner, uint64_t ticket);
    // Where `thread` looks next, behind the range of `owner`; `thread` itself if it has seen all.
    int32_t next_owner(int32_t thread, int32_t owner, uint64_t ticket) const;
    void finish(int32_t thread, int32_t owner, uint64_t ticket);
    int32_t first_of(int32_t thread, uint64_t ticket) const {
        return first_piece(num_pieces_of(ticket), thread < num_threads_ ? thread : num_threads_, num_threads_);
    }
    int32_t pieces_below(const Level& level, int32_t group, uint64_t ticket) const {
        return first_of((group + 1) * level.num_threads, ticket) - first_of(group * level.num_threads, ticket);
    }
    void begin_stage(int32_t stage);
    void open(uint64_t num_pieces);
    // The caller keeps its seat; a helper does not sleep with one.
    void wait_behind(uint64_t ticket, int32_t thread, Seat& seat) const;

    SharedCores* const cores_;
    const std::vector<int32_t> cpus_;
    const pid_t owner_;
    const int32_t num_threads_;
    const std::unique_ptr<Range[]> ranges_;  // of each thread
    std::vector<Level> levels_;              // the last has one group
    // To be read only by who holds a piece.
    Program* program_ = nullptr;
    int32_t stage_ = 0;
    int64_t num_opened_ = 0;  // written by who opens a stage
    std::vector<std::thread> threads_;
    // Each on a cache line of its own: they change at different times.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<uint32_t> version_{0};  // counts the tickets: what sleeping threads wait on
};

}  // namespace stoker

// The cores that the models of one server share, each in a process of its own with its own threads. A thread computes only
// while it has one of the seats, of which there are as many as cores:
//
//   queue | wanted | freed | seat 0 | seat 1 | ...      shared memory
//
// A seat is a robust mutex: the kernel gives it back when whoever has it dies, however. The caller of a pass waits for a
// seat, behind others that wait; the threads that help it take what is left over, and leave theirs to a caller that waits.
// So models that compute at the same time split the cores between them, and one that is alone has them all.
#pragma once

#include <cstdint>
#include <optional>

namespace stoker {

class SharedCores {
public:
    // `path`: an empty file, which is set up for `num_cores`, or one that another process has set up.
    // Throws std::runtime_error if there cannot be shared memory, or it is something else.
    SharedCores(const char* path, int32_t num_cores);
    SharedCores(const SharedCores&) = delete;
    SharedCores& operator=(const SharedCores&) = delete;

    int32_t size() const;

    // Takes a seat, after those that waited before. None after two seconds: a process that was stopped while it had a seat
    // must not stop all others, so the caller then computes without one.
    std::optional<int32_t> acquire();
    // Takes a seat if one is free that no caller waits for.
    std::optional<int32_t> try_acquire();
    // By the thread that took it.
    void release(int32_t seat);
    // Whether a caller waits for a seat and nobody has promised it one: who gets `true` must release its own now.
    bool promise();

private:
    struct Shared;

    std::optional<int32_t> take_any();
    bool is_wanted();

    // Mapped until the process ends: a thread that still has a seat keeps a list of it in there.
    Shared* shared_ = nullptr;
};

// The seat of one thread, or a seat where nothing is shared, which everybody has.
class Seat {
public:
    explicit Seat(SharedCores* cores) : cores_(cores) {}
    ~Seat() { release(); }
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;

    // Its number; where nothing is shared, that of the thread.
    int32_t place(int32_t thread) const { return cores_ == nullptr ? thread : number_.value_or(-1); }
    bool is_taken() const { return cores_ == nullptr || number_.has_value(); }
    void acquire() {
        if (cores_ != nullptr) {
            number_ = cores_->acquire();
        }
    }
    bool try_acquire() {
        if (!is_taken()) {
            number_ = cores_->try_acquire();
        }
        return is_taken();
    }
    void release() {
        if (number_) {
            cores_->release(*number_);
            number_.reset();
        }
    }
    // Leaves the seat to a caller that waits for one.
    bool yield() {
        const bool is_wanted = number_ && cores_->promise();
        if (is_wanted) {
            release();
        }
        return is_wanted;
    }

private:
    SharedCores* cores_;
    std::optional<int32_t> number_;
};

}  // namespace stoker

// A few threads that go through the stages of one forward pass together. They spin briefly between stages, because a stage
// lasts microseconds, then sleep, because a server shares its machine.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace stoker {

class Pool {
public:
    explicit Pool(int num_threads);
    ~Pool();  // joins
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return num_threads_; }

    // Calls body(thread) on every thread, the caller's being number 0, and returns when all have returned. The body must
    // not throw. Throws std::runtime_error in a forked child, where the other threads do not exist.
    template <class Body> void run(Body& body) {
        start([](void* b, int thread) { (*static_cast<Body*>(b))(thread); }, &body);
    }

    // Within run: waits until all threads are here.
    void barrier();

    // Within run, once between two barriers: gives the pieces [begin, end) of [0, n) to whoever comes for them.
    template <class Body> void share(int n, int grain, const Body& body) {
        for (int begin; (begin = next_.fetch_add(grain, std::memory_order_relaxed)) < n;) {
            body(begin, begin + grain < n ? begin + grain : n);
        }
    }

private:
    using Work = void (*)(void*, int);

    void start(Work work, void* argument);
    void serve(int thread);
    void close();

    const int num_threads_;
    const pid_t owner_;
    Work work_ = nullptr;
    void* argument_ = nullptr;
    bool is_closing_ = false;
    std::vector<std::thread> threads_;
    // Each on a cache line of its own: they change at different times.
    alignas(64) std::atomic<uint32_t> round_{0};    // of run
    alignas(64) std::atomic<uint32_t> arrived_{0};  // at the barrier
    alignas(64) std::atomic<uint32_t> passed_{0};   // barriers
    alignas(64) std::atomic<int> next_{0};
};

}  // namespace stoker

// Seats in shared memory: robust mutexes, and one word that sleeping threads wait on. Linux only.
#include "cores.hpp"

#include <stdexcept>

#if defined(__linux__)

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>

namespace stoker {

namespace {

constexpr uint32_t kMagic = 0x53544b31;
constexpr int32_t kMaxCores = 4096;
constexpr int kPatienceSeconds = 2;
constexpr long kNapNanoseconds = 10'000'000;  // who dies wakes nobody

enum Wanted : uint32_t { kNotWanted, kIsWanted, kIsPromised };

// Until somebody wakes us, if the word is still `value`.
void sleep_on(std::atomic<uint32_t>& word, uint32_t value) {
    const timespec nap = {.tv_sec = 0, .tv_nsec = kNapNanoseconds};
    syscall(SYS_futex, &word, FUTEX_WAIT, value, &nap, nullptr, 0);
}

void wake_one(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0); }

void make_mutex(pthread_mutex_t& mutex) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

// Whether the mutex is ours now, by the result of locking it; who had it may have died.
bool is_locked(int result, pthread_mutex_t& mutex) {
    return result == 0 || (result == EOWNERDEAD && pthread_mutex_consistent(&mutex) == 0);
}

bool try_lock(pthread_mutex_t& mutex) { return is_locked(pthread_mutex_trylock(&mutex), mutex); }

class File {
public:
    explicit File(const char* path) : number_(open(path, O_RDWR | O_CLOEXEC)) {
        if (number_ < 0 || flock(number_, LOCK_EX) != 0) {
            throw std::runtime_error("the memory for sharing cores cannot be opened");
        }
    }
    ~File() {
        flock(number_, LOCK_UN);  // a mapping keeps it open, and with it the lock
        close(number_);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    int number() const { return number_; }
    size_t size() const {
        struct stat status = {};
        fstat(number_, &status);
        return size_t(status.st_size);
    }

private:
    int number_;
};

}  // namespace

struct SharedCores::Shared {
    uint32_t magic;
    int32_t num_seats;
    alignas(64) pthread_mutex_t queue;          // had by the one caller that waits for a seat; the others wait for it
    alignas(64) std::atomic<uint32_t> wanted;   // by whoever has `queue`
    alignas(64) std::atomic<uint32_t> freed;    // counts the seats that were given back
    struct alignas(64) Place {
        pthread_mutex_t mutex;
    } seats[];

    static size_t bytes(int32_t num_seats) { return sizeof(Shared) + sizeof(Place) * size_t(num_seats); }
};

SharedCores::SharedCores(const char* path, int32_t num_cores) {
    const File file(path);
    const bool is_new = file.size() == 0;
    const size_t bytes = is_new ? Shared::bytes(num_cores) : file.size();
    if (num_cores < 1 || num_cores > kMaxCores || (is_new && ftruncate(file.number(), off_t(bytes)) != 0) ||
        bytes < sizeof(Shared)) {
        throw std::runtime_error("cores cannot be shared: wrong number, or no memory");
    }
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
    if (memory == MAP_FAILED) {
        throw std::runtime_error("the memory for sharing cores cannot be mapped");
    }
    shared_ = static_cast<Shared*>(memory);
    if (shared_->magic == 0) {  // new, or who set it up died over it
        make_mutex(shared_->queue);
        for (int32_t i = 0; i < num_cores; ++i) {
            make_mutex(shared_->seats[i].mutex);
        }
        shared_->num_seats = num_cores;
        shared_->magic = kMagic;
    }
    if (shared_->magic != kMagic || bytes < Shared::bytes(shared_->num_seats)) {
        munmap(memory, bytes);
        throw std::runtime_error("the file for sharing cores is something else");
    }
}

int32_t SharedCores::size() const { return shared_->num_seats; }

std::optional<int32_t> SharedCores::take_any() {
    thread_local int32_t last = 0;  // where this thread computed before, and its data may still be near
    const int32_t n = shared_->num_seats;
    for (int32_t i = 0; i < n; ++i) {
        const int32_t seat = (last + i) % n;
        if (try_lock(shared_->seats[seat].mutex)) {
            return last = seat;
        }
    }
    return std::nullopt;
}

// Whoever had the queue may have died, and wants nothing any more.
bool SharedCores::is_wanted() {
    if (shared_->wanted.load() == kNotWanted) {
        return false;
    }
    if (!try_lock(shared_->queue)) {
        return true;
    }
    shared_->wanted.store(kNotWanted);
    pthread_mutex_unlock(&shared_->queue);
    return false;
}

std::optional<int32_t> SharedCores::acquire() {
    std::optional<int32_t> seat = try_acquire();
    if (seat) {
        return seat;
    }
    timespec deadline, now;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += kPatienceSeconds;
    if (!is_locked(pthread_mutex_timedlock(&shared_->queue, &deadline), shared_->queue)) {
        return std::nullopt;
    }
    for (;;) {
        shared_->wanted.store(kIsWanted);
        const uint32_t freed = shared_->freed.load();
        seat = take_any();
        clock_gettime(CLOCK_REALTIME, &now);
        if (seat || now.tv_sec > deadline.tv_sec) {
            break;
        }
        sleep_on(shared_->freed, freed);
    }
    shared_->wanted.store(kNotWanted);
    pthread_mutex_unlock(&shared_->queue);
    return seat;
}

std::optional<int32_t> SharedCores::try_acquire() { return is_wanted() ? std::nullopt : take_any(); }

void SharedCores::release(int32_t seat) {
    pthread_mutex_unlock(&shared_->seats[seat].mutex);
    shared_->freed.fetch_add(1);
    if (shared_->wanted.load() != kNotWanted) {
        wake_one(shared_->freed);
    }
}

bool SharedCores::promise() {
    uint32_t wanted = shared_->wanted.load(std::memory_order_relaxed);
    return wanted == kIsWanted && shared_->wanted.compare_exchange_strong(wanted, kIsPromised);
}

}  // namespace stoker

#else

namespace stoker {

struct SharedCores::Shared {};

SharedCores::SharedCores(const char*, int32_t) { throw std::runtime_error("cores can be shared on Linux only"); }
int32_t SharedCores::size() const { return 0; }
std::optional<int32_t> SharedCores::acquire() { return std::nullopt; }
std::optional<int32_t> SharedCores::try_acquire() { return std::nullopt; }
void SharedCores::release(int32_t) {}
bool SharedCores::promise() { return false; }

}  // namespace stoker

#endif
